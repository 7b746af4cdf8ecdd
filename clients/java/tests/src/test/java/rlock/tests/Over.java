package rlock.tests;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import rlock.Locks;
import rlock.jedis.JedisLocks;
import rlock.lettuce.LettuceLocks;

/** The clients that the package works over; every test runs with each. */
enum Over {
    JEDIS {
        @Override
        Session open(String host, int port, UnaryOperator<Locks.Builder> set) {
            return new Session(set.apply(JedisLocks.standalone(host, port)).open(), () -> {});
        }

        @Override
        Session cluster(Integer... ports) {
            var servers = Stream.of(ports).map(port -> new HostAndPort("127.0.0.1", port)).toList();
            return new Session(JedisLocks.cluster(servers, DefaultJedisClientConfig.builder().build()).open(), () -> {});
        }

        @Override
        Session as(int port, String user, String password, String prefix) {
            var config = DefaultJedisClientConfig.builder().user(user).password(password).build();
            return new Session(JedisLocks.standalone(new HostAndPort("127.0.0.1", port), config).ownerPrefix(prefix).open(), () -> {});
        }
    },
    LETTUCE {
        @Override
        Session open(String host, int port, UnaryOperator<Locks.Builder> set) {
            return open(RedisURI.create(host, port), set);
        }

        private Session open(RedisURI uri, UnaryOperator<Locks.Builder> set) {
            RedisClient client = RedisClient.create(uri);
            return new Session(set.apply(LettuceLocks.of(client, uri)).open(), client::shutdown);
        }

        @Override
        Session cluster(Integer... ports) {
            List<RedisURI> servers = Stream.of(ports).map(port -> RedisURI.create("127.0.0.1", port)).toList();
            RedisClusterClient client = RedisClusterClient.create(servers);
            return new Session(LettuceLocks.cluster(client, servers).open(), client::shutdown);
        }

        @Override
        Session as(int port, String user, String password, String prefix) {
            RedisURI uri = RedisURI.builder().withHost("127.0.0.1").withPort(port).withAuthentication(user, password.toCharArray()).build();
            return open(uri, builder -> builder.ownerPrefix(prefix));
        }
    };

    /** Locks, and what has to be closed after them. */
    record Session(Locks locks, Runnable client) implements AutoCloseable {
        @Override
        public void close() {
            locks.close();
            client.run();
        }
    }

    Session open(int port) {
        return open(port, same -> same);
    }

    Session open(int port, UnaryOperator<Locks.Builder> set) {
        return open("127.0.0.1", port, set);
    }

    abstract Session open(String host, int port, UnaryOperator<Locks.Builder> set);

    abstract Session cluster(Integer... ports);

    /** As a user with an ACL. */
    abstract Session as(int port, String user, String password, String prefix);
}
