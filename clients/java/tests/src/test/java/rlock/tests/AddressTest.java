package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCredentials;
import io.lettuce.core.RedisURI;
import io.lettuce.core.StaticCredentialsProvider;
import io.lettuce.core.internal.HostAndPort;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.DnsResolvers;
import io.lettuce.core.resource.EpollProvider;
import io.lettuce.core.resource.MappingSocketAddressResolver;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;
import reactor.core.publisher.Mono;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultRedisCredentials;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisProtocol;
import rlock.Hold;
import rlock.Holds;
import rlock.LockException;
import rlock.Locks;
import rlock.jedis.JedisLocks;
import rlock.lettuce.LettuceLocks;

/** Every way to give the two clients the address of a server and a user: with each, all features of the locks work. */
@Timeout(60)
class AddressTest {
    @TempDir
    static Path folder;
    private static Server server;
    private static Server cluster;
    private static Sentinel sentinel;
    private static int securePort;
    private static boolean hasIpv6;

    @BeforeAll
    static void start() {
        var certificate = Certificate.of(folder, "IP:127.0.0.1,DNS:localhost");
        securePort = free("127.0.0.1").orElseThrow();
        hasIpv6 = free("::1").isPresent();
        String[] settings = Stream.concat(Stream.of(certificate.settings(securePort, "no")), Stream.of("--unixsocket", socket(),
                "--bind", "127.0.0.1", hasIpv6 ? "::1" : "127.0.0.1")).toArray(String[]::new);
        server = new Server(settings);
        cluster = new Server("--cluster-enabled", "yes");
        for (Server each : new Server[] {server, cluster}) each.say("ACL", "SETUSER", "app", "on", ">s:e@c", "~*", "&*", "+@all");
        cluster.say("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
        Server.until(() -> new String((byte[]) cluster.say("CLUSTER", "INFO")).contains("cluster_state:ok"));
        sentinel = new Sentinel(folder, server.port, "requirepass watch");
    }

    private static String socket() {
        return folder.resolve("socket").toString();
    }

    private static Optional<Integer> free(String host) {
        try (var socket = new ServerSocket(0, 1, InetAddress.getByName(host))) {
            return Optional.of(socket.getLocalPort());
        } catch (IOException none) {
            return Optional.empty();
        }
    }

    @AfterAll
    static void stop() {
        if (sentinel != null) sentinel.close();
        if (cluster != null) cluster.close();
        if (server != null) server.close();
    }

    /** A way, and what the server then reports about the connections; if a client does not support it, the reason. */
    enum Way {
        HOST_AND_PORT,
        NAME,
        IPV6,
        URL,
        URL_WITH_USER_AND_DATABASE(3, "user=app"),
        URL_OF_SENTINELS,
        UNIX_SOCKET,
        UNIX_SOCKET_WITH_USER_AND_DATABASE(3, "user=app"),
        TLS,
        TLS_BY_NAME,
        SENTINEL,
        SENTINEL_WITH_USER_AND_DATABASE(3, "user=app"),
        CLUSTER,
        CLUSTER_WITH_USER(0, "user=app"),
        CLUSTER_BY_ONE_SERVER,
        USER(0, "user=app"),
        CREDENTIALS_PROVIDER(0, "user=app"),
        DATABASE(3, ""),
        RESP2(0, "resp=2"),
        RESP3(0, "resp=3"),
        CLIENT_NAME(0, "name=shop"),
        MAPPED_ADDRESS,
        POOL_OF_ONE;

        private final int database;
        private final String shows;

        Way() {
            this(0, "");
        }

        Way(int database, String shows) {
            this.database = database;
            this.shows = shows;
        }

        Server at() {
            return name().startsWith("CLUSTER") ? cluster : server;
        }

        private Place place() {
            return switch (this) {
                case NAME -> Place.at(server.port).host("localhost");
                case IPV6 -> Place.at(server.port).host("::1");
                case TLS -> Place.at(securePort).secure(folder.resolve("cert.pem"));
                case TLS_BY_NAME -> Place.at(securePort).host("localhost").secure(folder.resolve("cert.pem"));
                case SENTINEL -> Place.at(sentinel.port).watched("main", "watch");
                case SENTINEL_WITH_USER_AND_DATABASE -> Place.at(sentinel.port).watched("main", "watch").as("app", "s:e@c").database(3);
                case CLUSTER -> Place.at(cluster.port).cluster();
                case CLUSTER_BY_ONE_SERVER -> Place.at(cluster.port);
                case CLUSTER_WITH_USER -> Place.at(cluster.port).cluster().as("app", "s:e@c");
                case USER -> Place.at(server.port).as("app", "s:e@c");
                case DATABASE -> Place.at(server.port).database(3);
                case MAPPED_ADDRESS -> Place.at(1).host("nowhere.example");
                default -> Place.at(server.port);
            };
        }

        Over.Session jedis(UnaryOperator<Locks.Builder> set) {
            return switch (this) {
                case URL -> new Over.Session(set.apply(JedisLocks.standalone(URI.create("redis://127.0.0.1:" + server.port))).open(), () -> {});
                case URL_WITH_USER_AND_DATABASE -> new Over.Session(set.apply(JedisLocks.standalone(
                        URI.create("redis://app:s%3Ae%40c@127.0.0.1:" + server.port + "/3"))).open(), () -> {});
                case URL_OF_SENTINELS, UNIX_SOCKET, UNIX_SOCKET_WITH_USER_AND_DATABASE -> null; // Jedis has none
                default -> place().jedis(this::configured, set);
            };
        }

        private DefaultJedisClientConfig.Builder configured(DefaultJedisClientConfig.Builder config) {
            return switch (this) {
                case CREDENTIALS_PROVIDER -> config.credentialsProvider(() -> new DefaultRedisCredentials("app", "s:e@c"));
                case RESP2 -> config.protocol(RedisProtocol.RESP2);
                case RESP3 -> config.protocol(RedisProtocol.RESP3);
                case CLIENT_NAME -> config.clientName("shop");
                case MAPPED_ADDRESS -> config.hostAndPortMapper(any -> new redis.clients.jedis.HostAndPort("127.0.0.1", server.port));
                default -> config;
            };
        }

        Over.Session lettuce(UnaryOperator<Locks.Builder> set) {
            return switch (this) {
                case URL -> lettuce(RedisURI.create("redis://127.0.0.1:" + server.port), set);
                case URL_WITH_USER_AND_DATABASE -> lettuce(RedisURI.create("redis://app:s%3Ae%40c@127.0.0.1:" + server.port + "/3"), set);
                case URL_OF_SENTINELS -> {
                    RedisURI uri = RedisURI.create("redis-sentinel://127.0.0.1:" + sentinel.port + "/0#main");
                    uri.getSentinels().forEach(each -> each.setCredentialsProvider(new StaticCredentialsProvider(null, "watch".toCharArray())));
                    yield lettuce(uri, set);
                }
                case UNIX_SOCKET -> lettuce(RedisURI.create("redis-socket://" + socket()), set);
                case UNIX_SOCKET_WITH_USER_AND_DATABASE ->
                    lettuce(RedisURI.Builder.socket(socket()).withAuthentication("app", "s:e@c".toCharArray()).withDatabase(3).build(), set);
                case CREDENTIALS_PROVIDER -> lettuce(RedisURI.builder().withHost("127.0.0.1").withPort(server.port)
                        .withAuthentication(() -> Mono.just(RedisCredentials.just("app", "s:e@c"))).build(), set);
                case CLIENT_NAME -> lettuce(RedisURI.create("redis://127.0.0.1:" + server.port + "?clientName=shop"), set);
                case MAPPED_ADDRESS -> lettuce(RedisURI.create("redis://nowhere.example:1"), ClientResources.builder().socketAddressResolver(
                        MappingSocketAddressResolver.create(DnsResolvers.UNRESOLVED, any -> HostAndPort.of("127.0.0.1", server.port))).build(), set);
                case POOL_OF_ONE -> lettuce(RedisURI.create("redis://127.0.0.1:" + server.port),
                        ClientResources.builder().ioThreadPoolSize(2).computationThreadPoolSize(2).build(), set); // it refuses one
                default -> place().lettuce(this::configured, set);
            };
        }

        private ClientOptions.Builder configured(ClientOptions.Builder options) {
            return switch (this) {
                case RESP2 -> options.protocolVersion(ProtocolVersion.RESP2);
                case RESP3 -> options.protocolVersion(ProtocolVersion.RESP3);
                default -> options;
            };
        }

        private static Over.Session lettuce(RedisURI uri, UnaryOperator<Locks.Builder> set) {
            RedisClient client = RedisClient.create();
            return new Over.Session(set.apply(LettuceLocks.of(client, uri)).open(), client::shutdown);
        }

        private static Over.Session lettuce(RedisURI uri, ClientResources resources, UnaryOperator<Locks.Builder> set) {
            RedisClient client = RedisClient.create(resources);
            return new Over.Session(set.apply(LettuceLocks.of(client, uri)).open(), () -> {
                client.shutdown();
                resources.shutdown();
            });
        }
    }

    private static Stream<Arguments> cells() {
        return Stream.of(Way.values()).flatMap(way -> Stream.of(Over.values()).map(over -> Arguments.of(way, over)));
    }

    @ParameterizedTest(name = "{0} over {1}")
    @MethodSource("cells")
    void everyLockWorks(Way way, Over over) throws Exception {
        assumeTrue(way != Way.IPV6 || hasIpv6, "needs IPv6");
        assumeTrue(!way.name().startsWith("UNIX_SOCKET") || EpollProvider.isAvailable(), "needs netty's epoll for this machine");
        Over.Session session = over == Over.JEDIS ? way.jedis(same -> same) : way.lettuce(same -> same);
        if (session == null) return; // this client has no such way
        try (session; var beside = new Jedis("127.0.0.1", way.at().port)) {
            if (way.database > 0) beside.select(way.database);
            works(session.locks(), way, beside);
        }
    }

    private static void works(Locks locks, Way way, Jedis beside) throws Exception {
        Hold first = locks.lock("{k}a").detached().lease(Duration.ofMillis(900)).acquire();
        assertEquals(1L, holds(beside, first));
        assertTrue(beside.clientList().lines().anyMatch(line -> line.contains(way.shows) && line.contains("db=" + way.database + " ")), beside.clientList());
        var waits = locks.lock("{k}a").acquireAsync(Duration.ofSeconds(20));
        var alsoWaits = CompletableFuture.supplyAsync(() -> locks.lock("{k}a").acquire(), task -> new Thread(task).start());
        Server.until(() -> waiters(beside, "{k}a") == 2);
        Thread.sleep(1_000); // longer than the lease, which is renewed
        assertTrue(first.isHeld());
        assertEquals(1L, holds(beside, first));
        first.release();
        Hold one = CompletableFuture.anyOf(waits.thenApply(Optional::orElseThrow), alsoWaits).thenApply(Hold.class::cast).get(10, TimeUnit.SECONDS);
        one.release();
        (one == waits.getNow(Optional.empty()).orElse(null) ? alsoWaits.get(10, TimeUnit.SECONDS) : waits.get(10, TimeUnit.SECONDS).orElseThrow()).release();
        assertEquals(0L, holds(beside, first));
        try (Hold session = locks.lock("{k}session").session().acquire(); Holds several = locks.all("{k}b", "{k}c").acquire();
                Hold permit = locks.permits("{k}permit", 1).acquire()) {
            assertEquals(1L, holds(beside, session));
            assertTrue(several.isHeld() && locks.lock("{k}session").isLocked());
            assertEquals(1L, holds(beside, permit));
        }
        assertFalse(locks.lock("{k}session").isLocked());
    }

    private static long holds(Jedis beside, Hold hold) {
        return (Long) beside.sendCommand(() -> "RLOCK.HOLDS".getBytes(), hold.key(), hold.owner());
    }

    private static int waiters(Jedis beside, String key) {
        List<?> info = (List<?>) beside.sendCommand(() -> "RLOCK.INFO".getBytes(), key);
        for (int i = 0; i < info.size(); i += 2)
            if (new String((byte[]) info.get(i)).equals("queue-length")) return ((Long) info.get(i + 1)).intValue();
        throw new AssertionError(info);
    }

    // --- names

    /** A grant before the next time that it asks came by message. */
    @ParameterizedTest
    @EnumSource
    void aGrantIsHeardWhateverTheOwnersName(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            for (String owner : List.of("Zoë", "CORP\\alice", "a b\nc", "naïve/日本語", "x\0y", "👩‍🚀", "\\x00", "%s\"'")) {
                String key = "granted:" + owner;
                Hold first = session.locks().lock(key).detached().acquire();
                long heard = 0;
                for (int i = 0; i < 3; i++) {
                    Hold before = first;
                    var waits = session.locks().lock(key).owner(owner + (i % 2 == 0 ? "" : "2")).acquireAsync(Duration.ofSeconds(20));
                    Server.until(() -> server.waiters(key) == 1);
                    long asked = server.calls("rlock.acquire");
                    long start = System.nanoTime();
                    before.release();
                    first = waits.get(10, TimeUnit.SECONDS).orElseThrow();
                    if (server.calls("rlock.acquire") == asked && System.nanoTime() - start < TimeUnit.MILLISECONDS.toNanos(900)) heard++;
                }
                first.release();
                assertTrue(heard > 0, owner + " asks until it is granted");
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatIsNoNameIsRefused(Over over) {
        try (var session = over.open(server.port)) {
            Locks locks = session.locks();
            for (String half : List.of("\uD83D", "a\uDE80b", "\uDE80\uD83D")) {
                var refused = assertThrows(IllegalArgumentException.class, () -> locks.lock(half));
                assertTrue(refused.getMessage().contains("the key is no text: U+D") || refused.getMessage().contains("the key is no text: U+"), refused.getMessage());
                assertThrows(IllegalArgumentException.class, () -> locks.all("a", half));
                assertThrows(IllegalArgumentException.class, () -> locks.permits(half, 2));
                assertThrows(IllegalArgumentException.class, () -> locks.election(half));
                assertThrows(IllegalArgumentException.class, () -> locks.lock("a").owner(half));
                assertThrows(IllegalArgumentException.class, () -> locks.lock("a").owner(() -> half).tryLock());
            }
            assertEquals("key", assertThrows(NullPointerException.class, () -> locks.lock(null)).getMessage());
            assertEquals("owner", assertThrows(NullPointerException.class, () -> locks.lock("a").owner((String) null)).getMessage());
            var empty = assertThrows(LockException.class, () -> locks.lock("a").owner("").acquire());
            assertTrue(empty.getMessage().contains("owner must be 1 to 512 bytes long, not 0"), empty.getMessage());
            var tooLong = assertThrows(LockException.class, () -> locks.lock("a").owner("ü".repeat(257)).acquire(Duration.ofSeconds(30)));
            assertTrue(tooLong.getMessage().contains("owner must be 1 to 512 bytes long, not 514"), tooLong.getMessage());
            assertTrue(server.isFree("a"));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"http://127.0.0.1:6379", "127.0.0.1", "redis://user:secret@", "mailto:secret"})
    void aUrlOfSomethingElseIsRefusedWithoutItsPassword(String url) {
        var refused = assertThrows(IllegalArgumentException.class, () -> JedisLocks.standalone(URI.create(url)));
        assertEquals("the URL is not redis://HOST:PORT or rediss://HOST:PORT", refused.getMessage());
    }

    @Test
    void aSocketWithoutTheNativeTransportIsNamed() {
        assumeTrue(!EpollProvider.isAvailable(), "this machine has it");
        try (var session = Way.UNIX_SOCKET.lettuce(same -> same)) {
            var refused = assertThrows(LockException.class, session.locks().lock("a")::lock);
            assertTrue(refused.getMessage().startsWith("CLIENT "), refused.getMessage());
        }
    }
}
