package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Supplier;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;
import rlock.LockLostException;
import rlock.Locks;

/** A waiting request learns of its end by a message, and so does whoever asked for the signal of a loss. */
@Timeout(120)
class TellTest {
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    private static long millisSince(long start) {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
    }

    /** Waits without a thread, with one, for several locks, and in a session. */
    enum Wait {
        ASYNC(locks -> locks.lock("{k}").acquireAsync(Duration.ofSeconds(30)).thenApply(Optional::orElseThrow)),
        THREAD(locks -> inThread(() -> locks.lock("{k}").acquire())),
        SEVERAL(locks -> inThread(() -> locks.all("{k}", "{k}2").acquire())),
        SESSION(locks -> inThread(() -> locks.lock("{k}").session().acquire())),
        SESSION_ASYNC(locks -> locks.lock("{k}").session().acquireAsync(Duration.ofSeconds(30)).thenApply(Optional::orElseThrow)),
        PERMIT(locks -> inThread(() -> locks.permits("{k}", 1).acquire()));

        private final Function<Locks, CompletableFuture<? extends AutoCloseable>> begins;

        Wait(Function<Locks, CompletableFuture<? extends AutoCloseable>> begins) {
            this.begins = begins;
        }

        private static <T> CompletableFuture<T> inThread(Supplier<T> work) {
            return CompletableFuture.supplyAsync(work, task -> new Thread(task).start());
        }
    }

    private static AutoCloseable granted(Wait wait, CompletableFuture<? extends AutoCloseable> waiting) {
        try {
            return waiting.get(20, TimeUnit.SECONDS);
        } catch (Exception late) {
            throw new AssertionError(wait + " is not granted", late);
        }
    }

    private static long asked() {
        return server.calls("rlock.acquire") + server.calls("rlock.macquire");
    }

    private static void each(Over over, int port, Told told) throws Exception {
        for (Wait wait : Wait.values()) {
            try (var session = over.open(port)) {
                told.by(wait, session.locks());
            }
        }
    }

    private interface Told {
        void by(Wait wait, Locks locks) throws Exception;
    }

    @ParameterizedTest
    @EnumSource
    void aGrantIsHeardAtOnceWithoutAnotherRequest(Over over) throws Exception {
        each(over, server.port, (wait, locks) -> {
            long fastest = Long.MAX_VALUE;
            int asleep = 0;
            for (int i = 0; i < 10; i++) {
                server.say("RLOCK.ACQUIRE", "{k}", "somebody");
                var waiting = wait.begins.apply(locks);
                Server.until(() -> server.waiters("{k}") == 1);
                long asked = asked();
                long start = System.nanoTime();
                server.say("RLOCK.RELEASE", "{k}", "somebody");
                AutoCloseable hold = granted(wait, waiting);
                fastest = Math.min(fastest, millisSince(start));
                if (asked() == asked) asleep++;
                hold.close();
            }
            assertTrue(fastest < 500, wait + ": " + fastest + " ms");
            assertTrue(asleep >= 5, wait + ": " + asleep + " of 10 without another request");
        });
    }

    @ParameterizedTest
    @EnumSource
    void aWaitOutlivesItsSubscription(Over over) throws Exception {
        each(over, server.port, (wait, locks) -> {
            server.say("RLOCK.ACQUIRE", "{k}", "somebody");
            var waiting = wait.begins.apply(locks);
            Server.until(() -> server.waiters("{k}") == 1);
            server.say("CLIENT", "KILL", "TYPE", "pubsub");
            long start = System.nanoTime();
            server.say("RLOCK.RELEASE", "{k}", "somebody");
            AutoCloseable hold = granted(wait, waiting);
            assertTrue(millisSince(start) < 2_500, wait + ": " + millisSince(start) + " ms");
            hold.close();
            // After it has asked again, it has its place: later requests are granted later.
            server.say("RLOCK.ACQUIRE", "{k}", "somebody");
            var first = wait.begins.apply(locks);
            Server.until(() -> server.waiters("{k}") == 1);
            long asked = asked();
            server.say("CLIENT", "KILL", "TYPE", "pubsub");
            Server.until(() -> asked() > asked && server.listeners() == 1);
            var second = locks.lock("{k}").detached().acquireAsync(Duration.ofSeconds(30));
            Server.until(() -> server.waiters("{k}") == 2);
            server.say("RLOCK.RELEASE", "{k}", "somebody");
            AutoCloseable one = granted(wait, first);
            assertFalse(second.isDone());
            one.close();
            second.get(10, TimeUnit.SECONDS).orElseThrow().release();
            assertTrue(server.isFree("{k}"));
        });
    }

