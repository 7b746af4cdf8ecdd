package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.redisson.api.RedissonClient;
import rlock.LockException;
import rlock.Locks;

/** No retry helps: every request ends at once, with an error that names the cause. */
@Timeout(120)
class PermanentTest {
    @TempDir
    static Path folder;
    private static Server open;
    private static Server guarded;
    private static Server bare;
    private static Server replica;
    private static Server secure;
    private static Server demanding;
    private static Server cluster;
    private static Sentinel sentinel;
    private static Process web;
    private static int webPort;
    private static int securePort;
    private static int demandingPort;

    /** What is wrong, and a text that the error contains with every client. */
    enum Wrong {
        PASSWORD("WRONGPASS", () -> Place.at(guarded.port).as(null, "wrong")),
        USER("WRONGPASS", () -> Place.at(guarded.port).as("nobody", "secret")),
        NO_PASSWORD("NOAUTH", () -> Place.at(guarded.port)),
        NO_PERMISSION_FOR_THE_COMMAND("NOPERM", () -> Place.at(open.port).as("reader", "reader")),
        NO_PERMISSION_FOR_THE_KEY("NOPERM", () -> Place.at(open.port).as("other", "other")),
        NO_MODULE("the server has not loaded the RLOCK module", () -> Place.at(bare.port)),
        A_REPLICA("is a replica", () -> Place.at(replica.port)),
        NO_SUCH_DATABASE("DB index is out of range", () -> Place.at(open.port).database(99)),
        CERTIFICATE_NOT_TRUSTED("TLS", () -> Place.at(securePort).secure(null)),
        CERTIFICATE_OF_ANOTHER_HOST("TLS", () -> Place.at(securePort).host("localhost").secure(folder.resolve("cert.pem"))),
        CERTIFICATE_REQUIRED("TLS", () -> Place.at(demandingPort).secure(folder.resolve("cert.pem"))),
        A_WEB_SERVER("PROTOCOL", () -> Place.at(webPort)),
        SENTINELS_PASSWORD("WRONGPASS", () -> Place.at(sentinel.port).watched("main", "wrong")),
        NO_PASSWORD_FOR_SENTINEL("NOAUTH", () -> Place.at(sentinel.port).watched("main", null)),
        SENTINELS_SERVICE("knows no 'unknown'", () -> Place.at(sentinel.port).watched("unknown", "watch")),
        PASSWORD_BEHIND_SENTINEL("WRONGPASS", () -> Place.at(sentinel.port).watched("main", "watch").as(null, "wrong")),
        NO_CLUSTER("cluster support disabled", () -> Place.at(open.port).cluster()),
        PASSWORD_OF_A_CLUSTER("WRONGPASS", () -> Place.at(cluster.port).cluster().as(null, "wrong"));

        private final String says;
        private final Supplier<Place> place;

        Wrong(String says, Supplier<Place> place) {
            this.says = says;
            this.place = place;
        }
    }

    enum Bound { JEDIS, LETTUCE, REDISSON }

