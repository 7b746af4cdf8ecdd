package org.springframework.integration.redis.util;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.integration.redis.RedisContainerTest;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import org.springframework.scheduling.TaskScheduler;
import rlock.Locks;
import rlock.jedis.JedisLocks;
import rlock.spring.RlockRegistry;

/** Replaces Spring's own registry. Without a task scheduler, Spring's locks are not renewed, so neither are these. */
public final class RedisLockRegistry implements ExpirableLockRegistry<DistributedLock>, RenewableLockRegistry<DistributedLock> {
    public enum RedisLockType {
        SPIN_LOCK,
        PUB_SUB_LOCK
    }

    private final String registryKey;
    private final Map<String, DistributedLock> locks = new ConcurrentHashMap<>(); // the tests look at it
    private final Locks service = JedisLocks.standalone("127.0.0.1", RedisContainerTest.port()).open();
    private final RlockRegistry registry;
    private final Duration expireAfter;
    private boolean renewed;

    public RedisLockRegistry(RedisConnectionFactory unused, String registryKey) {
        this(unused, registryKey, Duration.ofMinutes(1));
    }

    public RedisLockRegistry(RedisConnectionFactory unused, String registryKey, long expireAfter) {
        this(unused, registryKey, Duration.ofMillis(expireAfter));
    }

    public RedisLockRegistry(RedisConnectionFactory unused, String registryKey, Duration expireAfter) {
        this.registryKey = registryKey;
        this.expireAfter = expireAfter;
        this.registry = new RlockRegistry(service, registryKey, expireAfter);
    }

    public void setExecutor(Executor unused) {}

    @Override
    public void setRenewalTaskScheduler(TaskScheduler unused) {
        renewed = true;
    }

    public void setCacheCapacity(int unused) {}

    public void setIdleBetweenTries(Duration unused) {}

    public void setRedisLockType(RedisLockType unused) {}

    @Override
    public DistributedLock obtain(Object lockKey) {
        return locks.computeIfAbsent((String) lockKey, key -> {
            DistributedLock lock = registry.obtain(key);
            return renewed ? lock : new NotRenewed(lock, expireAfter);
        });
    }

    @Override
    public void expireUnusedOlderThan(long age) {
        registry.expireUnusedOlderThan(age);
        locks.keySet().removeIf(key -> service.call("any", "EXISTS", registryKey + ":" + key).equals(0L));
    }

    @Override
    public void renewLock(Object lockKey) {
        registry.renewLock(lockKey);
    }

    @Override
    public void renewLock(Object lockKey, Duration ttl) {
        registry.renewLock(lockKey, ttl);
    }

    public void destroy() {
        service.close();
    }

    private record NotRenewed(DistributedLock inner, Duration lease) implements DistributedLock {
        @Override
        public void lock() {
            inner.lock(lease);
        }

        @Override
        public void lock(Duration ttl) {
            inner.lock(ttl);
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            while (!inner.tryLock(Duration.ofDays(1), lease)) continue;
        }

        @Override
        public boolean tryLock() {
            try {
                return inner.tryLock(Duration.ZERO, lease);
            } catch (InterruptedException interrupt) {
                Thread.currentThread().interrupt();
                return false;
            }
        }

        @Override
        public boolean tryLock(long time, java.util.concurrent.TimeUnit unit) throws InterruptedException {
            return inner.tryLock(Duration.of(time, unit.toChronoUnit()), lease);
        }

        @Override
        public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
            return inner.tryLock(waitTime, ttl);
        }

        @Override
        public void unlock() {
            inner.unlock();
        }

        @Override
        public java.util.concurrent.locks.Condition newCondition() {
            return inner.newCondition();
        }
    }
}