    @ParameterizedTest
    @EnumSource
    void twoThousandWaitsHaveFewConnections(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            long before = server.connections();
            KeyLock lock = session.locks().lock("crowd");
            server.say("RLOCK.ACQUIRE", "crowd", "somebody", "LEASE", "600000");
            var all = new ArrayList<CompletableFuture<Optional<Hold>>>();
            for (int i = 0; i < 2_000; i++) all.add(lock.acquireAsync(Duration.ofSeconds(100)));
            Server.until(60, () -> server.waiters("crowd") == 2_000);
            long most = server.connections() - before;
            assertTrue(most <= 17, most + " connections"); // 8 to ask, 8 for what is aside, and one that hears
            assertEquals(1, server.listeners());
            System.out.println(over + ": " + most + " connections for 2000 waits");
            all.forEach(each -> each.cancel(false));
            Server.until(60, () -> server.waiters("crowd") == 0);
            server.say("RLOCK.RELEASE", "crowd", "somebody");
        }
    }

    // --- a slot that moves

    @ParameterizedTest
    @EnumSource
    void aWaitFollowsItsSlot(Over over) throws Exception {
        try (var one = new Server("--cluster-enabled", "yes"); var two = new Server("--cluster-enabled", "yes")) {
            one.say("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
            two.say("CLUSTER", "MEET", "127.0.0.1", "" + one.port);
            for (Server each : List.of(one, two))
                Server.until(() -> text(each.say("CLUSTER", "INFO")).contains("cluster_state:ok")
                        && text(each.say("CLUSTER", "NODES")).lines().filter(line -> line.contains("connected")).count() == 2);
            try (var session = over.cluster(one.port)) {
                for (String key : List.of("a", "b")) { // the second one when the other server is known already
                    one.say("RLOCK.ACQUIRE", key, "somebody", "LEASE", "600000");
                    var waiting = session.locks().lock(key).acquireAsync(Duration.ofSeconds(60));
                    var tied = CompletableFuture.supplyAsync(() -> session.locks().lock(key).session().acquire(), task -> new Thread(task).start());
                    Server.until(() -> one.waiters(key) == 2);
                    move(key, one, two);
                    Server.until(() -> two.waiters(key) == 2);
                    long start = System.nanoTime();
                    two.say("RLOCK.RELEASE", key, "somebody");
                    Hold first = (Hold) CompletableFuture.anyOf(waiting.thenApply(Optional::orElseThrow), tied).get(10, TimeUnit.SECONDS);
                    assertTrue(millisSince(start) < 2_500, millisSince(start) + " ms");
                    first.release();
                    (waiting.isDone() && waiting.get().orElseThrow() == first ? tied.get(10, TimeUnit.SECONDS)
                            : waiting.get(10, TimeUnit.SECONDS).orElseThrow()).release();
                    assertTrue(two.isFree(key));
                }
            }
        }
    }

    private static void move(String key, Server from, Server to) {
        String slot = "" + from.say("CLUSTER", "KEYSLOT", key);
        String ours = text(from.say("CLUSTER", "MYID"));
        String theirs = text(to.say("CLUSTER", "MYID"));
        to.say("CLUSTER", "SETSLOT", slot, "IMPORTING", ours);
        from.say("CLUSTER", "SETSLOT", slot, "MIGRATING", theirs);
        from.say("MIGRATE", "127.0.0.1", "" + to.port, key, "0", "5000");
        to.say("CLUSTER", "SETSLOT", slot, "NODE", theirs);
        from.say("CLUSTER", "SETSLOT", slot, "NODE", theirs);
        assertThrows(JedisMovedDataException.class, () -> from.say("RLOCK.HOLDS", key, "nobody"));
    }

    private static String text(Object reply) {
        return new String((byte[]) reply);
    }

    // --- losses

    /** A program may end this way when it has lost its lock: closing waits for no callback, least of all for itself. */
    @ParameterizedTest
    @EnumSource
    void aCallbackOfALossMayCloseItsLocks(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            var took = new CompletableFuture<Long>();
            session.locks().lock("closing").acquire().onLost(() -> {
                long start = System.nanoTime();
                session.locks().close();
                took.complete(millisSince(start));
            });
            server.say("RLOCK.FORCE", "closing");
            long millis = took.get(20, TimeUnit.SECONDS);
            assertTrue(millis < 1_000, millis + " ms");
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLossIsHeardAtOnceByWhoAsksForIt(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            Locks locks = session.locks();
            Duration lease = Duration.ofMinutes(30); // no renewal finds out
            Map<String, Callable<CompletableFuture<Void>>> holds = new LinkedHashMap<>();
            holds.put("lock", () -> locks.lock("lost").lease(lease).tryAcquire().orElseThrow().lost());
            holds.put("fixed", () -> locks.lock("lost").fixedLease(lease).tryAcquire().orElseThrow().lost());
            holds.put("async", () -> locks.lock("lost").lease(lease).acquireAsync(Duration.ZERO).get().orElseThrow().lost());
            holds.put("session", () -> locks.lock("lost").lease(lease).session().tryAcquire().orElseThrow().lost());
            holds.put("several", () -> locks.all(locks.readLock("found"), locks.lock("lost")).lease(lease).tryAcquire().orElseThrow().lost());
            holds.put("leader", () -> locks.election("lost").campaign(Duration.ofSeconds(5)).orElseThrow().lost());
            for (var each : holds.entrySet()) {
                long fastest = Long.MAX_VALUE;
                for (int i = 0; i < 5; i++) {
                    var lost = new CompletableFuture<Void>();
                    each.getValue().call().thenRun(() -> lost.complete(null));
                    Server.until(() -> number("rlock_observers") >= 1);
                    assertFalse(lost.isDone());
                    long start = System.nanoTime();
                    server.say("RLOCK.FORCE", "lost");
                    lost.get(3, TimeUnit.SECONDS);
                    fastest = Math.min(fastest, millisSince(start));
                    Server.until(() -> number("rlock_observers") == 0);
                    if (locks.lock("lost").getHoldCount() > 0) assertThrows(LockLostException.class, locks.lock("lost")::unlock);
                    if (locks.readLock("found").getHoldCount() > 0) assertThrows(LockLostException.class, locks.readLock("found")::unlock);
                }
                assertTrue(fastest < 500, each.getKey() + ": " + fastest + " ms");
            }
            server.say("RLOCK.FORCE", "found");
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoAsksForTheLossStillReleasesAndIsHeardAfterTheSubscriptionWasKilled(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(over + ":kept").lease(Duration.ofMinutes(30));
            long before = server.calls("rlock.await");
            lock.acquire(Duration.ofSeconds(20)).orElseThrow().release();
            Hold read = session.locks().readLock(lock.key()).tryAcquire().orElseThrow();
            read.lost();
            read.release();
            assertEquals(before, server.calls("rlock.await"), "nobody asked, or the server does not say it");
            Hold hold = lock.tryAcquire().orElseThrow();
            var lost = hold.lost();
            Server.until(() -> number("rlock_observers") == 1);
            lock.tryAcquire().orElseThrow().release();
            hold.release();
            Server.until(() -> number("rlock_observers") == 0 && server.isFree(lock.key()));
            Hold next = lock.tryAcquire().orElseThrow();
            assertFalse(lost.isDone());
            var nextLost = next.lost();
            Server.until(() -> number("rlock_observers") >= 1);
            server.say("CLIENT", "KILL", "TYPE", "pubsub");
            Server.until(() -> server.listeners() == 1);
            server.say("RLOCK.FORCE", lock.key());
            nextLost.get(5, TimeUnit.SECONDS);
            assertFalse(lost.isDone());
            assertThrows(LockLostException.class, next::release);
        }
    }

    private static long number(String name) {
        String info = text(server.say("INFO", "rlock"));
        return info.lines().filter(line -> line.startsWith(name + ":")).mapToLong(line -> Long.parseLong(line.substring(name.length() + 1).strip())).findFirst().orElseThrow();
    }

    // --- what no retry helps

    private static Map<String, Callable<?>> waits(Locks locks) {
        Map<String, Callable<?>> all = new LinkedHashMap<>();
        all.put("lock", () -> {
            locks.lock("{h}").lock();
            return null;
        });
        all.put("tryLock", () -> locks.lock("{h}").tryLock(60, TimeUnit.SECONDS));
        all.put("acquireAsync", () -> locks.lock("{h}").acquireAsync(Duration.ofSeconds(60)).get());
        all.put("session", () -> locks.lock("{h}").session().acquire());
        all.put("all", () -> locks.all("{h}", "{h}2").acquire(Duration.ofSeconds(60)));
        all.put("permits", () -> locks.permits("{h}", 2).acquire(Duration.ofSeconds(60)));
        all.put("campaign", () -> locks.election("{h}").campaign(Duration.ofSeconds(60)));
        return all;
    }

    private static LockException failed(String name, Callable<?> wait) {
        long start = System.nanoTime();
        Exception failed = assertThrows(Exception.class, wait::call, name);
        assertTrue(millisSince(start) < 20_000, name + ": " + millisSince(start) + " ms"); // it would wait for 60 s, or for ever
        return assertInstanceOf(LockException.class, failed instanceof ExecutionException ? failed.getCause() : failed, name);
    }

    @ParameterizedTest
    @EnumSource
    void whoMayNotSubscribeIsToldSoWhenItHasToWait(Over over) {
        server.say("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "+@all");
        server.say("ACL", "SETUSER", "dumb", "on", ">secret", "~*", "&*", "+@all", "-ssubscribe");
        server.say("RLOCK.ACQUIRE", "{h}", "somebody", "LEASE", "600000");
        for (String user : List.of("deaf", "dumb")) {
            try (var session = over.as(server.port, user, "secret", "")) {
                waits(session.locks()).forEach((name, wait) -> {
                    LockException refused = failed(name, wait);
                    assertInstanceOf(LockException.NoPermission.class, refused, user + " " + name);
                    assertTrue(refused.getMessage().endsWith("(to wait, a user needs +ssubscribe and &rlock:tell:*)"), refused.getMessage());
                });
                assertFalse(session.locks().lock("{h}").tryLock());
                session.locks().lock("free").acquire().release();
                session.locks().lock("free").session().acquire().release();
                Server.until(() -> server.waiters("{h}") == 0);
            }
        }
        server.say("RLOCK.RELEASE", "{h}", "somebody");
    }

    @ParameterizedTest
    @EnumSource
    void aModuleWithoutTellIsTooOld(Over over) {
        server.say("RLOCK.ACQUIRE", "{h}", "somebody", "LEASE", "600000");
        try (var proxy = new Proxy(server.port)) {
            proxy.forget("TELL");
            try (var session = over.open(proxy.port)) {
                waits(session.locks()).forEach((name, wait) -> {
                    LockException refused = failed(name, wait);
                    String says = "the server's RLOCK module is too old for this package, it does not know TELL: ERR syntax error at 'TELL': ";
                    assertTrue(refused.getMessage().startsWith(says), name + ": " + refused.getMessage());
                });
                session.locks().lock("free").tryAcquire().orElseThrow().release();
            }
        }
        server.say("RLOCK.RELEASE", "{h}", "somebody");
    }
}
