package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;

/** What {@code acquireAsync} promises. */
@Timeout(120)
class AsyncTest {
    /**
     * 16 wait and are read, 16 complete futures, 8 each send, undo and renew; plus the timer, and the one that finds
     * the primary.
     */
    private static final int THREADS = 16 + 16 + 3 * 8 + 8;
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server("--rlock.max-waiters", "2000");
    }

    private static long threads() {
        return Thread.getAllStackTraces().keySet().stream().filter(each -> each.getName().startsWith("rlock")).count();
    }

    private static List<CompletableFuture<Optional<Hold>>> waits(KeyLock lock, int count, Duration patience) {
        var all = new ArrayList<CompletableFuture<Optional<Hold>>>();
        for (int i = 0; i < count; i++) all.add(lock.acquireAsync(patience));
        return all;
    }

    @ParameterizedTest
    @EnumSource
    void aThousandWaitsHaveFewThreads(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(over + ":crowd");
            server.say("RLOCK.ACQUIRE", lock.key(), "somebody", "LEASE", "600000");
            long most = threads();
            var all = waits(lock, 1000, Duration.ofSeconds(100));
            long[] peak = {most};
            BooleanSupplier allWait = () -> {
                peak[0] = Math.max(peak[0], threads());
                return server.waiters(lock.key()) == 1000;
            };
            Server.until(allWait);
            assertEquals(1000, session.locks().counters().waiting());
            var granted = new AtomicInteger();
            var inside = new AtomicInteger();
            var released = all.stream().map(each -> each.thenAccept(hold -> {
                assertEquals(1, inside.incrementAndGet(), "two hold it");
                granted.incrementAndGet();
                inside.decrementAndGet();
                hold.orElseThrow().release();
            })).toArray(CompletableFuture[]::new);
            server.say("RLOCK.RELEASE", lock.key(), "somebody");
            var done = CompletableFuture.allOf(released);
            while (!done.isDone()) {
                peak[0] = Math.max(peak[0], threads());
                TimeUnit.MILLISECONDS.sleep(20);
            }
            done.get();
            assertEquals(1000, granted.get());
            assertTrue(peak[0] <= THREADS, peak[0] + " threads");
            assertTrue(server.isFree(lock.key()));
            assertEquals(0, session.locks().counters().waiting());
            assertEquals(0, session.locks().counters().held());
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoCompletesTheFutureLeavesNothingBehind(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(over + ":cancelled");
            server.say("RLOCK.ACQUIRE", lock.key(), "somebody", "LEASE", "600000");
            var all = waits(lock, 100, Duration.ofSeconds(100));
            Server.until(() -> server.waiters(lock.key()) == 100);
            all.forEach(each -> each.cancel(false));
            Server.until(() -> server.waiters(lock.key()) == 0);
            server.say("RLOCK.RELEASE", lock.key(), "somebody");
            // Even while they are being granted.
            for (int i = 0; i < 200; i++) {
                var one = lock.acquireAsync(Duration.ofSeconds(10));
                if (i % 2 == 0) TimeUnit.MICROSECONDS.sleep(i * 10);
                if (!one.cancel(false)) one.get().orElseThrow().release();
            }
            Server.until(() -> server.isFree(lock.key()));
            assertEquals(0, session.locks().counters().waiting());
            Server.until(() -> session.locks().counters().held() == 0);
        }
    }

    @ParameterizedTest
    @EnumSource
    void oneOwnerWaitsForItsSeatWithoutAThread(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(over + ":named").owner("job-" + over);
            server.say("RLOCK.ACQUIRE", lock.key(), "somebody", "LEASE", "600000");
            var all = waits(lock, 200, Duration.ofSeconds(100));
            var hasty = lock.acquireAsync(Duration.ofMillis(50));
            Server.until(() -> server.waiters(lock.key()) == 1);
            assertEquals(Optional.empty(), hasty.get(5, TimeUnit.SECONDS));
            all.remove(100).cancel(false);
            server.say("RLOCK.RELEASE", lock.key(), "somebody");
            var holds = new ArrayList<Hold>();
            for (var each : all) holds.add(each.get(20, TimeUnit.SECONDS).orElseThrow());
            assertEquals(199, server.holds(lock.key(), "job-" + over));
            holds.forEach(Hold::release);
            assertTrue(server.isFree(lock.key()));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aSessionIsTiedToItsConnection(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(over + ":tied").session();
            server.say("RLOCK.ACQUIRE", lock.key(), "somebody", "LEASE", "600000");
            var one = lock.acquireAsync(Duration.ofSeconds(20));
            Server.until(() -> server.waiters(lock.key()) == 1);
            server.say("RLOCK.RELEASE", lock.key(), "somebody");
            Hold hold = one.get(10, TimeUnit.SECONDS).orElseThrow();
            assertTrue(lock.info().holders().get(0).isSession());
            session.locks().close();
            Server.until(() -> server.isFree(lock.key()));
            hold.lost().get(5, TimeUnit.SECONDS);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aSilentServerIsNotWaitedFor(Over over) throws Exception {
        try (var silent = new Server(); var session = over.open(silent.port); var stranger = over.open(silent.port)) {
            session.locks().lock("known").acquire().release();
            silent.signal("STOP");
            long start = System.nanoTime();
            var all = waits(session.locks().lock("silent"), 300, Duration.ofMillis(400));
            all.addAll(waits(stranger.locks().lock("silent"), 300, Duration.ofMillis(400)));
            for (var each : all) {
                var failed = assertThrows(ExecutionException.class, () -> each.get(10, TimeUnit.SECONDS));
                assertInstanceOf(LockException.Unavailable.class, failed.getCause());
            }
            long millis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
            assertTrue(millis < 2_000, millis + " ms");
            silent.signal("CONT");
            Server.until(() -> silent.isFree("silent"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void closingEndsAllWaits(Over over) {
        try (var session = over.open(server.port); var unreachable = over.open(1)) {
            KeyLock lock = session.locks().lock(over + ":closed");
            server.say("RLOCK.ACQUIRE", lock.key(), "somebody", "LEASE", "600000");
            var all = waits(lock, 50, Duration.ofSeconds(100));
            all.addAll(waits(lock.owner("one"), 5, Duration.ofSeconds(100)));
            Server.until(() -> server.waiters(lock.key()) == 51);
            all.add(unreachable.locks().lock("nowhere").acquireAsync(KeyLock.FOREVER));
            session.locks().close();
            unreachable.locks().close();
            for (var each : all) {
                var failed = assertThrows(ExecutionException.class, () -> each.get(5, TimeUnit.SECONDS));
                assertInstanceOf(IllegalStateException.class, failed.getCause());
            }
            Server.until(() -> server.waiters(lock.key()) == 0);
            server.say("RLOCK.RELEASE", lock.key(), "somebody");
            assertTrue(lock.acquireAsync(Duration.ZERO).isCompletedExceptionally());
        }
    }
}
