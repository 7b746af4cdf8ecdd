package rlock.spring.boot;

import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.SslVerifyMode;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import java.util.List;
import org.springframework.boot.ssl.SslBundle;
import rlock.Driver.Address;
import rlock.Locks;
import rlock.lettuce.LettuceLocks;

/** Locks over Lettuce, configured by {@code spring.data.redis.*}; closed after the locks. */
final class LettuceConnections implements AutoCloseable {
    private final RedisSettings redis;
    private final SslBundle bundle;
    private AbstractRedisClient client;

    LettuceConnections(RedisSettings redis, SslBundle bundle) {
        this.redis = redis;
        this.bundle = bundle;
    }

    Locks.Builder builder() {
        SslOptions ssl = ssl();
        if (redis.cluster() != null) {
            List<RedisURI> nodes = redis.cluster().nodes().stream().map(Address::of).map(this::uri).toList();
            RedisClusterClient cluster = RedisClusterClient.create(nodes);
            cluster.setOptions(ClusterClientOptions.builder().sslOptions(ssl).build());
            client = cluster;
            return LettuceLocks.cluster(cluster, nodes);
        }
        RedisClient single = RedisClient.create();
        single.setOptions(ClientOptions.builder().sslOptions(ssl).build());
        client = single;
        return LettuceLocks.of(single, redis.sentinel() == null ? uri(new Address(redis.host(), redis.port())) : watched());
    }

    private RedisURI uri(Address at) {
        return filled(RedisURI.builder().withHost(at.host()).withPort(at.port()));
    }

    private RedisURI watched() {
        var uri = RedisURI.builder().withSentinelMasterId(redis.sentinel().master());
        for (String node : redis.sentinel().nodes()) {
            Address at = Address.of(node);
            var sentinel = RedisURI.builder().withHost(at.host()).withPort(at.port());
            secured(sentinel, redis.sentinel().username(), redis.sentinel().password());
            uri.withSentinel(sentinel.build());
        }
        return filled(uri);
    }

    private RedisURI filled(RedisURI.Builder uri) {
        secured(uri, redis.username(), redis.password()).withDatabase(redis.database());
        if (redis.clientName() != null) uri.withClientName(redis.clientName());
        return uri.build();
    }

    private RedisURI.Builder secured(RedisURI.Builder uri, String user, String password) {
        if (password != null && user != null) uri.withAuthentication(user, password.toCharArray());
        else if (password != null) uri.withPassword(password.toCharArray());
        return uri.withSsl(redis.ssl().isEnabled()).withVerifyPeer(SslVerifyMode.FULL);
    }

    private SslOptions ssl() {
        var ssl = SslOptions.builder();
        if (bundle == null) return ssl.build();
        ssl.keyManager(bundle.getManagers().getKeyManagerFactory());
        ssl.trustManager(bundle.getManagers().getTrustManagerFactory());
        if (bundle.getOptions().getCiphers() != null) ssl.cipherSuites(bundle.getOptions().getCiphers());
        if (bundle.getOptions().getEnabledProtocols() != null) ssl.protocols(bundle.getOptions().getEnabledProtocols());
        return ssl.build();
    }

    @Override
    public void close() {
        if (client != null) client.shutdown();
    }
}
