package rlock;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import rlock.jedis.JedisLocks;
import rlock.tests.Server;

/** What is kept of holds that nobody releases. */
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
