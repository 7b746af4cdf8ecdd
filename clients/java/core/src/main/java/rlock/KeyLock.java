package rlock;

import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;

/**
 * A lock of a key, in one mode: immutable, for all threads. As a {@link Lock} it belongs to the thread, which enters it
 * again as often as it likes, by whatever object. {@link #acquire} returns a {@link Hold}, with its token and its signal.
 */
public final class KeyLock implements Lock {
    /** A wait without an end. */
    public static final Duration FOREVER = ChronoUnit.FOREVER.getDuration();

    private final Locks locks;
    private final String key;
    private final Options options;

    KeyLock(Locks locks, String key, Options options) {
        this.locks = locks;
        this.key = key;
        this.options = options;
    }

    // --- what to ask for

    /** With a lease of its own, renewed every third of it until the release. */
    public KeyLock lease(Duration lease) {
        return new KeyLock(locks, key, options.lease(lease.toMillis(), true));
    }

    /** With a lease that nobody renews: lost when it ends, whatever happens. */
    public KeyLock fixedLease(Duration lease) {
        return new KeyLock(locks, key, options.lease(lease.toMillis(), false));
    }

    /** Tied to a connection of its own: ends at once when this process does. The lease is at least a second. */
    public KeyLock session() {
        return new KeyLock(locks, key, options.withSession());
    }

    /** Allowed beside one's own READ, when no other reader is left. */
    public KeyLock upgrading() {
        return new KeyLock(locks, key, options.withUpgrade());
    }

    /**
     * Does not wait where so many wait already: it is then not acquired. Where that cannot be said, by {@link #lock} and
     * its like, it is {@link LockException.TooMany}.
     */
    public KeyLock maxQueue(int waiters) {
        return new KeyLock(locks, key, options.withMaxQueue(waiters));
    }

    /** A grant, and each renewal, counts when so many replicas have acknowledged it. */
    public KeyLock acks(int replicas) {
        return new KeyLock(locks, key, options.withAcks(replicas));
    }

    /** Under this name instead of the thread's: whoever uses this object is the same owner, in every thread. */
    public KeyLock owner(String name) {
        return owner(() -> name);
    }

    /** Under the name that this says each time. */
    public KeyLock owner(Supplier<String> names) {
        return new KeyLock(locks, key, options.withOwner(names));
    }

    /** Each acquisition is an owner of its own, which nobody re-enters; only its {@link Hold} releases it. */
    public KeyLock detached() {
        return new KeyLock(locks, key, options.withOwner(null).withDetached());
    }

    /** What is locked. */
    public String key() {
        return key;
    }

    // --- holds

    /** Waits for ever, and does not hear of interrupts, as {@link #lock} does. */
    public Hold acquire() {
        try {
            return orTooMany(acquire(Acquisition.FOREVER, false));
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /** Waits so long at most, or until it is interrupted; zero: not at all. Empty: not acquired. */
    public Optional<Hold> acquire(Duration wait) throws InterruptedException {
        return Optional.ofNullable(acquire(nanos(wait), true));
    }

    /** Does not wait. */
    public Optional<Hold> tryAcquire() {
        return Optional.ofNullable(acquireNow());
    }

    /**
     * Waits elsewhere than in this thread. The hold is its own owner, unless a name is given. A future
     * that ends otherwise first ({@code cancel}, {@code orTimeout}) ends the wait; nothing stays behind.
     */
    public CompletableFuture<Optional<Hold>> acquireAsync(Duration wait) {
        var result = new CompletableFuture<Optional<Hold>>();
        var answered = new AtomicBoolean();
        KeyLock one = options.owner() == null ? detached() : this;
        long patience = nanos(wait);
        Future<?> task;
        try {
            task = locks.submit(() -> {
                try {
                    Hold hold = one.acquire(patience, true);
                    answered.set(true);
                    if (!result.complete(Optional.ofNullable(hold)) && hold != null) hold.release();
                } catch (InterruptedException abandoned) {
                    answered.set(true);
                    result.cancel(false);
                } catch (Throwable failed) {
                    answered.set(true);
                    result.completeExceptionally(failed);
                }
                return null;
            });
        } catch (RejectedExecutionException closed) {
            return CompletableFuture.failedFuture(new IllegalStateException("this Locks is closed"));
        }
        result.whenComplete((hold, error) -> {
            if (!answered.get()) task.cancel(true);
        });
        return result;
    }

    // --- java.util.concurrent.locks.Lock

    @Override
    public void lock() {
        acquire();
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        orTooMany(acquire(Acquisition.FOREVER, true));
    }

    @Override
    public boolean tryLock() {
        return acquireNow() != null;
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return acquire(Math.max(0, unit.toNanos(time)), true) != null;
    }

    /**
     * One level down.
     *
     * @throws IllegalMonitorStateException if this thread does not hold it
     * @throws LockLostException if it was lost before: what was done under it may collide with others' work
     */
    @Override
    public void unlock() {
        Holding holding = holding();
        Grant grant = holding == null ? null : holding.grant;
        if (grant == null) throw new IllegalMonitorStateException(key + " is not held by " + owner());
        locks.release(holding, grant);
    }

    /** There is none: a condition would need a queue of its own on the server. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("locks of a server have no conditions");
    }

    // --- what is known here, without asking

    /** Whether this thread holds it, and is sure of that. */
    public boolean isHeldByCurrentThread() {
        Holding holding = holding();
        Grant grant = holding == null ? null : holding.grant;
        return grant != null && !grant.isLost();
    }

    /** How often this thread has entered it and not left it. */
    public int getHoldCount() {
        Holding holding = holding();
        return holding == null ? 0 : holding.depth;
    }

    /** The fencing token of this thread's hold. */
    public long token() {
        return held().token;
    }

    /** The signal of this thread's hold, as {@link Hold#lost}. */
    public CompletableFuture<Void> lost() {
        return held().lost.copy();
    }

    /**
     * Moves the deadline of this thread's hold to no earlier than now and so long.
     *
     * @throws LockLostException if it was lost
     */
    public void renew(Duration lease) {
        locks.renew(held(), lease.toMillis());
    }

    private Grant held() {
        Holding holding = holding();
        Grant grant = holding == null ? null : holding.grant;
        if (grant == null) throw new IllegalMonitorStateException(key + " is not held by " + owner());
        return grant;
    }

    private Holding holding() {
        return options.detached() ? null : Holding.find(locks.name(key, owner(), options.mode()));
    }

    private String owner() {
        return options.owner() == null ? locks.threadOwner() : options.owner().get();
    }

    private Hold acquire(long patienceNanos, boolean interruptible) throws InterruptedException {
        Holding holding = options.detached()
                ? Holding.alone(locks.name(key, locks.newOwner(), options.mode()))
                : Holding.enter(locks.name(key, owner(), options.mode()));
        return new Acquisition(locks, holding, options, patienceNanos, interruptible).run();
    }

    // Only with maxQueue a wait for ever ends without the lock.
    private Hold orTooMany(Hold hold) {
        if (hold == null) throw new LockException.TooMany(key + ": as many wait as maxQueue allows", null);
        return hold;
    }

    private Hold acquireNow() {
        try {
            return acquire(0, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    private static long nanos(Duration wait) {
        try {
            return Math.max(0, wait.toNanos());
        } catch (ArithmeticException longer) {
            return Acquisition.FOREVER;
        }
    }

    @Override
    public String toString() {
        return options.mode() + " lock of " + key;
    }
}
