package rlock.redisson;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.function.ToLongFunction;
import rlock.AllLocks;
import rlock.Driver;
import rlock.KeyLock;

/** {@code getMultiLock}: several locks, acquired in one step. It waits for all of them, and holds none in the meantime. */
@SuppressWarnings("unused") // called by Answers
final class MultiLock implements Answers.Undoing, Answers.Ordered {
    private final Client client;
    private final AllLocks all;
    private final List<KeyLock> each;
    private final List<String> keys;

    MultiLock(Client client, AllLocks all, KeyLock... each) {
        this.client = client;
        Supplier<String> owner = () -> client.owner(Answers.thread());
        this.all = all.owner(owner);
        this.each = Arrays.stream(each).map(one -> one.owner(owner)).toList();
        this.keys = all.keys();
    }

    private AllLocks with(long lease, TimeUnit unit) {
        // One at a time: each may have been lost together with other locks, while another is still held.
        for (KeyLock one : each) Keys.dropLost(one::getHoldCount, one::isHeldByCurrentThread, one::unlock);
        return lease <= 0 ? all : all.fixedLease(Duration.ofMillis(Math.max(1, unit.toMillis(lease))));
    }

    private AllLocks renewed() {
        return with(-1, TimeUnit.MILLISECONDS);
    }

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
        CompletableFuture<?> before = all.getHoldCount() > 0 ? null : before("unlock", Answers.thread());
        if (before != null) Driver.await(before, Long.MAX_VALUE / 4);
        all.unlock();
    }

    @Override
    public boolean acquires(String method) {
        return method.equals("lockInterruptibly") || method.equals("tryLock");
    }

    @Override
    public void undo(String method, Object result) {
        if (acquires(method) && !Boolean.FALSE.equals(result)) unlock();
    }

    private record Seat(Client client, List<String> keys, long thread) {}

    @Override
    public void asked(long thread, CompletableFuture<?> future) {
        Pending.add(new Seat(client, keys, thread), future);
    }

    @Override
    public CompletableFuture<?> before(String method, long thread) {
        return method.equals("unlock") ? Pending.of(new Seat(client, keys, thread)) : null;
    }

    public java.util.concurrent.locks.Condition newCondition() {
        return all.newCondition();
    }

    /** Ends the holds of everybody who holds one of them. */
    public boolean forceUnlock() {
        boolean isEnded = keys.stream().filter(key -> (Long) client.locks.call(key, "RLOCK.FORCE", key) > 0).count() > 0;
        Keys.dropLost(all::getHoldCount, () -> false, all::unlock); // which this thread may lock anew
        return isEnded;
    }

    /** Whether one of them is locked. */
    public boolean isLocked() {
        return keys.stream().anyMatch(key -> !Keys.text(Keys.field(client.locks.call(key, "RLOCK.INFO", key), "mode")).equals("free"));
    }

    public boolean isHeldByThread(long thread) {
        return depth(client.owner(thread)) > 0;
    }

    public boolean isHeldByCurrentThread() {
        return isHeldByThread(Answers.thread());
    }

    public int getHoldCount() {
        return (int) depth(client.owner(Answers.thread()));
    }

    private long depth(String owner) {
        return least(key -> (Long) client.locks.call(key, "RLOCK.HOLDS", key, owner));
    }

    /** The remaining time of the lock that expires first; -2 if one is free. */
    public long remainTimeToLive() {
        return least(key -> (Long) client.locks.call(key, "PTTL", key));
    }

    private long least(ToLongFunction<String> of) {
        return keys.stream().mapToLong(of).min().orElseThrow();
    }

    public String getName() {
        return String.join(",", keys);
    }

    @Override
    public String toString() {
        return all.toString();
    }
}
