package rlock.redisson;

import java.net.URI;
import java.time.Duration;
import java.util.List;
import org.redisson.client.DefaultCredentialsResolver;
import org.redisson.config.BaseConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.DefaultNameMapper;
import org.redisson.config.DefaultNatMapper;
import org.redisson.config.NameMapper;
import org.redisson.config.NatMapper;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import rlock.Locks;
import rlock.jedis.JedisLocks;

/** The connections of the locks, as Redisson's configuration has them. */
@SuppressWarnings("deprecation") // older configurations set it there
final class Servers {
    /** As many connections may wait as Redisson's pools have by default. */
    private static final int WAITING = 64;

    private Servers() {}

    static Locks locks(Config config) {
        return builder(config).lease(Duration.ofMillis(config.getLockWatchdogTimeout())).waiting(WAITING).open();
    }

    private static Locks.Builder builder(Config config) {
        if (config.isSingleConfig()) {
            SingleServerConfig one = config.useSingleServer();
            return JedisLocks.standalone(addresses(List.of(one.getAddress())).get(0), client(config, one, one.getAddress(), one.getDatabase()));
        }
        if (config.isSentinelConfig()) {
            SentinelServersConfig sentinels = config.useSentinelServers();
            String first = sentinels.getSentinelAddresses().get(0);
            refuse(sentinels.getNatMapper());
            JedisClientConfig ofSentinels = DefaultJedisClientConfig.builder().ssl(isSecure(first))
                    .user(sentinels.getSentinelUsername()).password(sentinels.getSentinelPassword()).build();
            return JedisLocks.sentinel(sentinels.getMasterName(), addresses(sentinels.getSentinelAddresses()),
                    client(config, sentinels, first, sentinels.getDatabase()), ofSentinels);
        }
        if (config.isClusterConfig()) {
            ClusterServersConfig cluster = config.useClusterServers();
            refuse(cluster.getNatMapper());
            return JedisLocks.cluster(addresses(cluster.getNodeAddresses()), client(config, cluster, cluster.getNodeAddresses().get(0), 0));
        }
        throw refused("neither a single server, nor Sentinels, nor a Cluster");
    }

    private static JedisClientConfig client(Config config, BaseConfig<?> servers, String address, int database) {
        if (config.getSslTruststore() != null || config.getSslKeystore() != null || config.getSslTrustManagerFactory() != null
                || servers.getSslTruststore() != null || servers.getSslKeystore() != null) throw refused("key stores of its own");
        if (!(config.getCredentialsResolver() instanceof DefaultCredentialsResolver)) throw refused("a CredentialsResolver");
        String user = servers.getUsername() != null ? servers.getUsername() : config.getUsername();
        String password = servers.getPassword() != null ? servers.getPassword() : config.getPassword();
        return DefaultJedisClientConfig.builder().user(user).password(password).database(database)
                .ssl(isSecure(address)).clientName(servers.getClientName()).build();
    }

    private static void refuse(NatMapper mapper) {
        if (!(mapper instanceof DefaultNatMapper)) throw refused("a NatMapper");
    }

    private static IllegalArgumentException refused(String what) {
        return new IllegalArgumentException("the configuration has " + what + ": make the Locks yourself, and use RlockRedisson.over");
    }

    private static boolean isSecure(String address) {
        return address.startsWith("rediss:") || address.startsWith("valkeys:");
    }

    private static List<HostAndPort> addresses(List<String> addresses) {
        return addresses.stream().map(URI::create).map(uri -> new HostAndPort(uri.getHost(), uri.getPort() < 0 ? 6379 : uri.getPort())).toList();
    }

    /** How names become keys. */
    static NameMapper names(Config config) {
        if (!(config.getNameMapper() instanceof DefaultNameMapper)) return config.getNameMapper();
        return config.isSingleConfig() ? config.useSingleServer().getNameMapper()
                : config.isSentinelConfig() ? config.useSentinelServers().getNameMapper()
                : config.isClusterConfig() ? config.useClusterServers().getNameMapper() : config.getNameMapper();
    }
}
