package rlock;

import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;

/**
 * The lock of a key, in one mode; immutable and thread-safe. As a {@link Lock} it belongs to the thread, which may
 * re-enter it by any object. {@link #acquire} returns a {@link Hold}, with its token and its signal.
 */
public final class KeyLock implements Lock {
    /** A wait without a limit. */
    public static final Duration FOREVER = ChronoUnit.FOREVER.getDuration();

    private final Locks locks;
    private final String key;
    private final Options options;

    KeyLock(Locks locks, String key, Options options) {
        this.locks = locks;
        this.key = Owners.checked("key", key);
        this.options = options;
    }

    // --- options

    /** With this lease, renewed every third of it until the release. */
    public KeyLock lease(Duration lease) {
        return new KeyLock(locks, key, options.lease(lease.toMillis(), true));
    }

    /** With a lease that nobody renews: the hold is lost when it expires. */
    public KeyLock fixedLease(Duration lease) {
        return new KeyLock(locks, key, options.lease(lease.toMillis(), false));
    }

    /** Tied to its own connection, so that it ends at once when this process dies. The lease is at least a second. */
    public KeyLock session() {
        return new KeyLock(locks, key, options.withSession());
    }

    /** Allowed on top of one's own READ, once no other reader remains. */
    public KeyLock upgrading() {
        return new KeyLock(locks, key, options.withUpgrade());
    }

    /**
     * Does not wait if this many others already wait: the lock is then not acquired. Methods that cannot return that,
     * such as {@link #lock}, throw {@link LockException.TooMany}.
     */
    public KeyLock maxQueue(int waiters) {
        return new KeyLock(locks, key, options.withMaxQueue(waiters));
    }

    /** A grant, and each renewal, counts only when this many replicas have acknowledged it. */
    public KeyLock acks(int replicas) {
        return new KeyLock(locks, key, options.withAcks(replicas));
    }

    /** With this owner's name instead of the thread's: all threads that use this object are the same owner. */
    public KeyLock owner(String name) {
        Owners.checked("owner", name);
        return owner(() -> name);
    }

    /**
     * With the owner's name that this returns each time. What is locked under a name that begins with
     * {@link Locks#threadOwner} still belongs to the thread: it is lost when the thread ends.
     */
    public KeyLock owner(Supplier<String> names) {
        return new KeyLock(locks, key, options.withOwner(names));
    }

    /**
     * Each acquisition is its own owner, which nobody re-enters. Only its {@link Hold} releases it, so {@link #lock} and
     * {@code tryLock}, which return none, refuse.
     */
    public KeyLock detached() {
        return new KeyLock(locks, key, options.withOwner(null).withDetached());
    }

    /** The lock's key. */
    public String key() {
        return key;
    }

    // --- holds

