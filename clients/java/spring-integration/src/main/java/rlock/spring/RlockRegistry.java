package rlock.spring;

import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import rlock.KeyLock;
import rlock.LockLostException;
import rlock.Locks;

/**
 * Spring Integration's registry of locks. As with its other registries, each registry is its own owner: two of them
 * exclude each other, also within one thread. Nothing is cached, so nothing needs to be expired.
 */
public final class RlockRegistry implements ExpirableLockRegistry<DistributedLock>, RenewableLockRegistry<DistributedLock> {
    private static final AtomicInteger COUNT = new AtomicInteger();
    private final Locks locks;
    private final String prefix;
    private final Duration expireAfter;
    private final String client = "-r" + COUNT.incrementAndGet();

    /** With leases of a minute; keys are {@code registryKey:key}. */
    public RlockRegistry(Locks locks, String registryKey) {
        this(locks, registryKey, Duration.ofMinutes(1));
    }

    /** {@code expireAfter}: how long a lock outlives its process. While the process lives it is renewed. */
    public RlockRegistry(Locks locks, String registryKey, Duration expireAfter) {
        this.locks = locks;
        this.prefix = registryKey + ":";
        this.expireAfter = expireAfter;
    }

    @Override
    public DistributedLock obtain(Object lockKey) {
        if (!(lockKey instanceof String key)) throw new IllegalArgumentException("the key is a String, not " + lockKey);
        return new RegistryLock(this, key);
    }

    private KeyLock lock(String key) {
        return locks.lock(prefix + key).owner(() -> locks.threadOwner() + client).lease(expireAfter);
    }

    /** Does nothing: locks that are not held are not kept. */
    @Override
    public void expireUnusedOlderThan(long age) {}

    @Override
    public void renewLock(Object lockKey) {
        renewLock(lockKey, expireAfter);
    }

    @Override
    public void renewLock(Object lockKey, Duration ttl) {
        try {
            lock((String) lockKey).renew(ttl);
        } catch (IllegalMonitorStateException notHeld) {
            throw new IllegalStateException("Could not renew the lock at " + lockKey, notHeld);
        }
    }

    /** A lock; with its own time to live it is not renewed. Locks of the same registry and key are equal. */
    private record RegistryLock(RlockRegistry registry, String key) implements DistributedLock {
        private KeyLock inner() {
            return registry.lock(key);
        }

        private interface Attempt<E extends Exception> {
            boolean by(KeyLock lock) throws E;
        }

        // What was lost is dropped, and acquired anew; its own unlock will find nothing.
        private <E extends Exception> boolean anew(KeyLock lock, Attempt<E> attempt) throws E {
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

        private static boolean locked(KeyLock lock) {
            lock.lock();
            return true;
        }

        @Override
        public void lock() {
            anew(inner(), RegistryLock::locked);
        }

        @Override
        public void lock(Duration ttl) {
            anew(inner().fixedLease(ttl), RegistryLock::locked);
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

        @Override
        public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
            return tryLock(inner().fixedLease(ttl), waitTime);
        }

        private boolean tryLock(KeyLock inner, Duration wait) throws InterruptedException {
            return anew(inner, lock -> lock.tryLock(wait.toMillis(), TimeUnit.MILLISECONDS));
        }

        // The exceptions of Spring's other registries, for who catches them.
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
    }
}
