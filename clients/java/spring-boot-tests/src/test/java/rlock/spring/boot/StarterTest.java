package rlock.spring.boot;

import static org.junit.jupiter.api.Assertions.*;

import io.micrometer.core.instrument.MeterRegistry;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.SpringBootVersion;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.core.env.MapPropertySource;
import org.springframework.core.env.StandardEnvironment;
import org.springframework.integration.support.locks.LockRegistry;
import rlock.Hold;
import rlock.LockListener;
import rlock.Locks;
import rlock.tests.Server;

/** What is auto-configured, with the versions that this Spring Boot ships. */
@Timeout(120)
class StarterTest {
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
        System.out.println("Spring Boot " + SpringBootVersion.getVersion());
    }

    @SpringBootConfiguration
    @EnableAutoConfiguration
    static class Application {}

    private static ConfigurableApplicationContext run(Server at, String... properties) {
        var application = new SpringApplication(Application.class);
        application.setDefaultProperties(java.util.Map.of("spring.main.banner-mode", "off",
                "spring.data.redis.host", "127.0.0.1", "spring.data.redis.port", at.port));
        String[] arguments = java.util.Arrays.stream(properties).map(each -> "--" + each).toArray(String[]::new);
        return application.run(arguments);
    }

    private static ApplicationContextRunner runner(String... properties) {
        return new ApplicationContextRunner().withConfiguration(AutoConfigurations.of(RlockAutoConfiguration.class))
                .withPropertyValues("spring.data.redis.host=127.0.0.1", "spring.data.redis.port=" + server.port)
                .withPropertyValues(properties);
    }

    private static void locks(Locks locks, String key, Server at) {
        try (Hold hold = locks.lock(key).acquire()) {
            assertEquals(1, at.holds(key, hold.owner()));
        }
        assertTrue(at.isFree(key));
    }

    @ParameterizedTest
    @ValueSource(strings = {"jedis", "lettuce"})
    void anApplicationHasLocksHealthMetricsAndARegistry(String client) throws Exception {
        try (var context = run(server, "spring.data.redis.client-type=" + client, "spring.application.name=shop")) {
            Locks locks = context.getBean(Locks.class);
            locks(locks, client + ":started", server);

            LockRegistry registry = context.getBean(LockRegistry.class);
            var lock = registry.obtain(client);
            lock.lock();
            assertFalse(server.isFree("shop:" + client));
            server.say("RLOCK.FORCE", "shop:" + client);
            assertTrue(lock.tryLock(1, TimeUnit.SECONDS), "what was lost is dropped, and acquired anew");
            lock.unlock();
            assertTrue(server.isFree("shop:" + client));

            MeterRegistry meters = context.getBean(MeterRegistry.class);
            Server.until(() -> meters.find("rlock.hold").tag("end", "released").timer() != null);
            assertTrue(meters.get("rlock.wait").tag("result", "granted").tag("mode", "write").timer().count() >= 1);
            Hold hold = locks.lock(client + ":lost").lease(Duration.ofMillis(600)).acquire();
            assertEquals(1, meters.get("rlock.held").gauge().value());
            assertEquals(0, meters.get("rlock.waiting").gauge().value());
            double before = meters.get("rlock.lost").tag("mode", "write").counter().count();
            server.say("RLOCK.FORCE", client + ":lost");
            // Nobody uses the signal of the loss: a renewal discovers it.
            Server.until(() -> meters.get("rlock.lost").tag("mode", "write").counter().count() == before + 1);
            hold.lost().get(5, TimeUnit.SECONDS);
            assertTrue(meters.get("rlock.renewals.failed").functionCounter().count() >= 1);

            assertEquals("UP", status(context));
        }
    }

    // Its class differs between versions.
    private static String status(ConfigurableApplicationContext context) throws Exception {
        Object indicator = context.getBean("rlockHealthIndicator");
        var method = indicator.getClass().getMethod("health");
        method.setAccessible(true);
        Object health = method.invoke(indicator);
        return health.getClass().getMethod("getStatus").invoke(health).toString();
    }

    @ParameterizedTest
    @ValueSource(strings = {"jedis", "lettuce"})
    void healthIsDownWithoutTheModuleOrTheServer(String client) throws Exception {
        try (var bare = new Server(false); var context = run(bare, "spring.data.redis.client-type=" + client)) {
            assertEquals("DOWN", status(context));
            bare.kill();
            assertEquals("DOWN", status(context));
        }
        try (var context = run(server, "management.health.rlock.enabled=false")) {
            assertFalse(context.containsBean("rlockHealthIndicator"));
        }
    }

    private static RedisSettings settings(String url) {
        var environment = new StandardEnvironment();
        environment.getPropertySources().addFirst(new MapPropertySource("test", Map.of("spring.data.redis.url", url)));
        return RedisSettings.of(environment);
    }

    @Test
    void aUrlLeadsToItsHost() {
        RedisSettings underscore = settings("redis://user:se%40cret@redis_master:7000/3");
        assertEquals(List.of("redis_master", 7000, "user", "se@cret", 3), List.of(underscore.host(), underscore.port(),
                underscore.username(), underscore.password(), underscore.database()));
        RedisSettings plain = settings("rediss://:secret@10.0.0.1");
        assertEquals(List.of("10.0.0.1", 6379, "secret"), List.of(plain.host(), plain.port(), plain.password()));
        assertNull(plain.username());
        assertEquals("[::1]", settings("redis://[::1]:7000").host());
        for (String url : List.of("redis:///3", "redis://:7000", "redis://user:secret@:7000")) {
            var refused = assertThrows(IllegalArgumentException.class, () -> settings(url));
            assertEquals("spring.data.redis.url is not redis://HOST:PORT: " + url.replace("user:secret@", ""), refused.getMessage());
        }
    }

    @Test
    void theClientIsTheOneThatIsThere() {
        runner().withClassLoader(new FilteredClassLoader("io.lettuce")).run(context -> {
            locks(context.getBean(Locks.class), "only-jedis", server);
            assertEquals("JedisDriver", driver(context.getBean(Locks.class)));
        });
        runner().withClassLoader(new FilteredClassLoader("redis.clients")).run(context -> {
            locks(context.getBean(Locks.class), "only-lettuce", server);
            assertEquals("LettuceDriver", driver(context.getBean(Locks.class)));
        });
        runner("spring.data.redis.client-type=jedis").run(context ->
                assertEquals("JedisDriver", driver(context.getBean(Locks.class))));
        runner("spring.data.redis.client-type=jedis").withClassLoader(new FilteredClassLoader("redis.clients")).run(context ->
                assertTrue(text(context.getStartupFailure()).contains("client-type is JEDIS, which is not on the class path")));
        runner().withClassLoader(new FilteredClassLoader("redis.clients", "io.lettuce")).run(context ->
                assertTrue(text(context.getStartupFailure()).contains("add redis.clients:jedis or io.lettuce:lettuce-core")));
    }

    private static String driver(Locks locks) throws ReflectiveOperationException {
        var field = Locks.class.getDeclaredField("driver");
        field.setAccessible(true);
        return field.get(locks).getClass().getSimpleName();
    }

    private static String text(Throwable failure) {
        return failure == null ? "no failure" : failure.getMessage() + (failure.getCause() == null ? "" : " " + text(failure.getCause()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"jedis", "lettuce"})
    void credentialsAndDatabaseAreThoseOfSpringData(String client) {
        try (var secret = new Server()) {
            secret.say("ACL", "SETUSER", "app", "on", ">pass:word", "~*", "&*", "+@all");
            secret.say("CONFIG", "SET", "requirepass", "other");
            String type = "spring.data.redis.client-type=" + client;
            String port = "spring.data.redis.port=" + secret.port;
            runner(type, port, "spring.data.redis.username=app", "spring.data.redis.password=pass:word").run(context ->
                    context.getBean(Locks.class).lock("a").acquire().release());
            runner(type, port, "spring.data.redis.password=other", "spring.data.redis.client-name=shop").run(context -> {
                Locks locks = context.getBean(Locks.class);
                assertTrue(locks.call("a", "CLIENT", "GETNAME").toString().equals("shop")
                        || new String((byte[]) locks.call("a", "CLIENT", "GETNAME")).equals("shop"));
            });
            runner(type, "spring.data.redis.url=redis://app:pass:word@127.0.0.1:" + secret.port + "/3").run(context -> {
                Locks locks = context.getBean(Locks.class);
                try (Hold hold = locks.lock("in three").acquire()) {
                    Object info = locks.call("a", "INFO", "keyspace");
                    String all = info instanceof byte[] bytes ? new String(bytes) : info.toString();
                    assertTrue(all.contains("db3:keys=1"), all);
                }
            });
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"jedis", "lettuce"})
    void aClusterIsFound(String client) {
        try (var one = new Server("--cluster-enabled", "yes")) {
            one.say("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
            Server.until(() -> new String((byte[]) one.say("CLUSTER", "INFO")).contains("cluster_state:ok"));
            runner("spring.data.redis.client-type=" + client, "spring.data.redis.cluster.nodes=127.0.0.1:" + one.port).run(context ->
                    locks(context.getBean(Locks.class), "in a cluster", one));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"jedis", "lettuce"})
    void sentinelsAreAsked(String client, @TempDir Path folder) throws Exception {
        try (var primary = new Server(); var sentinel = new Sentinel(folder, primary.port)) {
            runner("spring.data.redis.client-type=" + client, "spring.data.redis.sentinel.master=main",
                    "spring.data.redis.sentinel.nodes=127.0.0.1:" + sentinel.port, "spring.data.redis.sentinel.password=watch").run(context ->
                    locks(context.getBean(Locks.class), "watched", primary));
        }
    }

    /** A Sentinel with a password. */
    private static final class Sentinel implements AutoCloseable {
        final int port;
        private final Process process;

        Sentinel(Path folder, int primary) throws Exception {
            try (var free = new java.net.ServerSocket(0)) {
                port = free.getLocalPort();
            }
            Path file = folder.resolve("sentinel.conf");
            Files.writeString(file, "port " + port + "\nbind 127.0.0.1\nrequirepass watch\ndir " + folder
                    + "\nsentinel monitor main 127.0.0.1 " + primary + " 1\n");
            process = new ProcessBuilder(System.getenv("RLOCK_SERVER"), file.toString(), "--sentinel")
                    .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            Server.until(() -> {
                try (var socket = new java.net.Socket("127.0.0.1", port)) {
                    return true;
                } catch (java.io.IOException notYet) {
                    return false;
                }
            });
        }

        @Override
        public void close() {
            process.destroyForcibly();
            process.onExit().join();
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"jedis", "lettuce"})
    void aBundleSecuresTheConnection(String client, @TempDir Path folder) throws Exception {
        certificate(folder);
        try (var free = new java.net.ServerSocket(0)) {
            int port = free.getLocalPort();
            free.close();
            try (var secure = new Server("--tls-port", "" + port, "--tls-cert-file", folder.resolve("cert.pem").toString(),
                    "--tls-key-file", folder.resolve("key.pem").toString(), "--tls-auth-clients", "no")) {
                String[] properties = {"spring.data.redis.client-type=" + client, "spring.data.redis.port=" + port,
                    "spring.data.redis.ssl.bundle=redis",
                    "spring.ssl.bundle.pem.redis.truststore.certificate=" + folder.resolve("cert.pem").toUri()};
                try (var context = run(secure, properties)) {
                    locks(context.getBean(Locks.class), "secured", secure);
                    assertEquals("UP", status(context));
                }
                try (var context = run(secure, properties[0], properties[1], "spring.data.redis.ssl.enabled=true")) {
                    assertEquals("DOWN", status(context), "a certificate that nobody trusts is believed");
                }
            }
        }
    }

    private static void certificate(Path folder) throws Exception {
        Process made = new ProcessBuilder("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
                "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem")
                .directory(folder.toFile()).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        assertEquals(0, made.waitFor(), "openssl");
    }

    @Test
    void listenersAndCustomizersAreBeans() {
        var heard = new java.util.concurrent.CopyOnWriteArrayList<String>();
        LockListener fails = new LockListener() {
            @Override
            public void waited(Waited wait) {
                throw new IllegalStateException("of the user's");
            }
        };
        LockListener hears = new LockListener() {
            @Override
            public Object context() {
                return "context";
            }

            @Override
            public void waited(Waited wait) {
                heard.add(wait.key() + wait.context());
            }
        };
        runner("rlock.owner-prefix=app:", "rlock.lease=7s").withBean("one", LockListener.class, () -> fails)
                .withBean("two", LockListener.class, () -> hears)
                .withBean(LocksCustomizer.class, () -> builder -> builder.timeout(Duration.ofSeconds(1)))
                .run(context -> {
                    try (Hold hold = context.getBean(Locks.class).lock("custom").acquire()) {
                        assertTrue(hold.owner().startsWith("app:"));
                        assertTrue(hold.remaining().toMillis() <= 7_000);
                    }
                    Server.until(() -> heard.equals(List.of("customcontext")));
                });
        runner("rlock.enabled=false").run(context -> assertEquals(0, context.getBeansOfType(Locks.class).size()));
    }
}
