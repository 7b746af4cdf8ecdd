package rlock.lettuce;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.util.Collection;
import java.util.List;
import rlock.Driver.Address;
import rlock.Locks;

/**
 * Locks over Lettuce: {@code Locks locks = LettuceLocks.of(client, uri).open()}. The package opens its own connections,
 * with the threads, options and addresses of your client, which you close yourself, after the locks.
 *
 * <p>With a {@code RedisCredentialsProvider} that does not know the credentials at once, Lettuce uses a thread of the
 * common pool for each new connection. If callers who wait for locks fill that pool, connections fail until one returns.
 */
public final class LettuceLocks {
    private LettuceLocks() {}

    /** One server, or the primary that the Sentinels of the URI watch. */
    public static Locks.Builder of(RedisClient client, RedisURI uri) {
        var driver = new LettuceDriver(client.getResources(), client.getOptions(), uri);
        if (uri.getSentinels().isEmpty()) return Locks.Builder.standalone(driver, address(uri));
        return Locks.Builder.sentinel(driver, uri.getSentinelMasterId(), addresses(uri.getSentinels()));
    }

    /** A Cluster, with the URIs that its client was created with. */
    public static Locks.Builder cluster(RedisClusterClient client, Collection<RedisURI> servers) {
        ClientOptions options = client.getOptions();
        var driver = new LettuceDriver(client.getResources(), options, servers.iterator().next());
        return Locks.Builder.cluster(driver, addresses(servers));
    }

    private static List<Address> addresses(Collection<RedisURI> servers) {
        return servers.stream().map(LettuceLocks::address).toList();
    }

    // A Unix socket is an address without a port.
    private static Address address(RedisURI uri) {
        return uri.getSocket() == null ? new Address(uri.getHost(), uri.getPort()) : new Address(uri.getSocket(), 0);
    }
}
