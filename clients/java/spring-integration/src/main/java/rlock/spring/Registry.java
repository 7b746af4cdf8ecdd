package rlock.spring;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;
import rlock.KeyLock;
import rlock.Locks;

/** What the registries of all versions of Spring Integration have in common. Each is its own owner. */
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

    void renew(Object lockKey, Duration ttl) {
        try {
            lock((String) lockKey).renew(ttl);
        } catch (IllegalMonitorStateException notHeld) {
            throw new IllegalStateException("Could not renew the lock at " + lockKey, notHeld);
        }
    }
}
