package rlock.redisson;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import org.redisson.api.ObjectListener;
import org.redisson.api.RFuture;
import rlock.Driver;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;
import rlock.Mode;

/** {@code RLock} and {@code RFencedLock}. A lock without a lease time is renewed; one with a lease time is not. */
@SuppressWarnings("unused") // called by Answers
final class OneLock implements Answers.Ordered {
    /** Locks that are waited for without a thread, and that are not reentrant until then. */
    private static final Set<Seat> PENDING = ConcurrentHashMap.newKeySet();

    final Client client;
    private final KeyLock lock;
    private final Mode mode;
    private final boolean isReentrant;

    OneLock(Client client, KeyLock lock, boolean isReentrant) {
        this.client = client;
        this.lock = lock;
        this.mode = lock.toString().startsWith(Mode.READ.name()) ? Mode.READ : Mode.WRITE;
        this.isReentrant = isReentrant;
    }

    /** The lock of the same key without options, for use among several locks. */
    KeyLock plain() {
        return mode == Mode.READ ? client.locks.readLock(lock.key()) : client.locks.lock(lock.key());
    }

    private KeyLock of(long thread) {
        return lock.owner(client.owner(thread));
    }

    private KeyLock with(long lease, TimeUnit unit, long thread) {
        KeyLock own = of(thread);
        Keys.dropLost(own::getHoldCount, own::isHeldByCurrentThread, own::unlock);
        if (!isReentrant && (PENDING.contains(seat(thread)) || own.getHoldCount() > 0))
            throw new IllegalMonitorStateException(lock.key() + " is held by this thread, and is not reentrant");
        return lease <= 0 ? own : own.fixedLease(Duration.ofMillis(Math.max(1, unit.toMillis(lease))));
    }

    private record Seat(Client client, String key, Mode mode, long thread) {}

    private Seat seat(long thread) {
        return new Seat(client, lock.key(), mode, thread);
    }

    // --- readers

    // A thread that already holds the lock under its own name re-enters under that name.
    private boolean joins(long lease, long thread) {
        if (mode != Mode.READ || !client.readersJoin() || lease > 0) return false;
        return of(thread).getHoldCount() == 0 && client.locks.lock(lock.key()).owner(client.owner(thread)).getHoldCount() == 0;
    }

    private boolean isReader(long thread) {
        return client.reads.depth(lock.key(), thread) > 0
                || client.locks.readLock(lock.key()).owner(client.owner(thread)).getHoldCount() > 0;
    }

    // To the server, readers that have joined are a different owner than the thread that asks for WRITE.
    private void refuseUpgrade(long thread) {
        if (mode == Mode.WRITE && client.reads.depth(lock.key(), thread) > 0)
            throw new LockException("DEADLOCK thread " + thread + " has the read lock of '" + lock.key()
                    + "' and would wait for itself: unlock that first", null);
    }

    /** Whether a wait for WRITE failed because the thread holds READ: in Redisson, it would end without the lock. */
    private boolean isUpgrade(Throwable failed, long thread) {
        return mode == Mode.WRITE && failed instanceof LockException refused && refused.getMessage().startsWith("DEADLOCK") && isReader(thread);
    }

    // --- RLock

    private interface Attempt {
        Optional<Hold> by(KeyLock lock) throws InterruptedException;

        static Attempt within(Duration wait) {
            return lock -> lock.acquire(wait);
        }
    }

    // A wait without a limit fails with the reason if it can never be granted.
    private Optional<Hold> acquired(Attempt attempt, long lease, TimeUnit unit, boolean isForever) throws InterruptedException {
        long thread = Answers.thread();
        boolean joins = joins(lease, thread);
        Runnable ended = watched(joins, thread);
        try {
            refuseUpgrade(thread);
            Optional<Hold> hold = attempt.by(joins ? client.reads.together(lock) : with(lease, unit, thread));
            if (joins) hold.ifPresent(level -> client.reads.add(lock.key(), thread, level));
            return hold;
        } catch (LockException refused) {
            if (isForever || !isUpgrade(refused, thread)) throw refused;
            return Optional.empty();
        } finally {
            ended.run();
        }
    }

    // Watches a reader that may wait for another reader of its client.
    private Runnable watched(boolean joins, long thread) {
        return mode == Mode.READ && !joins ? client.reads.watch(lock.key(), thread) : () -> {};
    }

