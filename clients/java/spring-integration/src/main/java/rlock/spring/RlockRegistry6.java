package rlock.spring;

import java.time.Duration;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import rlock.Locks;

/** {@link RlockRegistry} for Spring Integration 6, whose locks have no time to live of their own. */
public final class RlockRegistry6 implements ExpirableLockRegistry<Lock>, RenewableLockRegistry<Lock> {
    private final Registry registry;

    /** With leases of a minute; keys are {@code registryKey:key}. */
    public RlockRegistry6(Locks locks, String registryKey) {
        this(locks, registryKey, Duration.ofMinutes(1));
    }

    /** {@code expireAfter}: how long a lock outlives its process. While the process lives it is renewed. */
    public RlockRegistry6(Locks locks, String registryKey, Duration expireAfter) {
        registry = new Registry(locks, registryKey, expireAfter);
    }

    @Override
    public Lock obtain(Object lockKey) {
        return new RegistryLock(registry, Registry.key(lockKey));
    }

    /** Does nothing: locks that are not held are not kept. */
    @Override
    public void expireUnusedOlderThan(long age) {}

    @Override
    public void renewLock(Object lockKey) {
        renewLock(lockKey, registry.expireAfter);
    }

    /** Moves the deadline of this thread's lock; never earlier. */
    @Override
    public void renewLock(Object lockKey, Duration ttl) {
        registry.renew(lockKey, ttl);
    }
}
