package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.LockLostException;

/** A process that shuts down. */
@Timeout(60)
class DrainTest {
    private static final Duration LONG = Duration.ofSeconds(20);
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    private static <T> CompletableFuture<T> inThread(Callable<T> work) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return work.call();
            } catch (RuntimeException failed) {
                throw failed;
            } catch (Exception failed) {
                throw new IllegalStateException("not expected", failed);
            }
        }, task -> new Thread(task).start());
    }

    private static void assertClosed(CompletableFuture<?> wait) {
        Throwable failed = assertThrows(CompletionException.class, () -> wait.orTimeout(5, TimeUnit.SECONDS).join()).getCause();
        assertEquals("this Locks is closed", failed.getMessage());
    }

    @ParameterizedTest
    @EnumSource
    void waitsEndAtOnceAndBodiesKeepTheirLocks(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            String k = over + "k", pool = over + "pool", free = over + "free", named = over + "named";
            var locks = session.locks();
            Hold hold = locks.lock(k).lease(Duration.ofMillis(600)).detached().acquire();
            Hold mine = locks.lock(named).owner("ann").acquire();
            var waits = new ArrayList<CompletableFuture<?>>(List.of(
                    inThread(() -> locks.lock(k).acquire()), inThread(() -> locks.lock(k).session().acquire(LONG)),
                    inThread(() -> locks.all(k, over + "other").acquire()), inThread(() -> locks.any(pool, k).acquire()),
                    locks.lock(k).acquireAsync(LONG)));
            Server.until(() -> server.waiters(k) == 4 && !server.isFree(pool));
            var left = inThread(() -> locks.drain(LONG));
            waits.forEach(DrainTest::assertClosed);
            assertThrows(IllegalStateException.class, () -> locks.lock(free).tryAcquire());
            assertThrows(IllegalStateException.class, () -> locks.lock(free).owner("ann").acquire(LONG));
            assertThrows(IllegalStateException.class, () -> locks.all(free, k).acquire());
            assertThrows(IllegalStateException.class, () -> locks.any(pool, free).tryAcquire());
            assertClosed(locks.lock(free).acquireAsync(Duration.ZERO));
            Server.until(() -> server.waiters(k) == 0 && server.isFree(pool));
            locks.lock(named).owner("ann").tryAcquire().orElseThrow().release();
            mine.release();
            Thread.sleep(2_000); // three leases
            assertTrue(hold.isHeld() && server.holds(k, hold.owner()) == 1 && !left.isDone());
            hold.release();
            assertEquals(List.of(), left.get(5, TimeUnit.SECONDS));
            assertTrue(server.isFree(k) && server.isFree(named));
            assertEquals(List.of(), locks.drain(LONG));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aBodyThatDoesNotEndHearsOfItAndOthersStayOut(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            String k = over + "k2", own = over + "session", a = over + "a", b = over + "b";
            var locks = session.locks();
            Hold plain = locks.lock(k).lease(Duration.ofMillis(1_500)).acquire();
            Hold tied = locks.lock(own).session().acquire();
            Hold untold = locks.lock(b).lease(Duration.ofMillis(1_500)).acquire();
            var both = locks.all(a).lease(Duration.ofMillis(1_500)).acquire();
            var losses = List.of(plain.lost().toCompletableFuture(), tied.lost().toCompletableFuture(), both.lost().toCompletableFuture());
            assertEquals(List.of(a, b, k, own), locks.drain(Duration.ofMillis(200)));
            for (var lost : losses) lost.get(1, TimeUnit.SECONDS);
            assertFalse(plain.isHeld() || tied.isHeld() || untold.isHeld());
            assertFalse(server.isFree(k) || server.isFree(a) || server.isFree(b), "others may get in before the leases have ended");
            assertThrows(LockLostException.class, plain::release);
            assertThrows(LockLostException.class, both::release);
            Server.until(() -> server.isFree(k) && server.isFree(own) && server.isFree(a) && server.isFree(b));
        }
    }

    @ParameterizedTest
    @EnumSource
    void anInterruptEndsItToo(Over over) {
        try (var session = over.open(server.port)) {
            Hold hold = session.locks().lock(over + "k3").acquire();
            Thread.currentThread().interrupt();
            assertEquals(List.of(hold.key()), session.locks().drain(LONG));
            assertTrue(Thread.interrupted());
        }
    }
}
