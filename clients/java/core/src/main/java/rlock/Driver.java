package rlock;

import java.security.GeneralSecurityException;
import java.security.cert.CertificateException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLException;

/**
 * What this package needs of a Redis client: connections of its own. {@code rlock-jedis} and {@code rlock-lettuce}
 * implement it; finding the primary, resending and waiting are implemented above it, in the same way for both.
 */
public interface Driver extends AutoCloseable {
    /**
     * Opens a connection, authenticated and with the database selected. Fails with a {@link LinkException}, within this
     * time.
     */
    Link connect(Address at, long timeoutMillis);

    /** Opens a connection to a Sentinel, which has credentials of its own. */
    Link connectSentinel(Address at, long timeoutMillis);

    /** Opens a connection that receives the messages of shard channels. Fails like {@link #connect}. */
    Feed listen(Address at, long timeoutMillis, Ear ear);

    /** The number of the database: equal keys of different databases are different locks. */
    int database();

    /** Frees what the driver itself has opened; connections are closed by their users. */
    @Override
    void close();

    /** A connection to one server. One command at a time; it may be closed from any thread at any time. */
    interface Link extends AutoCloseable {
        /**
         * Sends a command and waits for its reply: a Long, a String or byte[], a List of these, or null.
         *
         * @throws ServerException if the server answers with an error; the connection stays usable
         * @throws LinkException if no reply came in time, or the connection broke
         */
        Object call(long timeoutMillis, String... words);

        /** From now on nothing more is sent; {@code closed} runs once the connection has ended, on either side. */
        void whenClosed(Runnable closed);

        /** Closes the connection at once; what it still waits for fails. */
        @Override
        void close();
    }

    /**
     * Waits until the future has ended, for this time at most and in spite of interrupts; returns whether it has. In a
     * thread of the common pool, a future's own {@code get} and {@code join} run other tasks meanwhile: such a task is
     * the same owner, and if it locks, it would wait for the very task that it interrupted.
     */
    static boolean await(CompletableFuture<?> future, long nanos) {
        var ended = new CountDownLatch(1);
        future.whenComplete((value, failed) -> ended.countDown());
        long end = System.nanoTime() + nanos;
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    return ended.await(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException later) {
                    isInterrupted = true;
                }
            }
        } finally {
            if (isInterrupted) Thread.currentThread().interrupt();
        }
    }

    /** A connection that receives messages. */
    interface Feed extends AutoCloseable {
        /**
         * Subscribes to a shard channel, even if it is subscribed already. The future ends when the server has
         * confirmed that, or with an exception of {@link Link#call}.
         */
        CompletableFuture<Void> subscribe(String channel);

        @Override
        void close();
    }

    /** Receives what a {@link Feed} reports, in the feed's thread; it must return at once. */
    interface Ear {
        /** A message has come. */
        void heard(String message);

        /** The server has ended a subscription. */
        void left(String channel);

        /** The connection has ended. */
        void ended();
    }

    /**
     * Classifies a failure of the client: a {@link ServerException} if no retry can help, because the other side is no
     * such server, refuses this client, or speaks another protocol; otherwise a {@link LinkException}.
     */
    static RuntimeException failure(String message, Throwable failed) {
        for (Throwable each = failed; each != null; each = each.getCause()) {
            String text = String.valueOf(each.getMessage());
            if (each instanceof CertificateException || each instanceof GeneralSecurityException)
                return new ServerException("TLS the server's certificate is refused: " + text, failed);
            if (each instanceof SSLException && text.contains("fatal alert"))
                return new ServerException("TLS the server refuses this client: " + text, failed);
            if (each instanceof SSLException && text.matches("(?s).*(not an SSL/TLS record|Unsupported or unrecognized SSL message).*"))
                return new ServerException("TLS the server does not speak it at this port: " + shortened(text), failed);
        }
        boolean isMisused = failed instanceof IllegalStateException || failed instanceof IllegalArgumentException
                || failed instanceof UnsupportedOperationException || failed instanceof LinkageError;
        return isMisused ? new ServerException("CLIENT " + failed, failed) : new LinkException(message, failed);
    }

    private static String shortened(String text) {
        return text.length() > 100 ? text.substring(0, 100) + "…" : text;
    }

    /** The result of {@link #failure} if the received bytes do not belong to this protocol. */
    static ServerException foreign(String message, Throwable failed) {
        return new ServerException("PROTOCOL what answers at this port is no Redis or Valkey server: " + shortened(message), failed);
    }

    /** Where a server listens. */
    record Address(String host, int port) {
        /** Reads {@code host:port}. */
        public static Address of(String text) {
            int colon = text.lastIndexOf(':');
            if (colon < 0) throw new IllegalArgumentException("host:port is expected, not '" + text + "'");
            return new Address(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
        }

        @Override
        public String toString() {
            return host + ":" + port;
        }
    }

    /** The server answered with an error, or communication with it is impossible; {@link #code} is the first word. */
    final class ServerException extends RuntimeException {
        private static final long serialVersionUID = 1;

        /** Creates one from the server's error line, which begins with the code. */
        public ServerException(String line) {
            super(line, null, false, false);
        }

        /** Creates one whose cause comes from the client. */
        ServerException(String line, Throwable cause) {
            super(line, cause);
        }

        /** The first word: {@code NOTHELD}, {@code MOVED}, … */
        public String code() {
            String line = getMessage();
            int space = line.indexOf(' ');
            return space < 0 ? line : line.substring(0, space);
        }
    }

    /**
     * The connection broke, could not be opened, or was silent for too long: whether the command was executed is
     * unknown.
     */
    final class LinkException extends RuntimeException {
        private static final long serialVersionUID = 1;

        private boolean neverSent;

        /** Creates one from the client's message. */
        public LinkException(String message, Throwable cause) {
            super(message, cause);
        }

        /** Marks that there was no connection to send the command on, so it was certainly not executed. */
        LinkException neverSent() {
            neverSent = true;
            return this;
        }

        boolean isNeverSent() {
            return neverSent;
        }
    }
}
