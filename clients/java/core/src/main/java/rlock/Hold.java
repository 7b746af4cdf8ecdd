package rlock;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/** One level of a hold: what an acquisition returns. {@link #close} releases it, from any thread. */
public final class Hold implements AutoCloseable {
    private final Locks locks;
    private final Holding holding;
    private final Grant grant;
    private final AtomicBoolean released = new AtomicBoolean();

    Hold(Locks locks, Holding holding, Grant grant) {
        this.locks = locks;
        this.holding = holding;
        this.grant = grant;
    }

    /** What is locked. */
    public String key() {
        return holding.name.key();
    }

    /** Under which name, as {@code RLOCK.INFO} shows it. */
    public String owner() {
        return holding.name.owner();
    }

    /** Shared or exclusive. */
    public Mode mode() {
        return holding.name.mode();
    }

    /** The fencing token: whatever is written to should refuse a smaller one. */
    public long token() {
        return grant.token;
    }

    /** Whether the hold is sure now: neither released nor lost, and its deadline not reached. Asks nobody. */
    public boolean isHeld() {
        return !released.get() && holding.grant == grant && !grant.isLost();
    }

    /** The time until the deadline that is sure; renewals move it. */
    public Duration remaining() {
        return isHeld() ? grant.left() : Duration.ZERO;
    }

    /**
     * Is completed, with null, when the hold is lost or may be: no later than its deadline. Never completed when it is
     * released. Whoever works under the lock stops then.
     */
    public CompletableFuture<Void> lost() {
        return grant.lost.copy();
    }

    /** Runs this when the hold is lost, in a thread of the package's. */
    public Hold onLost(Runnable action) {
        grant.lost.thenRun(action);
        return this;
    }

    /**
     * Moves the deadline to no earlier than now and so long.
     *
     * @throws LockLostException if the hold was lost
     */
    public void renew(Duration lease) {
        locks.renew(grant, lease.toMillis());
    }

    /**
     * Releases this level.
     *
     * @throws IllegalMonitorStateException if it was released before
     * @throws LockLostException if the hold was lost before: what was done under it may collide with others' work
     * @throws LockException.Unavailable if no server answered; the hold ends with its lease at the latest
     */
    public void release() {
        if (!released.compareAndSet(false, true))
            throw new IllegalMonitorStateException(this + " was released before");
        locks.release(holding, grant);
    }

    /** {@link #release}, for try-with-resources; after a release it does nothing. */
    @Override
    public void close() {
        if (!released.get()) release();
    }

    @Override
    public String toString() {
        return mode() + " of " + key() + " by " + owner() + ", token " + token();
    }
}