    @BeforeAll
    static void start() throws Exception {
        var certificate = Certificate.of(folder, "IP:127.0.0.1");
        securePort = free();
        demandingPort = free();
        open = new Server();
        open.say("ACL", "SETUSER", "reader", "on", ">reader", "~*", "&*", "+@all", "-rlock.acquire", "-rlock.macquire");
        open.say("ACL", "SETUSER", "other", "on", ">other", "~elsewhere:*", "&*", "+@all");
        guarded = new Server();
        guarded.say("CONFIG", "SET", "requirepass", "secret");
        bare = new Server(false);
        replica = new Server("--replicaof", "127.0.0.1 " + open.port);
        secure = new Server(certificate.settings(securePort, "no"));
        demanding = new Server(certificate.settings(demandingPort, "yes"));
        cluster = new Server("--cluster-enabled", "yes");
        cluster.say("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
        Server.until(() -> new String((byte[]) cluster.say("CLUSTER", "INFO")).contains("cluster_state:ok"));
        cluster.say("CONFIG", "SET", "requirepass", "secret");
        sentinel = new Sentinel(folder, guarded.port, "requirepass watch", "sentinel auth-pass main secret");
        webPort = free();
        web = new ProcessBuilder("python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", folder.toString(), "" + webPort)
                .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        Server.until(() -> {
            try (var socket = new Socket("127.0.0.1", webPort)) {
                return true;
            } catch (IOException notYet) {
                return false;
            }
        });
    }

    private static int free() throws IOException {
        try (var socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    @AfterAll
    static void stop() {
        for (Server each : new Server[] {open, guarded, bare, replica, secure, demanding, cluster}) if (each != null) each.close();
        if (sentinel != null) sentinel.close();
        if (web != null) web.destroyForcibly();
    }

    private static Stream<Arguments> cells() {
        return Stream.of(Wrong.values()).flatMap(wrong -> Stream.of(Bound.values()).map(bound -> Arguments.of(wrong, bound)));
    }

    private static Map<String, Callable<?>> requests(Locks locks) {
        Map<String, Callable<?>> all = new LinkedHashMap<>();
        all.put("lock", () -> {
            locks.lock("k").lock();
            return null;
        });
        all.put("tryLock", () -> locks.lock("k").tryLock());
        all.put("acquireAsync", () -> locks.lock("k").acquireAsync(Duration.ofSeconds(60)).get());
        all.put("session", () -> locks.lock("k").session().acquire());
        all.put("all", () -> locks.all("{k}1", "{k}2").acquire(Duration.ofSeconds(60)));
        all.put("permits", () -> locks.permits("k", 2).acquire(Duration.ofSeconds(60)));
        all.put("campaign", () -> locks.election("k").campaign(Duration.ofSeconds(60)));
        return all;
    }

    private static Map<String, Callable<?>> requests(RedissonClient redisson) {
        Map<String, Callable<?>> all = new LinkedHashMap<>();
        all.put("lock", () -> {
            redisson.getLock("k").lock();
            return null;
        });
        all.put("tryLock", () -> redisson.getLock("k").tryLock());
        all.put("lockAsync", () -> redisson.getLock("k").lockAsync().get());
        all.put("multiLock", () -> redisson.getMultiLock(redisson.getLock("{k}1"), redisson.getLock("{k}2")).tryLock(60, TimeUnit.SECONDS));
        all.put("read", () -> redisson.getReadWriteLock("k").readLock().tryLock(60, TimeUnit.SECONDS));
        return all;
    }

    @ParameterizedTest(name = "{0} over {1}")
    @MethodSource("cells")
    void everyRequestEndsAtOnceAndNamesTheCause(Wrong wrong, Bound bound) throws Exception {
        Place place = wrong.place.get();
        List<String> faults = new ArrayList<>();
        switch (bound) {
            case JEDIS -> {
                try (var session = place.jedis(same -> same, same -> same)) {
                    requests(session.locks()).forEach((name, request) -> faults.addAll(fault(wrong, name, request)));
                }
            }
            case LETTUCE -> {
                try (var session = place.lettuce(same -> same, same -> same)) {
                    requests(session.locks()).forEach((name, request) -> faults.addAll(fault(wrong, name, request)));
                }
            }
            default -> {
                if (place.trusted() != null) place = place.secure(null); // which it refuses to be given
                RedissonClient redisson = place.redisson();
                requests(redisson).forEach((name, request) -> faults.addAll(fault(wrong, name, request)));
                redisson.shutdown();
            }
        }
        assertEquals(List.of(), faults);
    }

    private static List<String> fault(Wrong wrong, String name, Callable<?> request) {
        var task = new FutureTask<>(request);
        var thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        try {
            return List.of(name + " returned " + task.get(6, TimeUnit.SECONDS));
        } catch (TimeoutException waits) {
            return List.of(name + " waits");
        } catch (InterruptedException interrupt) {
            throw new IllegalStateException(interrupt);
        } catch (ExecutionException ended) {
            Throwable failed = ended.getCause();
            while (failed instanceof ExecutionException || failed instanceof CompletionException
                    || failed instanceof org.redisson.client.RedisException && failed.getCause() != null) failed = failed.getCause();
            boolean isRight = failed instanceof LockException && !(failed instanceof LockException.Unavailable)
                    && failed.getMessage().contains(wrong.says);
            return isRight ? List.of() : List.of(name + " failed with " + failed);
        }
    }
}
