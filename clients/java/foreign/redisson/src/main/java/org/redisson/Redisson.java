package org.redisson;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.UUID;
import org.redisson.api.RKeys;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import rlock.KeyLock;
import rlock.Locks;
import rlock.jedis.JedisLocks;

/** Stands where Redisson's own class stood: makes clients whose locks are this package's. */
public class Redisson {
    private final Config config;
    private final Locks locks;
    private final String id = UUID.randomUUID().toString();

    private Redisson(Config config, Locks locks) {
        this.config = config;
        this.locks = locks;
    }

    public static RedissonClient create(Config config) {
        return proxy(RedissonClient.class, new Redisson(config, JedisLocks.standalone("127.0.0.1", port("PORT")).open()));
    }

    static RedissonClient createCluster(Config config) {
        var servers = java.util.Set.of(new HostAndPort("127.0.0.1", port("CLUSTER_PORT")));
        return proxy(RedissonClient.class, new Redisson(config, JedisLocks.cluster(servers, DefaultJedisClientConfig.builder().build()).open()));
    }

    static int port(String name) {
        return Integer.parseInt(System.getenv(name));
    }

    /** What of the interface the handler has, by name and types; the rest is refused. */
    static <T> T proxy(Class<T> type, Object handler) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (self, method, arguments) -> {
            try {
                var found = handler.getClass().getDeclaredMethod(method.getName(), method.getParameterTypes());
                found.setAccessible(true);
                return found.invoke(handler, arguments);
            } catch (NoSuchMethodException none) {
                throw new UnsupportedOperationException(method.toString());
            } catch (InvocationTargetException thrown) {
                throw thrown.getCause();
            }
        }));
    }

    // --- what the tests call of RedissonClient

    RLock getLock(String name) {
        return lock(locks.lock(name));
    }

    RLock getFairLock(String name) {
        return lock(locks.lock(name));
    }

    RReadWriteLock getReadWriteLock(String name) {
        return proxy(RReadWriteLock.class, new ReadWrite(name));
    }

    private RLock lock(KeyLock lock) {
        return proxy(RLock.class, new LockOfRedisson(locks, lock, id, config.getLockWatchdogTimeout()));
    }

    private final class ReadWrite {
        private final String name;

        ReadWrite(String name) {
            this.name = name;
        }

        RLock readLock() {
            return lock(locks.readLock(name));
        }

        RLock writeLock() {
            return lock(locks.lock(name));
        }
    }

    Config getConfig() {
        return config;
    }

    RKeys getKeys() {
        return proxy(RKeys.class, new Object() {
            void flushall() {
                locks.call("any", "FLUSHALL");
            }

            long count() {
                return (Long) locks.call("any", "DBSIZE");
            }
        });
    }

    void shutdown() {
        locks.close();
    }

    /** For tests of the inside of Redisson: there is none here. */
    public org.redisson.command.CommandAsyncExecutor getCommandExecutor() {
        throw new UnsupportedOperationException("the inside of Redisson");
    }
}