    private Optional<Hold> uninterrupted(Attempt attempt, long lease, TimeUnit unit, boolean isForever) {
        try {
            return acquired(attempt, lease, unit, isForever);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    private Hold forever(long lease, TimeUnit unit) {
        return uninterrupted(lock -> Optional.of(lock.acquire()), lease, unit, true).orElseThrow();
    }

    private Optional<Hold> now() {
        return uninterrupted(KeyLock::tryAcquire, -1, TimeUnit.MILLISECONDS, false);
    }

    private Optional<Hold> within(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return acquired(Attempt.within(waits(wait, unit)), lease, unit, false);
    }

    public void lock() {
        forever(-1, TimeUnit.MILLISECONDS);
    }

    public void lock(long lease, TimeUnit unit) {
        forever(lease, unit);
    }

    public void lockInterruptibly() throws InterruptedException {
        lockInterruptibly(-1, TimeUnit.MILLISECONDS);
    }

    public void lockInterruptibly(long lease, TimeUnit unit) throws InterruptedException {
        acquired(Attempt.within(KeyLock.FOREVER), lease, unit, true);
    }

    public boolean tryLock() {
        return now().isPresent();
    }

    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return within(wait, -1, unit).isPresent();
    }

    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return within(wait, lease, unit).isPresent();
    }

    public void unlock() {
        long thread = Answers.thread();
        CompletableFuture<?> before = before("unlock", thread);
        if (before != null) Driver.await(before, Long.MAX_VALUE / 4);
        Hold level = mode == Mode.READ ? client.reads.take(lock.key(), thread) : null;
        if (level == null) of(thread).unlock();
        else level.release();
    }

    /** The thread's acquisitions whose outcome it does not know yet. */
    @Override
    public CompletableFuture<?> before(String method, long thread) {
        boolean isNext = method.equals("unlock") && of(thread).getHoldCount() == 0 && client.reads.depth(lock.key(), thread) == 0;
        return isNext ? Pending.of(seat(thread)) : null;
    }

    public boolean forceUnlock() {
        boolean isEnded = Keys.force(client.locks, lock.key(), mode);
        KeyLock own = of(Answers.thread()); // which this thread may lock anew
        Keys.dropLost(own::getHoldCount, () -> false, own::unlock);
        if (mode == Mode.READ) client.reads.drop(lock);
        return isEnded;
    }

    public boolean isLocked() {
        return !Keys.holders(client.locks, lock.key(), mode).isEmpty();
    }

    public boolean isHeldByThread(long thread) {
        return depth(thread) > 0;
    }

    public boolean isHeldByCurrentThread() {
        return isHeldByThread(Answers.thread());
    }

    public int getHoldCount() {
        return (int) depth(Answers.thread());
    }

    private long depth(long thread) {
        long joined = mode == Mode.READ ? client.reads.depth(lock.key(), thread) : 0;
        return joined + Keys.depth(client.locks, lock.key(), client.owner(thread), mode);
    }

    public long remainTimeToLive() {
        return (Long) client.locks.call(lock.key(), "PTTL", lock.key());
    }

    /**
     * {@code RedissonMultiLock} calls this to set the lease once it has all of its locks, from any thread: it applies
     * to the holds of this process. A lease is never shortened.
     */
    public boolean expire(long lease, TimeUnit unit) {
        boolean isHeld = false;
        for (Object holder : Keys.holders(client.locks, lock.key(), mode)) {
            KeyLock own = lock.owner(Keys.text(Keys.field(holder, "owner")));
            if (own.getHoldCount() == 0) continue;
            own.renew(Duration.ofMillis(unit.toMillis(lease)));
            isHeld = true;
        }
        return isHeld;
    }

    public String getName() {
        return client.name(lock.key());
    }

    public int addListener(ObjectListener listener) {
        return Listeners.add(client, lock.key(), listener);
    }

    public void removeListener(int id) {
        Listeners.remove(id);
    }

    public java.util.concurrent.locks.Condition newCondition() {
        return lock.newCondition();
    }

    // --- RLockAsync: whoever waits for the lock has no thread

    private CompletableFuture<Optional<Hold>> wait(Duration wait, long lease, TimeUnit unit, long thread) {
        boolean joins = joins(lease, thread);
        refuseUpgrade(thread);
        KeyLock own = joins ? client.reads.together(lock) : with(lease, unit, thread);
        if (!isReentrant && !PENDING.add(seat(thread)))
            throw new IllegalMonitorStateException(lock.key() + " is waited for by this thread, and is not reentrant");
        if (!isReentrant && own.getHoldCount() > 0) { // granted since it was looked at
            PENDING.remove(seat(thread));
            throw new IllegalMonitorStateException(lock.key() + " is held by this thread, and is not reentrant");
        }
        Runnable ended = watched(joins, thread);
        var acquired = own.acquireAsync(wait);
        acquired.whenComplete((hold, failed) -> {
            ended.run();
            if (!isReentrant) PENDING.remove(seat(thread));
        });
        Pending.add(seat(thread), acquired);
        return acquired;
    }

