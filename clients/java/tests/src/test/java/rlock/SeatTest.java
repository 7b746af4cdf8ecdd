package rlock;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import rlock.jedis.JedisLocks;
import rlock.tests.Server;

/** What remains in memory of holds that nobody releases, and of futures that were requested. */
@Timeout(60)
class SeatTest {
    private static final int MORE = 10;

    @Test
    void whatWasLostIsRememberedButNotAllOfItForEver() {
        try (var server = new Server(); Locks locks = JedisLocks.standalone("127.0.0.1", server.port).open()) {
            int all = Seat.MOST_LOST + MORE;
            for (int i = 0; i < all; i++) assertTrue(once(locks, i).tryLock());
            Server.until(() -> locks.counters().held() == 0 && kept(locks, all) == Seat.MOST_LOST);
            assertThrows(LockLostException.class, once(locks, all - 1)::unlock);
            assertFalse(isKept(locks, all - 1));
            assertThrows(IllegalMonitorStateException.class, once(locks, 0)::unlock);
            Hold held = once(locks, 0).acquire();
            held.release();
        }
    }

    @Test
    void whoAsksAgainAndAgainWhetherTheHoldIsLostLeavesNothing() {
        try (var server = new Server(); Locks locks = JedisLocks.standalone("127.0.0.1", server.port).open()) {
            KeyLock lock = locks.lock("asked");
            Hold hold = lock.acquire();
            Holds holds = locks.all("asked", "too").acquire();
            Tenure tenure = Seat.find(locks.name("asked", locks.threadOwner(), Mode.WRITE)).tenure;
            for (int i = 0; i < 100; i++) {
                assertFalse(hold.lost().isDone() || lock.lost().isDone() || holds.lost().isDone());
                locks.all("asked").acquire().release();
            }
            assertTrue(tenure.lost().getNumberOfDependents() <= 3, tenure.lost().getNumberOfDependents() + " are kept");
            // A caller that completes its own future does not affect those of others, whenever they asked.
            for (Supplier<CompletableFuture<Void>> of : List.<Supplier<CompletableFuture<Void>>>of(hold::lost, lock::lost, holds::lost)) {
                CompletableFuture<Void> earlier = of.get();
                assertThrows(CompletionException.class, of.get().orTimeout(1, TimeUnit.MILLISECONDS)::join);
                assertFalse(earlier.isDone() || of.get().isDone());
                var told = of.get().thenRun(() -> {});
                of.get().cancel(true);
                of.get().complete(null);
                assertFalse(earlier.isDone() || of.get().isDone() || told.isDone());
            }
            server.say("RLOCK.FORCE", "asked");
            assertThrows(LockLostException.class, () -> hold.renew(Duration.ofMinutes(1)));
            for (var of : List.of(hold.lost(), lock.lost(), holds.lost())) of.orTimeout(5, TimeUnit.SECONDS).join();
        }
    }

    @Test
    void aReleaseWaitsForAnEarlierRequestOnlySoLong() throws InterruptedException {
        try (var server = new Server(); Locks locks = JedisLocks.standalone("127.0.0.1", server.port).open()) {
            KeyLock lock = locks.lock("busy").lease(Duration.ofMinutes(1));
            Hold hold = lock.acquire();
            Seat seat = Seat.find(locks.name("busy", locks.threadOwner(), Mode.WRITE));
            seat.turn.acquire(); // as a request that is undone has it
            var release = CompletableFuture.runAsync(hold::release, task -> new Thread(task).start());
            var unknown = assertThrows(CompletionException.class, release.orTimeout(20, TimeUnit.SECONDS)::join);
            assertInstanceOf(LockException.Unavailable.class, unknown.getCause());
            assertFalse(server.isFree("busy"));
            seat.passTurn();
            Server.until(() -> server.isFree("busy") && lock.getHoldCount() == 0);
            assertEquals(0, locks.counters().held());
            lock.acquire().release();
        }
    }

    private static KeyLock once(Locks locks, int number) {
        return locks.lock("once:" + number).fixedLease(Duration.ofSeconds(2));
    }

    private static long kept(Locks locks, int all) {
        return IntStream.range(0, all).filter(number -> isKept(locks, number)).count();
    }

    private static boolean isKept(Locks locks, int number) {
        return Seat.find(locks.name("once:" + number, locks.threadOwner(), Mode.WRITE)) != null;
    }
}
