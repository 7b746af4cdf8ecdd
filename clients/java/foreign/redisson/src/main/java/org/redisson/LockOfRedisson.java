package org.redisson;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFuture;
import org.redisson.misc.CompletableFutureWrapper;
import rlock.KeyLock;
import rlock.Locks;

/** RLock over a KeyLock. An owner is a client and a thread, as Redisson has it; a lock without a lease is renewed. */
final class LockOfRedisson {
    private final Locks locks;
    private final KeyLock lock;
    private final String client;

    LockOfRedisson(Locks locks, KeyLock lock, String client, long watchdogMillis) {
        this.locks = locks;
        this.client = client;
        this.lock = lock.owner(() -> owner(Thread.currentThread().getId())).lease(Duration.ofMillis(watchdogMillis));
    }

    private String owner(long thread) {
        return client + ":" + thread;
    }

    // As Redisson has it: no lease, or -1, is renewed; another one is not.
    private KeyLock with(long lease, TimeUnit unit) {
        return lease <= 0 ? lock : lock.fixedLease(Duration.ofMillis(Math.max(1, unit.toMillis(lease))));
    }

    void lock() {
        lock.lock();
    }

    void lock(long lease, TimeUnit unit) {
        with(lease, unit).lock();
    }

    void lockInterruptibly() throws InterruptedException {
        lock.lockInterruptibly();
    }

    void lockInterruptibly(long lease, TimeUnit unit) throws InterruptedException {
        with(lease, unit).lockInterruptibly();
    }

    boolean tryLock() {
        return lock.tryLock();
    }

    boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return lock.tryLock(wait, unit);
    }

    boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return with(lease, unit).tryLock(wait, unit);
    }

    void unlock() {
        lock.unlock();
    }

    RFuture<Void> unlockAsync() {
        long thread = Thread.currentThread().getId();
        return unlockAsync(thread);
    }

    RFuture<Void> unlockAsync(long thread) {
        try {
            lock.owner(owner(thread)).unlock();
            return new CompletableFutureWrapper<>((Void) null);
        } catch (IllegalMonitorStateException notHeld) {
            return new CompletableFutureWrapper<>(notHeld);
        }
    }

    boolean forceUnlock() {
        return (Long) locks.call(lock.key(), "RLOCK.FORCE", lock.key(), mode()) > 0;
    }

    boolean delete() {
        return (Long) locks.call(lock.key(), "DEL", lock.key()) > 0;
    }

    // Who holds WRITE may hold READ too.
    boolean isLocked() {
        List<?> info = (List<?>) locks.call(lock.key(), "RLOCK.INFO", lock.key());
        for (Object holder : (List<?>) value(info, "holders"))
            if (text(value((List<?>) holder, "mode")).equals(mode().toLowerCase())) return true;
        return false;
    }

    private static Object value(List<?> map, String name) {
        for (int i = 0; i + 1 < map.size(); i += 2) if (text(map.get(i)).equals(name)) return map.get(i + 1);
        throw new IllegalStateException("no " + name + " in " + map);
    }

    private static String text(Object bytes) {
        return new String((byte[]) bytes, StandardCharsets.UTF_8);
    }

    boolean isHeldByThread(long thread) {
        return holds(thread) > 0;
    }

    boolean isHeldByCurrentThread() {
        return isHeldByThread(Thread.currentThread().getId());
    }

    int getHoldCount() {
        return (int) holds(Thread.currentThread().getId());
    }

    private long holds(long thread) {
        return (Long) locks.call(lock.key(), "RLOCK.HOLDS", lock.key(), owner(thread), mode());
    }

    private String mode() {
        return lock.toString().substring(0, lock.toString().indexOf(' '));
    }

    long remainTimeToLive() {
        return (Long) locks.call(lock.key(), "PTTL", lock.key());
    }

    String getName() {
        return lock.key();
    }

    @Override
    public String toString() {
        return lock.toString();
    }
}
