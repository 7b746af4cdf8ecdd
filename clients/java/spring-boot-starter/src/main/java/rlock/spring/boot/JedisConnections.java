package rlock.spring.boot;

import javax.net.ssl.SSLParameters;
import org.springframework.boot.ssl.SslBundle;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import rlock.Driver.Address;
import rlock.Locks;
import rlock.jedis.JedisLocks;

/** Locks over Jedis, configured by {@code spring.data.redis.*}. */
final class JedisConnections {
    private JedisConnections() {}

    static Locks.Builder of(RedisSettings redis, SslBundle bundle) {
        JedisClientConfig config = config(redis, bundle, redis.username(), redis.password(), redis.database());
        if (redis.sentinel() != null) {
            RedisSettings.Sentinel sentinel = redis.sentinel();
            return JedisLocks.sentinel(sentinel.master(), sentinel.nodes().stream().map(JedisConnections::at).toList(), config,
                    config(redis, bundle, sentinel.username(), sentinel.password(), 0));
        }
        if (redis.cluster() != null)
            return JedisLocks.cluster(redis.cluster().nodes().stream().map(JedisConnections::at).toList(), config);
        return JedisLocks.standalone(new HostAndPort(redis.host(), redis.port()), config);
    }

    private static HostAndPort at(String node) {
        Address address = Address.of(node);
        return new HostAndPort(address.host(), address.port());
    }

    private static JedisClientConfig config(RedisSettings redis, SslBundle bundle, String user, String password, int database) {
        var config = DefaultJedisClientConfig.builder()
                .user(user).password(password).database(database).clientName(redis.clientName()).ssl(redis.ssl().isEnabled());
        if (redis.ssl().isEnabled()) {
            var parameters = new SSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            if (bundle != null) {
                parameters.setCipherSuites(bundle.getOptions().getCiphers());
                parameters.setProtocols(bundle.getOptions().getEnabledProtocols());
                config.sslSocketFactory(bundle.createSslContext().getSocketFactory());
            }
            config.sslParameters(parameters);
        }
        return config.build();
    }
}
