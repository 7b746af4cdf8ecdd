import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockLostException;
import rlock.Locks;
import rlock.jedis.JedisLocks;

/** A lock, a read-write lock, a fenced write and a hold that is lost, on the server at 127.0.0.1:$PORT, or 6380. */
public final class Example {
    private static final String FENCED_SET = "if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end "
            + "redis.call('SET', KEYS[2], ARGV[2]) return 1";

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(System.getenv().getOrDefault("PORT", "6380"));
        try (Locks locks = JedisLocks.standalone("127.0.0.1", port).open()) {
            KeyLock stock = locks.lock("{java}:stock");
            var sold = new int[1]; // two threads change it, and only the lock guards it
            Runnable sell = () -> {
                for (int i = 0; i < 100; i++) {
                    stock.lock();
                    sold[0]++;
                    stock.unlock();
                }
            };
            CompletableFuture.allOf(CompletableFuture.runAsync(sell), CompletableFuture.runAsync(sell)).join();
            insist(sold[0] == 200, "both sold at once");

            // Code that used Redisson's RLock: only the factory changes.
            var orders = new int[1];
            KeyLock order = locks.lock("{java}:order");
            if (order.tryLock(3, TimeUnit.SECONDS)) {
                try {
                    orders[0]++;
                } finally {
                    order.unlock();
                }
            }
            insist(orders[0] == 1, "it was free");

            var prices = locks.readWriteLock("{java}:prices");
            prices.writeLock().lock();
            prices.readLock().lock(); // downgrade: nobody can change the prices in between
            prices.writeLock().unlock();
            prices.readLock().detached().tryAcquire().orElseThrow().release(); // another owner reads at the same time
            prices.readLock().unlock();

            Hold hold = stock.lease(Duration.ofSeconds(3)).acquire(Duration.ofSeconds(10)).orElseThrow();
            insist(write(locks, hold, "mine"), "it is held");
            locks.call(hold.key(), "RLOCK.FORCE", hold.key()); // an operator does this
            hold.lost().join(); // completes at the next renewal, after a third of the lease
            insist(!write(locks, hold, "too late"), "a write without the lock");
            try {
                hold.release();
                insist(false, "its loss was not told");
            } catch (LockLostException expected) {
                System.out.println("sold 200, and a lost hold writes nothing");
            }
        }
    }

    private static boolean write(Locks locks, Hold hold, String value) {
        List<String> words = List.of("EVAL", FENCED_SET, "2", hold.key(), "{java}:value", "" + hold.token(), value);
        return locks.call(hold.key(), words.toArray(String[]::new)).equals(1L);
    }

    private static void insist(boolean fact, String otherwise) {
        if (!fact) throw new AssertionError(otherwise);
    }
}
