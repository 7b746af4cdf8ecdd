package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import rlock.Hold;
import rlock.Holds;
import rlock.KeyLock;
import rlock.LockException;
import rlock.LockLostException;

/** Each of these failed with the files to copy that preceded this package. */
@Timeout(120)
class BreakagesTest {
    @ParameterizedTest
    @EnumSource
    void twoObjectsForOneKeyOnOneThreadDoNotFreeEachOthersHold(Over over) {
        try (var server = new Server(); var session = over.open(server.port); var other = over.open(server.port)) {
            var here = session.locks().lock("order");
            var there = other.locks().lock("order");
            here.lock();
            there.lock();
            here.unlock();
            assertEquals(1, server.holds("order", session.locks().threadOwner()), "the other object's level");
            there.unlock();
            assertTrue(server.isFree("order"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void twoNamesOfOneServerAreOneServer(Over over) {
        try (var server = new Server();
                var session = over.open(server.port);
                var other = over.open("localhost", server.port, same -> same)) {
            countTogether(server, session.locks().lock("order"), other.locks().lock("order"));
            countTogether(server, session.locks().lock("named").owner("ann"), other.locks().lock("named").owner("ann"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void namesAreDrawnWhenAServerIsFirstUsedSoThatNoSnapshotHasThem(Over over) {
        try (var server = new Server()) {
            String before;
            try (var session = over.open(server.port)) {
                before = session.locks().threadOwner();
            }
            try (var session = over.open(server.port)) {
                assertNotEquals(before, session.locks().threadOwner());
            }
        }
    }

    private static void countTogether(Server server, KeyLock one, KeyLock two) {
        Hold outer = one.acquire();
        Hold inner = two.acquire(); // this thread would wait for ever if it were somebody else here
        assertEquals(outer.owner(), inner.owner());
        assertEquals(outer.token(), inner.token());
        inner.release();
        assertTrue(outer.isHeld());
        assertEquals(1, server.holds(one.key(), outer.owner()), "the outer hold");
        outer.release();
        assertTrue(server.isFree(one.key()));
    }

    @ParameterizedTest
    @EnumSource
    void twentyThreadsGetOn(Over over) {
        try (var server = new Server(); var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock("counter");
            var inside = new AtomicInteger();
            var most = new AtomicInteger();
            List<CompletableFuture<Void>> all = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                all.add(CompletableFuture.runAsync(() -> {
                    for (int j = 0; j < 5; j++) {
                        lock.lock();
                        most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                        inside.decrementAndGet();
                        lock.unlock();
                    }
                }, task -> new Thread(task).start()));
            }
            CompletableFuture.allOf(all.toArray(CompletableFuture[]::new)).orTimeout(60, TimeUnit.SECONDS).join();
            assertEquals(1, most.get());
            assertTrue(server.isFree("counter"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aThreadOfTheCommonPoolBeginsNothingElseWhileItWaitsForTheServer(Over over) {
        assertTrue(ForkJoinPool.getCommonPoolParallelism() > 1, "futures do not use the common pool: see pom.xml");
        try (var server = new Server(); var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock("order");
            Runnable task = () -> {
                lock.lock();
                int depth = lock.getHoldCount();
                lock.unlock();
                assertEquals(1, depth, "two tasks hold it");
            };
            // A thread of the pool may run tasks that it submitted itself.
            CompletableFuture.supplyAsync(() -> Stream.generate(() -> CompletableFuture.runAsync(task)).limit(100).toArray(CompletableFuture[]::new))
                    .thenCompose(CompletableFuture::allOf).orTimeout(30, TimeUnit.SECONDS).join();
            assertTrue(server.isFree("order"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aFutureThatTimedOutOrWasCancelledLeavesNoHold(Over over) throws Exception {
        try (var server = new Server(); var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock("abandoned").lease(Duration.ofSeconds(60));
            Hold first = lock.acquireAsync(Duration.ZERO).get().orElseThrow();
            var late = lock.acquireAsync(KeyLock.FOREVER).orTimeout(200, TimeUnit.MILLISECONDS);
            var unwanted = lock.acquireAsync(KeyLock.FOREVER);
            var failed = assertThrows(ExecutionException.class, late::get);
            assertInstanceOf(TimeoutException.class, failed.getCause());
            unwanted.cancel(true);
            Server.until(() -> server.waiters("abandoned") == 0);
            // At the same time as the grant: whichever comes first, nothing remains.
            for (int i = 0; i < 50; i++) {
                var race = lock.acquireAsync(KeyLock.FOREVER);
                Server.until(() -> server.waiters("abandoned") == 1 || race.isDone());
                var cancelling = CompletableFuture.runAsync(() -> race.cancel(true));
                first.release();
                cancelling.join();
                if (!race.isCancelled()) race.get().orElseThrow().release();
                first = lock.acquireAsync(Duration.ofSeconds(10)).get().orElseThrow(() -> new AssertionError("a hold was left"));
            }
            first.release();
            Server.until(() -> server.isFree("abandoned"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aRenewalIsRepeatedWhileNoServerDecides(Over over) {
        try (var server = new Server(); var session = over.open(server.port)) {
            Hold hold = session.locks().lock("order").lease(Duration.ofMinutes(2)).acquire();
            hold.renew(Duration.ofMinutes(1));
            server.say("CLIENT", "KILL", "TYPE", "normal");
            hold.renew(Duration.ofMinutes(1));
            server.say("REPLICAOF", "127.0.0.1", "1");
            var renewing = CompletableFuture.runAsync(() -> hold.renew(Duration.ofMinutes(5)), task -> new Thread(task).start());
            Server.until(() -> new String((byte[]) server.say("INFO", "errorstats")).contains("READONLY"));
            server.say("REPLICAOF", "NO", "ONE");
            renewing.join();
            assertTrue(hold.remaining().toMinutes() >= 4, hold.remaining().toString());
            server.say("REPLICAOF", "127.0.0.1", "1");
            assertThrows(LockException.Unavailable.class, () -> hold.renew(Duration.ofMinutes(1)));
            server.say("REPLICAOF", "NO", "ONE");
            hold.release();
            Hold brief = session.locks().lock("order").fixedLease(Duration.ofSeconds(1)).acquire();
            server.signal("STOP");
            assertThrows(LockLostException.class, () -> brief.renew(Duration.ofMinutes(1)), "beyond the deadline");
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatWasReleasedIsNotRenewedAndWasNotLost(Over over) {
        try (var server = new Server(); var session = over.open(server.port)) {
            Hold hold = session.locks().lock("order").acquire();
            Holds holds = session.locks().all("one", "two").acquire();
            hold.release();
            holds.release();
            long before = server.calls("rlock.renew") + server.calls("rlock.mrenew");
            assertThrowsExactly(IllegalMonitorStateException.class, () -> hold.renew(Duration.ofMinutes(1)));
            assertThrowsExactly(IllegalMonitorStateException.class, () -> holds.renew(Duration.ofMinutes(1)));
            assertEquals(before, server.calls("rlock.renew") + server.calls("rlock.mrenew"));
            assertFalse(hold.lost().isDone() || holds.lost().isDone());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aServerWithTooManyClientsIsWaitedFor(Over over) {
        try (var server = new Server(); var inside = new Jedis("127.0.0.1", server.port)) {
            inside.aclSetUser("app", "on", ">secret", "~*", "&*", "+@all"); // else Jedis says nothing before its first request
            try (var session = over.as(server.port, "app", "secret", "")) {
                Hold hold = session.locks().lock("order").acquire();
                inside.configSet("maxclients", "1");
                inside.sendCommand(() -> "CLIENT".getBytes(), "KILL", "TYPE", "normal");
                assertThrows(LockException.Unavailable.class, () -> session.locks().lock("other").tryLock(100, TimeUnit.MILLISECONDS));
                var releasing = CompletableFuture.runAsync(hold::release, task -> new Thread(task).start());
                String before = rejected(inside);
                Server.until(() -> !rejected(inside).equals(before));
                inside.configSet("maxclients", "100");
                releasing.join();
                assertTrue(server.isFree("order"));
            }
        }
    }

    private static String rejected(Jedis inside) {
        return inside.info("stats").lines().filter(line -> line.startsWith("rejected_connections:")).findFirst().orElseThrow();
    }

    @ParameterizedTest
    @EnumSource
    void aClusterIsServed(Over over) throws Exception {
        try (var one = new Server("--cluster-enabled", "yes");
                var two = new Server("--cluster-enabled", "yes");
                var three = new Server("--cluster-enabled", "yes")) {
            form(one, two, three);
            try (var session = over.cluster(one.port);
                    var sameWithOtherSeeds = over.cluster(three.port, two.port)) {
                for (var each : List.of(one, two, three)) {
                    String key = keyOf(each);
                    countTogether(each, session.locks().lock(key), sameWithOtherSeeds.locks().lock(key));
                }
                for (int i = 0; i < 50; i++) {
                    KeyLock lock = session.locks().lock("key:" + i);
                    assertTrue(lock.tryLock(1, TimeUnit.SECONDS));
                    var waiting = lock.acquireAsync(Duration.ofSeconds(10));
                    assertFalse(CompletableFuture.supplyAsync(lock::tryLock).get());
                    lock.unlock();
                    waiting.get().orElseThrow().release();
                }
            }
        }
    }

    private static String keyOf(Server server) {
        for (int i = 0; ; i++) {
            try {
                server.say("RLOCK.HOLDS", "key:" + i, "nobody");
                return "key:" + i;
            } catch (JedisMovedDataException elsewhere) {
                // The next one, then.
            }
        }
    }

    private static void form(Server... servers) {
        String[] ranges = {"0", "5000", "5001", "10000", "10001", "16383"};
        for (int i = 0; i < 3; i++) {
            servers[i].say("CLUSTER", "ADDSLOTSRANGE", ranges[2 * i], ranges[2 * i + 1]);
            servers[i].say("CLUSTER", "SET-CONFIG-EPOCH", "" + (i + 1));
        }
        servers[1].say("CLUSTER", "MEET", "127.0.0.1", "" + servers[0].port);
        servers[2].say("CLUSTER", "MEET", "127.0.0.1", "" + servers[0].port);
        for (Server server : servers)
            Server.until(() -> ((List<?>) server.say("CLUSTER", "SLOTS")).size() == 3
                    && new String((byte[]) server.say("CLUSTER", "INFO")).contains("cluster_state:ok"));
    }
}
