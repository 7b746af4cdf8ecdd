package rlock;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** One level of a hold, the result of an acquisition. {@link #close} releases it, from any thread. */
public final class Hold extends Owned<Hold> {
    private final Seat seat;
    private final Tenure tenure;
    private boolean isValue;
    private Hold permit; // that ends with it: of one of many keys; else null

    Hold(Seat seat, Tenure tenure) {
        this.seat = seat;
        this.tenure = tenure;
    }

    @Override
    Hold belongsTo(Thread thread) {
        tenure.holder = thread == null ? tenure.holder : thread;
        isValue = thread == null;
        if (isValue) tenure.values.incrementAndGet();
        return this;
    }

    /** The lock's key. */
    public String key() {
        return seat.name.key();
    }

    /** The keys of all locks in the hold. */
    List<String> keys() {
        return seat.members().stream().map(each -> each.name.key()).toList();
    }

    @Override
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
     * Whether the hold is certain now: neither released nor lost, before its deadline, and with an unbroken session.
     * Sends nothing.
     */
    public boolean isHeld() {
        return !released.get() && seat.tenure == tenure && tenure.isSure();
    }

    /**
     * Fails unless {@link #isHeld}: call it just before an action that requires the lock, such as a commit. Sends
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

    @Override
    public CompletableFuture<Void> lost() {
        return tenure.lost();
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

    @Override
    void releases() {
        try {
            tenure.release(seat);
        } finally {
            if (isValue) tenure.values.decrementAndGet();
            if (permit != null) permit.releaseQuietly();
        }
    }

    Hold withPermit(Hold one) {
        permit = one;
        return this;
    }

    /** All that is lost with a permit is a place in line. */
    void releaseQuietly() {
        try {
            close();
        } catch (RuntimeException lost) {
            System.getLogger("rlock").log(System.Logger.Level.DEBUG, this + " was not released", lost);
        }
    }

    @Override
    public String toString() {
        return mode() + " of " + key() + " by " + owner() + ", token " + token() + " (" + remaining().toMillis() + " ms left)";
    }
}
