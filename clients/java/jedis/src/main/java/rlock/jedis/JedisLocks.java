package rlock.jedis;

import java.net.URI;
import java.util.Collection;
import java.util.List;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.util.JedisURIHelper;
import rlock.Driver.Address;
import rlock.Locks;

/**
 * Locks over Jedis: {@code Locks locks = JedisLocks.standalone(new HostAndPort("127.0.0.1", 6379), config).open()}. The
 * package opens its own connections, with your configuration; your pools are not used.
 */
public final class JedisLocks {
    private JedisLocks() {}

    /** One server, without a password. */
    public static Locks.Builder standalone(String host, int port) {
        return standalone(new HostAndPort(host, port), DefaultJedisClientConfig.builder().build());
    }

    /**
     * One server, given as {@code redis://user:password@host:6379/0}, or {@code rediss://} for TLS.
     *
     * @throws IllegalArgumentException if it is none of these
     */
    public static Locks.Builder standalone(URI uri) {
        if (!JedisURIHelper.isValid(uri)) // not with its password
            throw new IllegalArgumentException("the URL is not redis://HOST:PORT or rediss://HOST:PORT");
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder().user(JedisURIHelper.getUser(uri))
                .password(JedisURIHelper.getPassword(uri)).database(JedisURIHelper.getDBIndex(uri))
                .protocol(JedisURIHelper.getRedisProtocol(uri)).ssl(JedisURIHelper.isRedisSSLScheme(uri)).build();
        return standalone(JedisURIHelper.getHostAndPort(uri), config);
    }

    /** One server. */
    public static Locks.Builder standalone(HostAndPort server, JedisClientConfig config) {
        return Locks.Builder.standalone(new JedisDriver(config, config), address(server));
    }

    /** The primary that Sentinels watch under the name {@code service}. */
    public static Locks.Builder sentinel(
            String service, Collection<HostAndPort> sentinels, JedisClientConfig config, JedisClientConfig ofSentinels) {
        return Locks.Builder.sentinel(new JedisDriver(config, ofSentinels), service, addresses(sentinels));
    }

    /** A Cluster, with some of its servers. */
    public static Locks.Builder cluster(Collection<HostAndPort> servers, JedisClientConfig config) {
        return Locks.Builder.cluster(new JedisDriver(config, config), addresses(servers));
    }

    private static List<Address> addresses(Collection<HostAndPort> servers) {
        return servers.stream().map(JedisLocks::address).toList();
    }

    private static Address address(HostAndPort server) {
        return new Address(server.getHost(), server.getPort());
    }
}
