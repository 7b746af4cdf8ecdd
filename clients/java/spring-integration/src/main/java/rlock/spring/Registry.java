package rlock.spring;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import org.springframework.integration.util.CheckedCallable;
import org.springframework.integration.util.CheckedRunnable;
import rlock.KeyLock;
import rlock.Locks;

/** The registry for all versions of Spring Integration, apart from its locks. Each registry is its own owner. */
abstract class Registry<L extends Lock> implements ExpirableLockRegistry<L>, RenewableLockRegistry<L> {
    private static final AtomicInteger COUNT = new AtomicInteger();
    private final Duration expireAfter;
    private final Locks locks;
    private final String prefix;
    private final String client = "-r" + COUNT.incrementAndGet();

    Registry(Locks locks, String registryKey, Duration expireAfter) {
        this.locks = locks;
        this.prefix = registryKey + ":";
        this.expireAfter = expireAfter;
    }

    final KeyLock lock(String key) {
        return locks.lock(prefix + key).owner(() -> locks.threadOwner() + client).lease(expireAfter);
    }

    static String key(Object lockKey) {
        if (lockKey instanceof String key) return key;
        throw new IllegalArgumentException("the key is a String, not " + lockKey);
    }

    /** Does nothing: only locks that are held are kept. */
    @Override
    public void expireUnusedOlderThan(long age) {}

    @Override
    public <E extends Throwable> void executeLocked(Object lockKey, CheckedRunnable<E> body) throws E, InterruptedException {
        executeLocked(lockKey, called(body));
    }

    @Override
    public <T, E extends Throwable> T executeLocked(Object lockKey, CheckedCallable<T, E> body) throws E, InterruptedException {
        L lock = obtain(lockKey);
        lock.lockInterruptibly();
        return under(lock, body);
    }

    @Override
    public <E extends Throwable> void executeLocked(Object lockKey, Duration wait, CheckedRunnable<E> body)
            throws E, InterruptedException, TimeoutException {
        executeLocked(lockKey, wait, called(body));
    }

    @Override
    public <T, E extends Throwable> T executeLocked(Object lockKey, Duration wait, CheckedCallable<T, E> body)
            throws E, InterruptedException, TimeoutException {
        L lock = obtain(lockKey);
        if (!lock.tryLock(wait.toMillis(), TimeUnit.MILLISECONDS))
            throw new TimeoutException("The lock [%s] was not acquired in time: %s".formatted(lock, wait));
        return under(lock, body);
    }

    private static <E extends Throwable> CheckedCallable<Void, E> called(CheckedRunnable<E> body) {
        return () -> {
            body.run();
            return null;
        };
    }

    /** Calls the body, and unlocks. The body's own exception is more important than the loss of the lock. */
    private static <T, E extends Throwable> T under(Lock lock, CheckedCallable<T, E> body) throws E {
        Throwable failure = null;
        try {
            return body.call();
        } catch (Throwable failed) {
            failure = failed;
            throw failed;
        } finally {
            unlock(lock, failure);
        }
    }

    private static void unlock(Lock lock, Throwable failure) {
        try {
            lock.unlock();
        } catch (RuntimeException broken) {
            if (failure == null) throw broken;
            failure.addSuppressed(broken);
        }
    }

    @Override
    public void renewLock(Object lockKey) {
        renewLock(lockKey, expireAfter);
    }

    /** Moves the deadline of this thread's lock to a later time, never to an earlier one. */
    @Override
    public void renewLock(Object lockKey, Duration ttl) {
        try {
            lock((String) lockKey).renew(ttl);
        } catch (IllegalMonitorStateException notHeld) {
            throw new IllegalStateException("Could not renew the lock at " + lockKey, notHeld);
        }
    }
}
