package org.redisson;

import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.testcontainers.containers.GenericContainer;

/** Replaces the base class of Redisson's tests. The servers are already running, at $PORT and $CLUSTER_PORT. */
public class RedisDockerTest {
    protected static final String NOTIFY_KEYSPACE_EVENTS = "--notify-keyspace-events";
    protected static RedissonClient redisson;

    private static Config configOf(String port) {
        var config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
        return config;
    }

    protected static Config createConfig() {
        return configOf(System.getenv("PORT"));
    }

    protected static Config createConfig(GenericContainer<?> server) {
        return configOf(String.valueOf(server.getFirstMappedPort()));
    }

    protected static GenericContainer<?> createContainer(String... settings) {
        return new LocalServer();
    }

    protected void restart(GenericContainer<?> server) {
        server.stop();
        server.start();
    }

    public static RedissonClient createInstance() {
        return Redisson.create(createConfig());
    }

    // The server reports all events anyway.
    protected void testWithParams(Consumer<RedissonClient> test, String... settings) {
        test.accept(redisson);
    }

    protected static void testInCluster(Consumer<RedissonClient> test) {
        var config = new Config();
        config.useClusterServers().addNodeAddress("redis://127.0.0.1:" + System.getenv("CLUSTER_PORT"));
        RedissonClient client = Redisson.create(config);
        client.getKeys().flushall();
        test.accept(client);
        client.shutdown();
    }

    // A test may leave its locks behind: the next one gets another client, on an empty server.
    @BeforeEach
    public void beforeEach() {
        redisson = createInstance();
        redisson.getKeys().flushall();
    }

    @AfterEach
    public void afterEach() {
        redisson.shutdown();
    }
}