    // What the thread learns before the caller does, who may lock or unlock at once.
    private <R> RFuture<R> waiting(Duration wait, long lease, TimeUnit unit, long thread, Function<Optional<Hold>, R> result) {
        boolean joins = joins(lease, thread);
        CompletableFuture<Optional<Hold>> stage;
        try {
            stage = wait(wait, lease, unit, thread);
        } catch (LockException refused) {
            if (wait == KeyLock.FOREVER || !isUpgrade(refused, thread)) throw refused;
            stage = CompletableFuture.completedFuture(Optional.empty());
        }
        Function<Optional<Hold>, R> known = hold -> {
            if (!isReentrant) PENDING.remove(seat(thread));
            if (joins) hold.ifPresent(level -> client.reads.add(lock.key(), thread, level));
            return result.apply(hold);
        };
        Consumer<Optional<Hold>> undo = hold -> hold.ifPresent(level -> {
            if (joins) client.reads.giveBack(lock.key(), thread, level);
            else level.release();
        });
        Predicate<Throwable> isNothing = failed -> wait != KeyLock.FOREVER && isUpgrade(failed, thread);
        return Answers.future(stage, known, undo, isNothing, Optional.empty());
    }

    private RFuture<Boolean> within(Duration wait, long lease, TimeUnit unit, long thread) {
        return waiting(wait, lease, unit, thread, Optional::isPresent);
    }

    private RFuture<Void> forever(long lease, TimeUnit unit, long thread) {
        return waiting(KeyLock.FOREVER, lease, unit, thread, hold -> null);
    }

    public RFuture<Void> lockAsync() {
        return lockAsync(Answers.thread());
    }

    public RFuture<Void> lockAsync(long thread) {
        return forever(-1, TimeUnit.MILLISECONDS, thread);
    }

    public RFuture<Void> lockAsync(long lease, TimeUnit unit) {
        return forever(lease, unit, Answers.thread());
    }

    public RFuture<Void> lockAsync(long lease, TimeUnit unit, long thread) {
        return forever(lease, unit, thread);
    }

    public RFuture<Boolean> tryLockAsync() {
        return tryLockAsync(Answers.thread());
    }

    public RFuture<Boolean> tryLockAsync(long thread) {
        return within(Duration.ZERO, -1, TimeUnit.MILLISECONDS, thread);
    }

    public RFuture<Boolean> tryLockAsync(long wait, TimeUnit unit) {
        return tryLockAsync(wait, -1, unit);
    }

    public RFuture<Boolean> tryLockAsync(long wait, long lease, TimeUnit unit) {
        return tryLockAsync(wait, lease, unit, Answers.thread());
    }

    public RFuture<Boolean> tryLockAsync(long wait, long lease, TimeUnit unit, long thread) {
        return within(waits(wait, unit), lease, unit, thread);
    }

    private static Duration waits(long wait, TimeUnit unit) {
        return Duration.ofMillis(Math.max(0, unit.toMillis(wait)));
    }

    // --- RFencedLock

    /** The token of the hold, whoever holds; null if the lock is free. */
    public Long getToken() {
        List<?> holders = Keys.holders(client.locks, lock.key(), mode);
        return holders.isEmpty() ? null : (Long) Keys.field(holders.get(0), "token");
    }

    private Long token(Optional<Hold> hold) {
        return hold.map(Hold::token).orElse(null);
    }

    public Long lockAndGetToken() {
        return forever(-1, TimeUnit.MILLISECONDS).token();
    }

    public Long lockAndGetToken(long lease, TimeUnit unit) {
        return forever(lease, unit).token();
    }

    public Long tryLockAndGetToken() {
        return token(now());
    }

    public Long tryLockAndGetToken(long wait, TimeUnit unit) throws InterruptedException {
        return token(within(wait, -1, unit));
    }

    public Long tryLockAndGetToken(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return token(within(wait, lease, unit));
    }

    private RFuture<Long> tokenWithin(Duration wait, long lease, TimeUnit unit) {
        return waiting(wait, lease, unit, Answers.thread(), this::token);
    }

    public RFuture<Long> lockAndGetTokenAsync() {
        return lockAndGetTokenAsync(-1, TimeUnit.MILLISECONDS);
    }

    public RFuture<Long> lockAndGetTokenAsync(long lease, TimeUnit unit) {
        return tokenWithin(KeyLock.FOREVER, lease, unit);
    }

    public RFuture<Long> tryLockAndGetTokenAsync() {
        return tryLockAndGetTokenAsync(0, TimeUnit.MILLISECONDS);
    }

    public RFuture<Long> tryLockAndGetTokenAsync(long wait, TimeUnit unit) {
        return tryLockAndGetTokenAsync(wait, -1, unit);
    }

    public RFuture<Long> tryLockAndGetTokenAsync(long wait, long lease, TimeUnit unit) {
        return tokenWithin(waits(wait, unit), lease, unit);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof OneLock one && one.client == client && one.mode == mode && one.lock.key().equals(lock.key());
    }

    @Override
    public int hashCode() {
        return lock.key().hashCode();
    }

    @Override
    public String toString() {
        return lock.toString();
    }
}
