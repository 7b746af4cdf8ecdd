package rlock;

import java.util.Locale;

/** The lock was not acquired, renewed or released, for a reason other than another holder. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** With the server's error text. */
    public LockException(String message, Throwable cause) {
        super(message, cause);
    }

    /** {@code -DEADLOCK}: the wait would never end. Release what you hold, then start over. */
    public static final class Deadlock extends LockException {
        private static final long serialVersionUID = 1;

        Deadlock(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** {@code -TOOMANY}: a limit of the server, or {@link KeyLock#maxQueue}, is reached. Nothing has changed. */
    public static final class TooMany extends LockException {
        private static final long serialVersionUID = 1;

        TooMany(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** {@code -NOACKS}: too few replicas confirmed the grant in time, so it was revoked. */
    public static final class NoAcks extends LockException {
        private static final long serialVersionUID = 1;

        NoAcks(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** {@code -NOPERM}: the user may not do this. */
    public static final class NoPermission extends LockException {
        private static final long serialVersionUID = 1;

        NoPermission(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** No primary answered in time, so it is unknown whether the lock was free. Nothing is held. */
    public static sealed class Unavailable extends LockException permits NoReplicas {
        private static final long serialVersionUID = 1;

        Unavailable(String message, Throwable cause) {
            super(message, cause);
        }

        static Unavailable because(String message, Throwable cause) {
            boolean fewReplicas = cause instanceof Driver.ServerException error && error.code().equals("NOREPLICAS");
            return fewReplicas ? new NoReplicas(message, cause) : new Unavailable(message, cause);
        }
    }

    /** {@code -NOREPLICAS}: too few replicas were connected for all that time. */
    public static final class NoReplicas extends Unavailable {
        private static final long serialVersionUID = 1;

        NoReplicas(String message, Throwable cause) {
            super(message, cause);
        }
    }

    private static String explained(String line) {
        if (line.startsWith("ERR unknown command") && line.toUpperCase(Locale.ROOT).contains("'RLOCK."))
            return "the server has not loaded the RLOCK module: " + line;
        boolean isOlder = line.startsWith("ERR syntax error at 'TELL'");
        return isOlder ? "the server's RLOCK module is too old for this package, it does not know TELL: " + line : line;
    }

    static LockException of(Driver.ServerException error) {
        String line = error.getMessage();
        return switch (error.code()) {
            case "DEADLOCK" -> new Deadlock(line, error);
            case "TOOMANY" -> new TooMany(line, error);
            case "NOACKS" -> new NoAcks(line, error);
            case "NOREPLICAS" -> new NoReplicas(line, error);
            case "NOPERM" -> new NoPermission(line, error);
            default -> Machine.passes(error.code()) ? new Unavailable(line, error)
                    : new LockException(explained(line), error);
        };
    }
}
