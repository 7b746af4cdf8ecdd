package rlock.spring;

import java.time.Duration;
import java.util.concurrent.TimeoutException;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import org.springframework.integration.util.CheckedCallable;
import org.springframework.integration.util.CheckedRunnable;
import rlock.Locks;

/**
 * Spring Integration's registry of locks, from version 7 on. As with its other registries, each registry is its own owner:
 * two of them exclude each other, also within one thread. Nothing is cached, so nothing needs to be expired.
 */
public final class RlockRegistry implements ExpirableLockRegistry<DistributedLock>, RenewableLockRegistry<DistributedLock> {
    private final Registry registry;

    /** With leases of a minute; keys are {@code registryKey:key}. */
    public RlockRegistry(Locks locks, String registryKey) {
        this(locks, registryKey, Duration.ofMinutes(1));
    }

    /** {@code expireAfter}: how long a lock outlives its process. While the process lives, the lock is renewed. */
    public RlockRegistry(Locks locks, String registryKey, Duration expireAfter) {
        registry = new Registry(locks, registryKey, expireAfter);
    }

    @Override
    public DistributedLock obtain(Object lockKey) {
        return new TimedLock(registry, Registry.key(lockKey));
    }

    /** Does nothing: only locks that are held are kept. */
    @Override
    public void expireUnusedOlderThan(long age) {}

    @Override
    public <E extends Throwable> void executeLocked(Object lockKey, CheckedRunnable<E> body) throws E, InterruptedException {
        executeLocked(lockKey, (CheckedCallable<Void, E>) () -> {
            body.run();
            return null;
        });
    }

    @Override
    public <T, E extends Throwable> T executeLocked(Object lockKey, CheckedCallable<T, E> body) throws E, InterruptedException {
        return Registry.under(Registry.locked(obtain(lockKey)), body::call);
    }

    @Override
    public <E extends Throwable> void executeLocked(Object lockKey, Duration wait, CheckedRunnable<E> body)
            throws E, InterruptedException, TimeoutException {
        executeLocked(lockKey, wait, (CheckedCallable<Void, E>) () -> {
            body.run();
            return null;
        });
    }

    @Override
    public <T, E extends Throwable> T executeLocked(Object lockKey, Duration wait, CheckedCallable<T, E> body)
            throws E, InterruptedException, TimeoutException {
        return Registry.under(Registry.locked(obtain(lockKey), wait), body::call);
    }

    @Override
    public void renewLock(Object lockKey) {
        renewLock(lockKey, registry.expireAfter);
    }

    @Override
    public void renewLock(Object lockKey, Duration ttl) {
        registry.renew(lockKey, ttl);
    }

    /** A lock with its own time to live, which is not renewed. */
    private static final class TimedLock extends RegistryLock implements DistributedLock {
        TimedLock(Registry registry, String key) {
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
