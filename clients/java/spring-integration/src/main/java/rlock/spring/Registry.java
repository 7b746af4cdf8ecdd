package rlock.spring;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import rlock.KeyLock;
import rlock.Locks;

/** What the registries for all versions of Spring Integration have in common. Each registry is its own owner. */
final class Registry {
    private static final AtomicInteger COUNT = new AtomicInteger();
    final Duration expireAfter;
    private final Locks locks;
    private final String prefix;
    private final String client = "-r" + COUNT.incrementAndGet();

    Registry(Locks locks, String registryKey, Duration expireAfter) {
        this.locks = locks;
        this.prefix = registryKey + ":";
        this.expireAfter = expireAfter;
    }

    KeyLock lock(String key) {
        return locks.lock(prefix + key).owner(() -> locks.threadOwner() + client).lease(expireAfter);
    }

    static String key(Object lockKey) {
        if (lockKey instanceof String key) return key;
        throw new IllegalArgumentException("the key is a String, not " + lockKey);
    }

    interface Body<T, E extends Throwable> {
        T run() throws E;
    }

    /** Runs the body under that lock. The body's own exception is more important than the loss of the lock. */
    static <T, E extends Throwable> T under(Lock lock, Body<T, E> body) throws E {
        Throwable failure = null;
        try {
            return body.run();
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

    static <L extends Lock> L locked(L lock) throws InterruptedException {
        lock.lockInterruptibly();
        return lock;
    }

    static <L extends Lock> L locked(L lock, Duration wait) throws InterruptedException, TimeoutException {
        if (lock.tryLock(wait.toMillis(), TimeUnit.MILLISECONDS)) return lock;
        throw new TimeoutException("The lock [%s] was not acquired in time: %s".formatted(lock, wait));
    }

    void renew(Object lockKey, Duration ttl) {
        try {
            lock((String) lockKey).renew(ttl);
        } catch (IllegalMonitorStateException notHeld) {
            throw new IllegalStateException("Could not renew the lock at " + lockKey, notHeld);
        }
    }
}
