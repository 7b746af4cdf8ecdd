package shop;

import static org.junit.jupiter.api.Assertions.*;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;

@SpringBootTest(properties = "shop.redis=redis://127.0.0.1:${PORT:6380}")
@Timeout(60)
class StockTest {
    @Autowired
    Stock stock;

    @Autowired
    RedissonClient redisson;

    @BeforeEach
    void fill() {
        stock.replace(Map.of("apples", 50, "pears", 50));
    }

    private static <T> List<T> together(int threads, Callable<T> work) throws Exception {
        var pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<T>> all = new ArrayList<>();
            for (int i = 0; i < threads; i++) all.add(pool.submit(work));
            List<T> results = new ArrayList<>();
            for (Future<T> each : all) results.add(each.get());
            return results;
        } finally {
            pool.shutdownNow();
        }
    }

    @Test
    void noAppleIsSoldTwice() throws Exception {
        List<Integer> sold = together(8, () -> {
            int count = 0;
            for (int i = 0; i < 10; i++) if (stock.sell("apples", 1)) count++;
            return count;
        });
        assertEquals(50, sold.stream().mapToInt(Integer::intValue).sum());
        assertEquals(0, stock.catalog().get("apples"));
    }

    /**
     * Makes few moves, and allows much time. If two moves meet, each may hold the lock that the other needs: then
     * Redisson's multi-lock waits 1.5 to 3 s and starts over, and the two often meet again.
     */
    @Test
    @Timeout(300)
    void movingBothWaysAtOnceLosesNothing() throws Exception {
        together(2, () -> {
            for (int i = 0; i < 2; i++) stock.move("apples", "pears", 1);
            for (int i = 0; i < 2; i++) stock.move("pears", "apples", 1);
            return null;
        });
        assertEquals(Map.of("apples", 50, "pears", 50), stock.catalog());
    }

    @Test
    void whoFindsItLockedSellsNothing() throws Exception {
        RLock lock = redisson.getLock("{shop}:item:apples");
        lock.lock();
        try {
            assertTrue(stock.sell("apples", 1), "not reentrant");
            assertEquals(List.of(false), together(1, () -> stock.sell("apples", 1)));
            assertEquals(List.of(true), together(1, () -> stock.sell("pears", 1)));
        } finally {
            lock.unlock();
        }
        assertFalse(lock.isLocked());
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void theLockOfOneThatDiedEndsWithItsLease() throws Exception {
        redisson.getLock("{shop}:item:apples").lockAsync(500, TimeUnit.MILLISECONDS, 4711).get();
        assertTrue(stock.sell("apples", 1));
    }
}
