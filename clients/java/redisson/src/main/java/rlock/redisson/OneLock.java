package rlock.redisson;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.api.ObjectListener;
import org.redisson.api.RFuture;
import rlock.Hold;
import rlock.KeyLock;
import rlock.Mode;

/** {@code RLock} and {@code RFencedLock}. A lock without a lease time is renewed; one with a lease time is not. */
@SuppressWarnings("unused") // called by Answers
final class OneLock {
    /** Waits, without a thread, for what is not reentrant. */
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

    /** The same lock without options, as one of several. */
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

    private KeyLock with(long lease, TimeUnit unit) {
        return with(lease, unit, Answers.thread());
    }

    private KeyLock renewed() {
        return with(-1, TimeUnit.MILLISECONDS);
    }

    private record Seat(Client client, String key, long thread) {}

    private Seat seat(long thread) {
        return new Seat(client, lock.key(), thread);
    }

    // --- RLock

    public void lock() {
        renewed().lock();
    }

    public void lock(long lease, TimeUnit unit) {
        with(lease, unit).lock();
    }

    public void lockInterruptibly() throws InterruptedException {
        renewed().lockInterruptibly();
    }

    public void lockInterruptibly(long lease, TimeUnit unit) throws InterruptedException {
        with(lease, unit).lockInterruptibly();
    }

    public boolean tryLock() {
        return renewed().tryLock();
    }

    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return renewed().tryLock(wait, unit);
    }

    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return with(lease, unit).tryLock(wait, unit);
    }

    public void unlock() {
        of(Answers.thread()).unlock();
    }

    public boolean forceUnlock() {
        boolean isEnded = Keys.force(client.locks, lock.key(), mode);
        KeyLock own = of(Answers.thread()); // which this thread may lock anew
        Keys.dropLost(own::getHoldCount, () -> false, own::unlock);
        return isEnded;
    }

    public boolean isLocked() {
        return !Keys.holders(client.locks, lock.key(), mode).isEmpty();
    }

    public boolean isHeldByThread(long thread) {
        return Keys.depth(client.locks, lock.key(), client.owner(thread), mode) > 0;
    }

    public boolean isHeldByCurrentThread() {
        return isHeldByThread(Answers.thread());
    }

    public int getHoldCount() {
        return (int) Keys.depth(client.locks, lock.key(), client.owner(Answers.thread()), mode);
    }

    public long remainTimeToLive() {
        return (Long) client.locks.call(lock.key(), "PTTL", lock.key());
    }

    /**
     * As {@code RedissonMultiLock} sets the lease once it has all of its locks, from any thread: of what this process
     * holds. A lease is never shortened.
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
        if (isReentrant) return with(lease, unit, thread).acquireAsync(wait);
        KeyLock own = with(lease, unit, thread);
        if (!PENDING.add(seat(thread)))
            throw new IllegalMonitorStateException(lock.key() + " is waited for by this thread, and is not reentrant");
        if (own.getHoldCount() > 0) { // granted since it was looked at
            PENDING.remove(seat(thread));
            throw new IllegalMonitorStateException(lock.key() + " is held by this thread, and is not reentrant");
        }
        var acquired = own.acquireAsync(wait);
        acquired.whenComplete((hold, failed) -> PENDING.remove(seat(thread)));
        return acquired;
    }

    private RFuture<Boolean> within(Duration wait, long lease, TimeUnit unit, long thread) {
        return Answers.future(wait(wait, lease, unit, thread), hold -> waited(thread, hold).isPresent(), OneLock::giveBack);
    }

    private RFuture<Void> forever(long lease, TimeUnit unit, long thread) {
        return Answers.future(wait(KeyLock.FOREVER, lease, unit, thread),
                hold -> waited(thread, hold).<Void>map(any -> null).orElse(null), OneLock::giveBack);
    }

    // Before the caller hears of it, who may lock again at once.
    private Optional<Hold> waited(long thread, Optional<Hold> hold) {
        if (!isReentrant) PENDING.remove(seat(thread));
        return hold;
    }

    private static void giveBack(Optional<Hold> hold) {
        hold.ifPresent(Hold::release);
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

    /** The token of the hold, whoever has it; null if the lock is free. */
    public Long getToken() {
        List<?> holders = Keys.holders(client.locks, lock.key(), mode);
        return holders.isEmpty() ? null : (Long) Keys.field(holders.get(0), "token");
    }

    private Long token(Optional<Hold> hold) {
        return hold.map(Hold::token).orElse(null);
    }

    public Long lockAndGetToken() {
        return renewed().acquire().token();
    }

    public Long lockAndGetToken(long lease, TimeUnit unit) {
        return with(lease, unit).acquire().token();
    }

    public Long tryLockAndGetToken() {
        return token(renewed().tryAcquire());
    }

    public Long tryLockAndGetToken(long wait, TimeUnit unit) throws InterruptedException {
        return token(renewed().acquire(waits(wait, unit)));
    }

    public Long tryLockAndGetToken(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return token(with(lease, unit).acquire(waits(wait, unit)));
    }

    private RFuture<Long> tokenWithin(Duration wait, long lease, TimeUnit unit) {
        long thread = Answers.thread();
        return Answers.future(wait(wait, lease, unit, thread), hold -> token(waited(thread, hold)), OneLock::giveBack);
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
