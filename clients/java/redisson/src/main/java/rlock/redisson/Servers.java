package rlock.redisson;

import java.net.URI;
import java.net.URISyntaxException;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import javax.net.ssl.SSLParameters;
import org.redisson.client.DefaultCredentialsResolver;
import org.redisson.config.BaseConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.CredentialsResolver;
import org.redisson.config.DefaultNameMapper;
import org.redisson.config.DefaultNatMapper;
import org.redisson.config.NameMapper;
import org.redisson.config.NatMapper;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;
import org.redisson.config.SslVerificationMode;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import rlock.Locks;
import rlock.jedis.JedisLocks;

/** The connections of the locks, according to Redisson's configuration. */
@SuppressWarnings("deprecation") // older configurations set it there
final class Servers {
    private static final Pattern ADDRESS = Pattern.compile("(\\[[^]]+]|[^:\\[\\]]+)(?::([0-9]{1,5}))?");

    private Servers() {}

    static Locks locks(Config config) {
        return builder(config).lease(Duration.ofMillis(config.getLockWatchdogTimeout())).open();
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
            JedisClientConfig ofSentinels = DefaultJedisClientConfig.builder().ssl(isSecure(first)).sslParameters(parameters(config, sentinels))
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
        refuse("a key store or trust store", config.getSslTruststore(), config.getSslKeystore(), servers.getSslTruststore(), servers.getSslKeystore());
        refuse("an sslTrustManagerFactory", config.getSslTrustManagerFactory(), servers.getSslTrustManagerFactory());
        refuse("an sslKeyManagerFactory", config.getSslKeyManagerFactory(), servers.getSslKeyManagerFactory());
        refuse("sslCiphers", config.getSslCiphers(), servers.getSslCiphers());
        refuse("sslProtocols", config.getSslProtocols(), servers.getSslProtocols());
        if (mode(config, servers) == SslVerificationMode.NONE) throw refused("sslVerificationMode NONE");
        refuse("a CredentialsResolver", notDefault(config.getCredentialsResolver()), notDefault(servers.getCredentialsResolver()));
        String user = servers.getUsername() != null ? servers.getUsername() : config.getUsername();
        String password = servers.getPassword() != null ? servers.getPassword() : config.getPassword();
        return DefaultJedisClientConfig.builder().user(user).password(password).database(database)
                .ssl(isSecure(address)).sslParameters(parameters(config, servers)).clientName(servers.getClientName()).build();
    }

    /** Older configurations set this mode for the server: as in Redisson, it applies unless the configuration sets one. */
    private static SslVerificationMode mode(Config config, BaseConfig<?> servers) {
        SslVerificationMode mode = config.getSslVerificationMode();
        return mode == SslVerificationMode.STRICT ? servers.getSslVerificationMode() : mode;
    }

    /** As in Redisson. By default, Jedis 8 verifies that a certificate is that of the host, and Jedis 7 does not. */
    private static SSLParameters parameters(Config config, BaseConfig<?> servers) {
        SSLParameters parameters = new SSLParameters();
        if (mode(config, servers) == SslVerificationMode.STRICT) parameters.setEndpointIdentificationAlgorithm("HTTPS");
        return parameters;
    }

    private static CredentialsResolver notDefault(CredentialsResolver resolver) {
        return resolver instanceof DefaultCredentialsResolver ? null : resolver;
    }

    /** Fails if any of these is set. */
    private static void refuse(String what, Object... settings) {
        if (Stream.of(settings).anyMatch(Objects::nonNull)) throw refused(what);
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
        return addresses.stream().map(Servers::address).toList();
    }

    // A URI has no host if the host contains an underscore, as names of containers do; and Jedis replaces a missing
    // host by localhost.
    static HostAndPort address(String address) {
        String authority;
        try {
            authority = new URI(address).getRawAuthority();
        } catch (URISyntaxException broken) {
            authority = null;
        }
        if (address.contains("@")) throw refused("credentials in an address");
        Matcher parts = ADDRESS.matcher(authority == null ? "" : authority);
        if (!parts.matches()) throw new IllegalArgumentException("the address " + address + " is not redis://HOST:PORT");
        return new HostAndPort(parts.group(1), parts.group(2) == null ? 6379 : Integer.parseInt(parts.group(2)));
    }

    /** How names become keys. */
    static NameMapper names(Config config) {
        if (!(config.getNameMapper() instanceof DefaultNameMapper)) return config.getNameMapper();
        return config.isSingleConfig() ? config.useSingleServer().getNameMapper()
                : config.isSentinelConfig() ? config.useSentinelServers().getNameMapper()
                : config.isClusterConfig() ? config.useClusterServers().getNameMapper() : config.getNameMapper();
    }
}
