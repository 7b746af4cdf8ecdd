package rlock.spring;

import java.time.Duration;
import java.util.concurrent.locks.Lock;
import rlock.Locks;

/** {@link RlockRegistry} for Spring Integration 6, whose locks have no time to live of their own. */
public final class RlockRegistry6 extends Registry<Lock> {
    /** With leases of a minute; keys are {@code registryKey:key}. */
    public RlockRegistry6(Locks locks, String registryKey) {
        this(locks, registryKey, Duration.ofMinutes(1));
    }

    /** {@code expireAfter}: how long a lock outlives its process. While the process lives, the lock is renewed. */
    public RlockRegistry6(Locks locks, String registryKey, Duration expireAfter) {
        super(locks, registryKey, expireAfter);
    }

    @Override
    public Lock obtain(Object lockKey) {
        return new RegistryLock(this, key(lockKey));
    }
}
