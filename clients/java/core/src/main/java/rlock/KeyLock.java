package rlock;

import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.Lock;

/**
 * The lock of a key, in one mode; immutable and thread-safe. As a {@link Lock} it belongs to the thread, which may
 * re-enter it by any object. {@link #acquire} returns a {@link Hold}, with its token and its signal.
 */
public final class KeyLock extends Acquirable<KeyLock, Hold> {
    /** A wait without a limit. */
    public static final Duration FOREVER = ChronoUnit.FOREVER.getDuration();

    private final String key;

    KeyLock(Locks locks, String key, Options options) {
        super(locks, options);
        this.key = Owners.checked("key", key);
    }

    @Override
    KeyLock with(Options others) {
        return new KeyLock(locks, key, others);
    }

    /** Allows WRITE in addition to the owner's own READ, once no other reader remains. */
    public KeyLock upgrading() {
        return with(options.withUpgrade());
    }

    /** The lock's key. */
    public String key() {
        return key;
    }

    /**
     * Waits at most this long, without a thread; zero does not wait. The hold is its own owner, unless a name is given.
     * Completing the future first ({@code cancel}, {@code orTimeout}) ends the wait and leaves nothing behind.
     *
     * <p>The future completes in one of 16 threads of the package: pass functions that block to its {@code …Async}
     * methods.
     */
    public CompletableFuture<Optional<Hold>> acquireAsync(Duration wait) {
        KeyLock one = options.owner() == null ? detached() : this;
        try {
            locks.refuseClosed();
            String name = one.options.detached() ? null : one.owner();
            return new AsyncAcquisition(locks, key, one.options, millis(wait), name).start();
        } catch (RuntimeException failed) {
            return CompletableFuture.failedFuture(failed);
        }
    }

    /**
     * Releases one level.
     *
     * @throws IllegalMonitorStateException if this thread does not hold it
     * @throws LockLostException if it was lost before: others may have worked at the same time. A loss is forgotten
     *     after a thousand later ones
     * @throws LockException.Unavailable if that is not known after 10 seconds: see {@link Hold#release}
     */
    @Override
    public void unlock() {
        Seat seat = seat();
        Tenure tenure = held(seat);
        // Of several locks that were lost together, none can be acquired before all are released.
        tenure.release(tenure.isLost() && tenure.isTogetherAt(seat) ? tenure.seat() : seat);
    }

    // --- what the server knows

    /** Whether anybody holds the key's lock now, in any mode. */
    public boolean isLocked() {
        return info().isLocked();
    }

    /** The current holders of the key's lock, and the waiters. */
    public LockInfo info() {
        return LockInfo.of(key, locks.call(key, "RLOCK.INFO", key, "HOLDERS", "10000", "WAITERS", "10000"));
    }

    /**
     * Ends all holds of the key's lock, in both modes and whoever has them, and returns whether there was one. Their
     * holders lose them. A holder that does not use {@link Hold#lost} may only notice at the next renewal, unless it
     * has a session.
     */
    public boolean forceUnlock() {
        return locks.call(key, "RLOCK.FORCE", key) instanceof Long ended && ended > 0;
    }

    // --- what is known without asking the server

    /** Whether this thread certainly holds it. */
    public boolean isHeldByCurrentThread() {
        Tenure tenure = tenure(seat());
        return tenure != null && tenure.isSure();
    }

    /** How many levels this thread holds. */
    public int getHoldCount() {
        Seat seat = seat();
        return seat == null ? 0 : seat.depth;
    }

    /** The fencing token of this thread's hold. */
    public long token() {
        return held(seat()).token;
    }

    /** The signal of this thread's hold, like {@link Hold#lost}. */
    public CompletableFuture<Void> lost() {
        return held(seat()).lost();
    }

    /**
     * Moves the deadline of this thread's hold to no earlier than {@code lease} from now.
     *
     * @throws LockLostException if it was lost
     */
    public void renew(Duration lease) {
        held(seat()).renew(lease.toMillis());
    }

    private static Tenure tenure(Seat seat) {
        return seat == null ? null : seat.tenure;
    }

    private Tenure held(Seat seat) {
        Tenure tenure = tenure(seat);
        if (tenure == null) throw new IllegalMonitorStateException(key + " is not held by this owner");
        return tenure;
    }

    private Seat seat() {
        return options.detached() || !locks.isIdentified() ? null : Seat.find(locks.name(key, owner(), options.mode()));
    }

    private Seat entered() {
        return options.detached()
                ? Seat.alone(locks.name(key, locks.newOwner(), options.mode()))
                : Seat.enter(locks.name(key, owner(), options.mode()));
    }

    @Override
    Hold acquire(long waits, boolean interruptible) throws InterruptedException {
        return new Acquisition(locks, key, options, waits, interruptible).run(this::entered);
    }

    /** Represents it as one of several locks, which share their options. */
    Group.Part part() {
        if (!options.equals(Options.of(options.mode(), locks.leaseMillis()).withLimit(options.limit())))
            throw new IllegalArgumentException(key + ": give options to all of them together");
        return new Group.Part(key, options.mode(), options.limit());
    }

    @Override
    public String toString() {
        return options.mode() + " lock of " + key;
    }
}
