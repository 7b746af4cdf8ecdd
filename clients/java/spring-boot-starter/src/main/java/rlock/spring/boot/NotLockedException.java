package rlock.spring.boot;

/** A {@link Locked} method did not run: its lock was not free in time, or the wait was interrupted. */
public final class NotLockedException extends RuntimeException {
    private static final long serialVersionUID = 1;

    NotLockedException(String message, Throwable cause) {
        super(message, cause);
    }
}
