package rlock.spring;

import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import rlock.KeyLock;
import rlock.LockLostException;

/** A lock of a registry. Locks of the same registry and key are equal. */
class RegistryLock implements Lock {
    private final Registry<?> registry;
    private final String key;

    RegistryLock(Registry<?> registry, String key) {
        this.registry = registry;
        this.key = key;
    }

    final KeyLock inner() {
        return registry.lock(key);
    }

    interface Attempt<E extends Exception> {
        boolean by(KeyLock lock) throws E;
    }

    // A lost hold is dropped, and the lock is acquired again; the unlock of the lost hold will find nothing.
    static <E extends Exception> boolean anew(KeyLock lock, Attempt<E> attempt) throws E {
        try {
            return attempt.by(lock);
        } catch (LockLostException lost) {
            while (lock.getHoldCount() > 0) {
                try {
                    lock.unlock();
                } catch (LockLostException dropped) {
                    // The next level, then.
                }
            }
            return attempt.by(lock);
        }
    }

    static boolean locked(KeyLock lock) {
        lock.lock();
        return true;
    }

    @Override
    public void lock() {
        anew(inner(), RegistryLock::locked);
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        anew(inner(), lock -> {
            lock.lockInterruptibly();
            return true;
        });
    }

    @Override
    public boolean tryLock() {
        return anew(inner(), KeyLock::tryLock);
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return anew(inner(), lock -> lock.tryLock(time, unit));
    }

    static boolean tryLock(KeyLock inner, Duration wait) throws InterruptedException {
        return anew(inner, lock -> lock.tryLock(wait.toMillis(), TimeUnit.MILLISECONDS));
    }

    // The exceptions of Spring's other registries, for code that catches them.
    @Override
    public void unlock() {
        try {
            inner().unlock();
        } catch (LockLostException lost) {
            var broken = new ConcurrentModificationException(
                    "Lock was released in the store due to expiration. " + lost.getMessage());
            broken.initCause(lost);
            throw broken;
        } catch (IllegalMonitorStateException notHeld) {
            throw new IllegalStateException("You do not own lock at " + inner().key(), notHeld);
        }
    }

    @Override
    public Condition newCondition() {
        return inner().newCondition();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof RegistryLock same && registry == same.registry && key.equals(same.key);
    }

    @Override
    public int hashCode() {
        return key.hashCode();
    }

    @Override
    public String toString() {
        return "lock " + key;
    }
}
