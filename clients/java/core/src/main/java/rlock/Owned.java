package rlock;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * What a hold of one lock and of several have in common.
 *
 * @param <H> this type
 */
abstract sealed class Owned<H> implements AutoCloseable permits Hold, Holds {
    final AtomicBoolean released = new AtomicBoolean();

    /** The only thread that will release it: when it ends, so does the renewing. Null: any thread that has this value can. */
    abstract H belongsTo(Thread thread);

    abstract void releases();

    /** The owner's name, as {@code RLOCK.INFO} shows it. */
    public abstract String owner();

    /**
     * Completes, with null, when the hold is lost or may be, at its deadline at the latest. Never completes if the hold
     * is released. Stop the work under the lock then. Callers cannot complete or cancel it, only what they derive from it.
     */
    public abstract CompletableFuture<Void> lost();

    /** Runs this once when the hold is lost, in a thread of the package. */
    @SuppressWarnings("unchecked") // it is its own type
    public H onLost(Runnable action) {
        lost().thenRun(action);
        return (H) this;
    }

    /**
     * Releases this level, also if it was lost, after 10 seconds at the latest.
     *
     * @throws IllegalMonitorStateException if it was released before
     * @throws LockLostException if the hold was lost before: others may have worked at the same time
     * @throws LockException.Unavailable if no server answered, or another request of this owner is not over. It is released
     *     later, in the background; the hold ends with its lease at the latest
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
