package org.redisson;

import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.testcontainers.containers.GenericContainer;

/** Stands where the base of Redisson's tests stood: the servers are there already, at $PORT and $CLUSTER_PORT. */
public class RedisDockerTest {
    protected static final String NOTIFY_KEYSPACE_EVENTS = "--notify-keyspace-events";
    protected static RedissonClient redisson;

    protected static Config createConfig() {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + Redisson.port("PORT"));
        return config;
    }

    protected static Config createConfig(GenericContainer<?> container) {
        throw new UnsupportedOperationException("containers");
    }

    protected static GenericContainer<?> createContainer(String... params) {
        throw new UnsupportedOperationException("containers");
    }

    public static RedissonClient createInstance() {
        return Redisson.create(createConfig());
    }

    protected void testWithParams(Consumer<RedissonClient> test, String... params) {
        test.accept(redisson);
    }

    protected static void testInCluster(Consumer<RedissonClient> test) {
        RedissonClient client = Redisson.createCluster(new Config());
        client.getKeys().flushall();
        test.accept(client);
        client.shutdown();
    }

    // A test may leave its locks behind: the next one is another client, on an empty server.
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
