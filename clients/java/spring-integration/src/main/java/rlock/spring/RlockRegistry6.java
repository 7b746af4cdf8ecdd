package rlock.spring;

import java.time.Duration;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import org.springframework.integration.util.CheckedCallable;
import org.springframework.integration.util.CheckedRunnable;
import rlock.Locks;

/** {@link RlockRegistry} for Spring Integration 6, whose locks have no time to live of their own. */
public final class RlockRegistry6 implements ExpirableLockRegistry<Lock>, RenewableLockRegistry<Lock> {
    private final Registry registry;

    /** With leases of a minute; keys are {@code registryKey:key}. */
    public RlockRegistry6(Locks locks, String registryKey) {
        this(locks, registryKey, Duration.ofMinutes(1));
    }

    /** {@code expireAfter}: how long a lock outlives its process. While the process lives, the lock is renewed. */
    public RlockRegistry6(Locks locks, String registryKey, Duration expireAfter) {
        registry = new Registry(locks, registryKey, expireAfter);
    }

    @Override
    public Lock obtain(Object lockKey) {
        return new RegistryLock(registry, Registry.key(lockKey));
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

    /** Moves the deadline of this thread's lock to a later time, never to an earlier one. */
    @Override
    public void renewLock(Object lockKey, Duration ttl) {
        registry.renew(lockKey, ttl);
    }
}
