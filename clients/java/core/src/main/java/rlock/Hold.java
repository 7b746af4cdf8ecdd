package rlock;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/** One level of a hold, the result of an acquisition. {@link #close} releases it, from any thread. */
public final class Hold implements AutoCloseable {
    private final Seat seat;
    private final Tenure tenure;
    private final AtomicBoolean released = new AtomicBoolean();
    private boolean isValue;

    Hold(Seat seat, Tenure tenure) {
        this.seat = seat;
        this.tenure = tenure;
    }

    /** Nobody but this thread will release it: when the thread ends, so does the renewing. */
    void belongsTo(Thread thread) {
        tenure.holder = thread;
    }

    /** Whoever has this value can release it. */
    Hold belongsToNobody() {
        isValue = true;
        tenure.values.incrementAndGet();
        return this;
    }

    /** The lock's key. */
    public String key() {
        return seat.name.key();
    }

    /** The keys of all locks that it is the hold of. */
    List<String> keys() {
        return seat.members().stream().map(each -> each.name.key()).toList();
    }

    /** The owner's name, as {@code RLOCK.INFO} shows it. */
    public String owner() {
        return seat.name.owner();
    }

    /** Shared or exclusive. */
    public Mode mode() {
        return seat.name.mode();
    }

    /** The fencing token: the resource that is written to should refuse smaller ones. */
    public long token() {
        return tenure.token;
    }

    /**
     * Whether the hold is certain now: neither released nor lost, before its deadline, and its session unbroken. Sends
     * nothing.
     */
    public boolean isHeld() {
        return !released.get() && seat.tenure == tenure && tenure.isSure();
    }

    /**
     * Fails unless {@link #isHeld}: for the moment before what must not be done without the lock, such as a commit. Sends
     * nothing.
     *
     * @throws LockLostException if the hold was lost, or may be
     * @throws IllegalMonitorStateException if it was released
     */
    public void ensureHeld() {
        if (isHeld()) return;
        if (released.get() || seat.tenure != tenure && !tenure.isLost()) throw new IllegalMonitorStateException(this + " was released");
        throw new LockLostException(this + " was lost");
    }

    /** The time until the deadline; renewals move it. */
    public Duration remaining() {
        return isHeld() ? tenure.left() : Duration.ZERO;
    }

    /**
     * Completes, with null, when the hold is lost or may be, at its deadline at the latest. Never completes if the hold
     * is released. Stop the work under the lock then. Callers cannot complete or cancel it, only what they derive from it.
     */
    public CompletableFuture<Void> lost() {
        return tenure.lost();
    }

    /** Runs this when the hold is lost, in a thread of the package. */
    public Hold onLost(Runnable action) {
        tenure.lost().thenRun(action);
        return this;
    }

    /**
     * Moves the deadline to no earlier than {@code lease} from now.
     *
     * @throws LockLostException if the hold was lost
     * @throws IllegalMonitorStateException if it was released
     * @throws LockException.Unavailable if no server answered for three seconds
     */
    public void renew(Duration lease) {
        tenure.renew(lease.toMillis());
    }

    /**
     * Releases this level, after 10 seconds at the latest.
     *
     * @throws IllegalMonitorStateException if it was released before
     * @throws LockLostException if the hold was lost before: others may have worked at the same time
     * @throws LockException.Unavailable if no server answered, or another request of this owner is not over. It is released
     *     later, in the background; the hold ends with its lease at the latest
     */
    public void release() {
        if (!released.compareAndSet(false, true))
            throw new IllegalMonitorStateException(this + " was released before");
        try {
            tenure.release(seat);
        } finally {
            if (isValue) tenure.values.decrementAndGet();
        }
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
