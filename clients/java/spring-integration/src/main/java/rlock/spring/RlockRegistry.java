package rlock.spring;

import java.time.Duration;
import org.springframework.integration.support.locks.DistributedLock;
import rlock.Locks;

/**
 * Spring Integration's registry of locks, from version 7 on. As with its other registries, each registry is its own owner:
 * two of them exclude each other, also within one thread. Nothing is cached, so nothing needs to be expired.
 */
public final class RlockRegistry extends Registry<DistributedLock> {
    /** With leases of a minute; keys are {@code registryKey:key}. */
    public RlockRegistry(Locks locks, String registryKey) {
        this(locks, registryKey, Duration.ofMinutes(1));
    }

    /** {@code expireAfter}: how long a lock outlives its process. While the process lives, the lock is renewed. */
    public RlockRegistry(Locks locks, String registryKey, Duration expireAfter) {
        super(locks, registryKey, expireAfter);
    }

    @Override
    public DistributedLock obtain(Object lockKey) {
        return new TimedLock(this, key(lockKey));
    }

    /** A lock with its own time to live, which is not renewed. */
    private static final class TimedLock extends RegistryLock implements DistributedLock {
        TimedLock(RlockRegistry registry, String key) {
            super(registry, key);
        }

        @Override
        public void lock(Duration ttl) {
            anew(inner().fixedLease(ttl), RegistryLock::locked);
        }

        @Override
        public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
            return tryLock(inner().fixedLease(ttl), waitTime);
        }
    }
}
