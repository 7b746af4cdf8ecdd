package rlock;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * What a hold of a single lock and of several locks have in common.
 *
 * @param <H> this type
 */
abstract sealed class Owned<H> implements AutoCloseable permits Hold, Holds {
    final AtomicBoolean released = new AtomicBoolean();

    /**
     * Sets the only thread that will release it: when that thread ends, renewal stops. Null means that any thread with
     * this object can release it.
     */
    abstract H belongsTo(Thread thread);

    abstract void releases();

    /** The owner's name, as {@code RLOCK.INFO} shows it. */
    public abstract String owner();

    /**
     * Completes, with null, when the hold is lost or may be, at its deadline at the latest. Then stop the work under
     * the lock. It never completes if the hold is released. Callers cannot complete or cancel it, only futures that
     * they derive from it.
     */
    public abstract CompletableFuture<Void> lost();

    /** Runs the action once when the hold is lost, in a thread of the package. */
    @SuppressWarnings("unchecked") // it is its own type
    public H onLost(Runnable action) {
        lost().thenRun(action);
        return (H) this;
    }

    /**
     * Releases this level, even of a lost hold. It returns within 10 seconds.
     *
     * @throws IllegalMonitorStateException if it was released before
     * @throws LockLostException if the hold was lost before: others may have worked at the same time
     * @throws LockException.Unavailable if no server answered, or another request of this owner is still in progress.
     *     It is released later, in the background; the hold ends with its lease at the latest
     */
    public void release() {
        if (!released.compareAndSet(false, true)) throw new IllegalMonitorStateException(this + " was released before");
        releases();
    }

    /** {@link #release}, for try-with-resources; after a release it does nothing. */
    @Override
    public void close() {
        if (!released.get()) release();
    }
}
