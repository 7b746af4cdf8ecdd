package rlock.jedis;

import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Proxy;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.exceptions.JedisException;
import rlock.Dials;
import rlock.Driver;

/** Connections through Jedis. Its sockets block, so long operations are read in a thread of the driver. */
final class JedisDriver implements Driver {
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static final long REPLY_MILLIS = 2_000;
    private final JedisClientConfig config;
    private final JedisClientConfig ofSentinels;
    private final ExecutorService readers = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "rlock-jedis-" + COUNT.incrementAndGet());
        thread.setDaemon(true);
        return thread;
    });
    private final Dials<OwnConnection> toServers = new Dials<>(JedisDriver::translated, OwnConnection::closeNow);
    private final Dials<OwnConnection> toSentinels = new Dials<>(JedisDriver::translated, OwnConnection::closeNow);

    JedisDriver(JedisClientConfig config, JedisClientConfig ofSentinels) {
        refuseOlder();
        this.config = config;
        this.ofSentinels = ofSentinels;
    }

    private static void refuseOlder() {
        var version = new Properties();
        try (InputStream in = Connection.class.getResourceAsStream("/META-INF/maven/redis.clients/jedis/pom.properties")) {
            if (in == null) return; // repackaged
            version.load(in);
        } catch (IOException unreadable) {
            return;
        }
        String has = version.getProperty("version", "");
        if (has.matches("[0-5]\\..*"))
            throw new IllegalStateException("rlock-jedis needs Jedis 6 or later; the class path has Jedis " + has);
    }

    @Override
    public Link connect(Address at, long timeoutMillis) {
        return new JedisLink(connection(at, config, timeoutMillis), readers);
    }

    @Override
    public Link connectSentinel(Address at, long timeoutMillis) {
        return new JedisLink(connection(at, ofSentinels, timeoutMillis), readers);
    }

    @Override
    public Feed listen(Address at, long timeoutMillis, Ear ear) {
        return new JedisFeed(connection(at, config, timeoutMillis), ear, readers);
    }

    private OwnConnection connection(Address at, JedisClientConfig config, long timeoutMillis) {
        JedisClientConfig patient = within(Math.max(timeoutMillis, REPLY_MILLIS), config); // for all who wait for it
        HostAndPort place = new HostAndPort(at.host(), at.port());
        return (config == ofSentinels ? toSentinels : toServers)
                .connect(at, timeoutMillis, () -> CompletableFuture.supplyAsync(() -> new OwnConnection(place, patient), readers));
    }

    private static RuntimeException translated(Throwable failed) {
        return failed instanceof JedisException refused ? JedisLink.first(refused) : Driver.failure(failed.toString(), failed);
    }

    // The user's configuration, with another time limit.
    private static JedisClientConfig within(long millis, JedisClientConfig config) {
        Object same = Proxy.newProxyInstance(JedisClientConfig.class.getClassLoader(), new Class<?>[] {JedisClientConfig.class},
                (proxy, method, arguments) -> switch (method.getName()) {
                    case "getConnectionTimeoutMillis", "getSocketTimeoutMillis" -> (int) Math.max(1, millis);
                    default -> method.invoke(config, arguments);
                });
        return (JedisClientConfig) same;
    }

    @Override
    public int database() {
        return config.getDatabase();
    }

    @Override
    public void close() {
        readers.shutdownNow();
    }
}
