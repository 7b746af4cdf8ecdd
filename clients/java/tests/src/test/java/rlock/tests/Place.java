package rlock.tests;

import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.SslVerifyMode;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.List;
import java.util.function.UnaryOperator;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import rlock.Locks;
import rlock.jedis.JedisLocks;
import rlock.lettuce.LettuceLocks;
import rlock.redisson.RlockRedisson;

/**
 * Where a service is, and as whom to connect: what every client can be given. {@code service} is the name that
 * Sentinels use.
 */
record Place(Kind kind, String host, List<Integer> ports, boolean hasTls, Path trusted, String user, String password,
        String service, String sentinelPassword, int database) {
    enum Kind { STANDALONE, SENTINEL, CLUSTER }

    static Place at(Integer... ports) {
        return new Place(Kind.STANDALONE, "127.0.0.1", List.of(ports), false, null, null, null, null, null, 0);
    }

    Place cluster() {
        return new Place(Kind.CLUSTER, host, ports, hasTls, trusted, user, password, service, sentinelPassword, database);
    }

    Place watched(String named, String secret) {
        return new Place(Kind.SENTINEL, host, ports, hasTls, trusted, user, password, named, secret, database);
    }

    Place as(String name, String secret) {
        return new Place(kind, host, ports, hasTls, trusted, name, secret, service, sentinelPassword, database);
    }

    /** With TLS, trusting this certificate; null trusts what the machine trusts. */
    Place secure(Path certificate) {
        return new Place(kind, host, ports, true, certificate, user, password, service, sentinelPassword, database);
    }

    Place host(String name) {
        return new Place(kind, name, ports, hasTls, trusted, user, password, service, sentinelPassword, database);
    }

    Place database(int number) {
        return new Place(kind, host, ports, hasTls, trusted, user, password, service, sentinelPassword, number);
    }

    // --- over Jedis

    Over.Session jedis(UnaryOperator<DefaultJedisClientConfig.Builder> more, UnaryOperator<Locks.Builder> set) {
        List<HostAndPort> servers = ports.stream().map(port -> new HostAndPort(host, port)).toList();
        JedisClientConfig config = more.apply(jedis(user, password).database(database)).build();
        Locks.Builder builder = switch (kind) {
            case STANDALONE -> JedisLocks.standalone(servers.get(0), config);
            case SENTINEL -> JedisLocks.sentinel(service, servers, config, jedis(null, sentinelPassword).build());
            case CLUSTER -> JedisLocks.cluster(servers, config);
        };
        return new Over.Session(set.apply(builder).open(), () -> {});
    }

    private DefaultJedisClientConfig.Builder jedis(String name, String secret) {
        var config = DefaultJedisClientConfig.builder().user(name).password(secret).ssl(hasTls);
        if (!hasTls) return config;
        var parameters = new SSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        config.sslParameters(parameters);
        return trusted == null ? config : config.sslSocketFactory(context().getSocketFactory());
    }

    private SSLContext context() {
        try (InputStream certificate = Files.newInputStream(trusted)) {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            store.setCertificateEntry("it", CertificateFactory.getInstance("X.509").generateCertificate(certificate));
            var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (GeneralSecurityException | IOException broken) {
            throw new IllegalStateException(broken);
        }
    }

    // --- over Lettuce

    Over.Session lettuce(UnaryOperator<ClientOptions.Builder> more, UnaryOperator<Locks.Builder> set) {
        var ssl = SslOptions.builder().jdkSslProvider();
        if (trusted != null) ssl.trustManager(trusted.toFile());
        List<RedisURI> uris = ports.stream().map(port -> filled(RedisURI.builder().withHost(host).withPort(port), user, password)).toList();
        AbstractRedisClient client;
        Locks.Builder builder;
        if (kind == Kind.CLUSTER) {
            RedisClusterClient cluster = RedisClusterClient.create(uris);
            cluster.setOptions((ClusterClientOptions) more.apply(ClusterClientOptions.builder().sslOptions(ssl.build())).build());
            builder = LettuceLocks.cluster(cluster, uris);
            client = cluster;
        } else {
            RedisClient one = RedisClient.create();
            one.setOptions(more.apply(ClientOptions.builder().sslOptions(ssl.build())).build());
            builder = LettuceLocks.of(one, kind == Kind.SENTINEL ? sentinels() : uris.get(0));
            client = one;
        }
        return new Over.Session(set.apply(builder).open(), client::shutdown);
    }

    private RedisURI sentinels() {
        var uri = RedisURI.builder().withSentinelMasterId(service);
        for (int port : ports) uri.withSentinel(filled(RedisURI.builder().withHost(host).withPort(port), null, sentinelPassword));
        return filled(uri, user, password);
    }

    private RedisURI filled(RedisURI.Builder uri, String name, String secret) {
        if (name != null) uri.withAuthentication(name, secret.toCharArray());
        else if (secret != null) uri.withPassword(secret.toCharArray());
        return uri.withSsl(hasTls).withVerifyPeer(SslVerifyMode.FULL).withDatabase(database).build();
    }

    // --- rlock-redisson

    RedissonClient redisson() {
        // Redisson itself connects later.
        var config = new Config().setLazyInitialization(true);
        String[] addresses = ports.stream().map(port -> (hasTls ? "rediss://" : "redis://") + host + ":" + port).toArray(String[]::new);
        BaseConfig<?> servers = switch (kind) {
            case STANDALONE -> config.useSingleServer().setAddress(addresses[0]).setDatabase(database);
            case SENTINEL -> config.useSentinelServers().setMasterName(service).addSentinelAddress(addresses)
                    .setSentinelPassword(sentinelPassword).setDatabase(database);
            case CLUSTER -> config.useClusterServers().addNodeAddress(addresses);
        };
        servers.setUsername(user).setPassword(password);
        return RlockRedisson.create(config);
    }
}