    /** Waits forever and ignores interrupts, like {@link #lock}. */
    public Hold acquire() {
        try {
            return orTooMany(acquire(Machine.FOREVER, false)).belongsToNobody();
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /** Waits at most this long, or until interrupted; zero does not wait. Empty if not acquired. */
    public Optional<Hold> acquire(Duration wait) throws InterruptedException {
        return Optional.ofNullable(acquire(millis(wait), true)).map(Hold::belongsToNobody);
    }

    /** Does not wait. */
    public Optional<Hold> tryAcquire() {
        return Optional.ofNullable(acquireNow()).map(Hold::belongsToNobody);
    }

    /**
     * Waits at most this long, without a thread; zero does not wait. The hold is its own owner, unless a name is given.
     * Completing the future first ({@code cancel}, {@code orTimeout}) ends the wait and leaves nothing behind.
     *
     * <p>The future ends in one of 16 threads of the package: give a function that blocks to its {@code …Async} methods.
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

    // --- java.util.concurrent.locks.Lock

    @Override
    public void lock() {
        refuseDetached();
        try {
            keep(orTooMany(acquire(Machine.FOREVER, false)));
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        refuseDetached();
        keep(orTooMany(acquire(Machine.FOREVER, true)));
    }

    @Override
    public boolean tryLock() {
        refuseDetached();
        return keep(acquireNow());
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        refuseDetached();
        return keep(acquire(millis(Duration.ofNanos(unit.toNanos(time))), true));
    }

    /**
     * Releases one level.
     *
     * @throws IllegalMonitorStateException if this thread does not hold it
     * @throws LockLostException if it was lost before: others may have worked at the same time. Of a loss that a thousand
     *     others followed nothing is known any more
     * @throws LockException.Unavailable if that is not known after 10 seconds: see {@link Hold#release}
     */
    @Override
    public void unlock() {
        Seat seat = seat();
        Tenure tenure = seat == null ? null : seat.tenure;
        if (tenure == null) throw new IllegalMonitorStateException(key + " is not held by this owner");
        // Of several locks that were lost together none can be acquired before all are released.
        tenure.release(tenure.isLost() && tenure.isTogetherAt(seat) ? tenure.seat() : seat);
    }

    /** Not supported: a condition would need a queue of its own on the server. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("server-side locks have no conditions");
    }

    // --- what the server knows

    /** Whether anybody holds the key's lock now, in any mode. */
    public boolean isLocked() {
        return info().isLocked();
    }

    /** Who holds the key's lock and who waits for it now. */
    public LockInfo info() {
        return LockInfo.of(key, locks.call(key, "RLOCK.INFO", key, "HOLDERS", "10000", "WAITERS", "10000"));
    }

    /**
     * Ends all holds of the key's lock, in both modes and whoever has them, and returns whether there was one. They are
     * lost; whoever has them may go on until the next renewal, unless it is a session.
     */
    public boolean forceUnlock() {
        return locks.call(key, "RLOCK.FORCE", key) instanceof Long ended && ended > 0;
    }

    // --- what is known without asking the server

    /** Whether this thread holds it for certain. */
    public boolean isHeldByCurrentThread() {
        Seat seat = seat();
        Tenure tenure = seat == null ? null : seat.tenure;
        return tenure != null && tenure.isSure();
    }

    /** How many levels this thread holds. */
    public int getHoldCount() {
        Seat seat = seat();
        return seat == null ? 0 : seat.depth;
    }

    /** The fencing token of this thread's hold. */
    public long token() {
        return held().token;
    }

    /** The signal of this thread's hold, like {@link Hold#lost}. */
    public CompletableFuture<Void> lost() {
        return held().lost();
    }

    /**
     * Moves the deadline of this thread's hold to no earlier than {@code lease} from now.
     *
     * @throws LockLostException if it was lost
     */
    public void renew(Duration lease) {
        held().renew(lease.toMillis());
    }

    private Tenure held() {
        Seat seat = seat();
        Tenure tenure = seat == null ? null : seat.tenure;
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

    private String owner() {
        return options.owner() == null ? locks.threadOwner() : Owners.checked("owner", options.owner().get());
    }

    private Hold acquire(long waits, boolean interruptible) throws InterruptedException {
        return new Acquisition(locks, key, options, waits, interruptible).run(this::entered);
    }

    // Another thread can unlock what another name holds.
    private boolean keep(Hold hold) {
        if (hold != null && options.isOfThread(locks, hold.owner())) hold.belongsTo(Thread.currentThread());
        return hold != null;
    }

    // Its level would be nobody's to release.
    private void refuseDetached() {
        if (options.detached())
            throw new UnsupportedOperationException("only the Hold of a detached acquisition releases it: use acquire or tryAcquire");
    }

    // Only with maxQueue a wait for ever ends without the lock.
    private Hold orTooMany(Hold hold) {
        if (hold == null) throw new LockException.TooMany(key + ": maxQueue waiters already wait", null);
        return hold;
    }

    private Hold acquireNow() {
        try {
            return acquire(0, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    // Rounded up: a wait is never short.
    static long millis(Duration wait) {
        try {
            return Math.max(0, wait.plusNanos(999_999).toMillis());
        } catch (ArithmeticException longer) {
            return Machine.FOREVER;
        }
    }

    /** As one of several locks, which have their options together. */
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
