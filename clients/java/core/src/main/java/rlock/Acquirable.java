package rlock;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;

/**
 * What a single lock and several locks have in common.
 *
 * @param <S> this type
 * @param <H> what is held
 */
abstract sealed class Acquirable<S, H extends Owned<H>> implements Lock permits KeyLock, AllLocks {
    final Locks locks;
    final Options options;

    Acquirable(Locks locks, Options options) {
        this.locks = locks;
        this.options = options;
    }

    abstract S with(Options others);

    /** Waits for this many ms; null if not acquired. */
    abstract H acquire(long waits, boolean interruptible) throws InterruptedException;

    // --- options

    /** Sets the lease. The hold is renewed each time a third of it has passed, until the release. */
    public S lease(Duration lease) {
        return with(options.lease(lease.toMillis(), true));
    }

    /** Sets a lease that is not renewed: the hold is lost when it expires. */
    public S fixedLease(Duration lease) {
        return with(options.lease(lease.toMillis(), false));
    }

    /**
     * Ties the hold to a connection of its own, so that it ends at once when this process dies. The lease is at least a
     * second.
     */
    public S session() {
        return with(options.withSession());
    }

    /**
     * Does not wait if this many requests already wait: the lock is then not acquired. Methods that cannot return that,
     * such as {@link #lock}, throw {@link LockException.TooMany}.
     */
    public S maxQueue(int waiters) {
        return with(options.withMaxQueue(waiters));
    }

    /** A grant, and each renewal, counts only when this many replicas have acknowledged it. */
    public S acks(int replicas) {
        return with(options.withAcks(replicas));
    }

    /** Uses this owner's name instead of the thread's. */
    public S owner(String name) {
        Owners.checked("owner", name);
        return owner(() -> name);
    }

    /**
     * Uses the owner's name that the supplier returns for each acquisition. A hold under a name that begins with {@link
     * Locks#threadOwner} still belongs to the thread: it is lost when the thread ends.
     */
    public S owner(Supplier<String> names) {
        return with(options.withOwner(names));
    }

    /**
     * Makes each acquisition its own owner, which nobody re-enters. It is released only through the returned object, so
     * {@link #lock} and {@code tryLock}, which return nothing of that kind, refuse.
     */
    public S detached() {
        return with(options.withDetached());
    }

    // --- holds

    /** Waits forever and ignores interrupts, like {@link #lock}. */
    public H acquire() {
        return orTooMany(uninterrupted(Machine.FOREVER)).belongsTo(null);
    }

    /** Waits at most this long, or until interrupted; zero does not wait. Empty if not acquired. */
    public Optional<H> acquire(Duration wait) throws InterruptedException {
        return Optional.ofNullable(acquire(millis(wait), true)).map(hold -> hold.belongsTo(null));
    }

    /** Does not wait. */
    public Optional<H> tryAcquire() {
        return Optional.ofNullable(uninterrupted(0)).map(hold -> hold.belongsTo(null));
    }

    private H uninterrupted(long waits) {
        try {
            return acquire(waits, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    // --- java.util.concurrent.locks.Lock

    @Override
    public void lock() {
        refuseDetached();
        keep(orTooMany(uninterrupted(Machine.FOREVER)));
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        refuseDetached();
        keep(orTooMany(acquire(Machine.FOREVER, true)));
    }

    @Override
    public boolean tryLock() {
        refuseDetached();
        return keep(uninterrupted(0));
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        refuseDetached();
        return keep(acquire(millis(Duration.ofNanos(unit.toNanos(time))), true));
    }

    /** Not supported: a condition would need a queue of its own on the server. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("server-side locks have no conditions");
    }

    /** The owner's name according to these options. */
    final String owner() {
        return options.owner() == null ? locks.threadOwner() : Owners.checked("owner", options.owner().get());
    }

    // Another thread can unlock what is held under another name.
    private boolean keep(H hold) {
        if (hold != null && options.isOfThread(locks, hold.owner())) hold.belongsTo(Thread.currentThread());
        return hold != null;
    }

    // Nobody could release its level.
    private void refuseDetached() {
        if (options.detached())
            throw new UnsupportedOperationException("only the Hold of a detached acquisition releases it: use acquire or tryAcquire");
    }

    // A wait without a limit fails only because of maxQueue.
    private H orTooMany(H hold) {
        if (hold == null) throw new LockException.TooMany(this + ": maxQueue waiters already wait", null);
        return hold;
    }

    // Rounded up, so that no wait is too short.
    static long millis(Duration wait) {
        try {
            return Math.max(0, wait.plusNanos(999_999).toMillis());
        } catch (ArithmeticException longer) {
            return Machine.FOREVER;
        }
    }
}
