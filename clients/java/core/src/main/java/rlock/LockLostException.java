package rlock;

/**
 * The hold ended before it was released: others may have worked at the same time. It is an
 * {@link IllegalMonitorStateException}, because that is what {@code unlock()} without a hold throws.
 */
public final class LockLostException extends IllegalMonitorStateException {
    private static final long serialVersionUID = 1;

    LockLostException(String message) {
        super(message);
    }
}
