package rlock;

import static rlock.Support.*;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.Jedis;

/** Shows on the server at 127.0.0.1:$PORT that the two locks do what they say. Ends with 1 at the first thing that is not so. */
public final class Check {
    private static final ScheduledExecutorService watchdog = Executors.newSingleThreadScheduledExecutor();

    /** A write that the server itself refuses once the hold is over. In a cluster both keys need one {hash tag}. */
    private static boolean fencedSet(String lock, long token, String key, String value) {
        return jedis.eval("if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end "
            + "redis.call('SET', KEYS[2], ARGV[2]) return 1", List.of(lock, key), List.of("" + token, value)).equals(1L);
    }

    private static JedisReadWriteLock lock(String key, long leaseMs) {
        return new JedisReadWriteLock(jedis, watchdog, key, leaseMs);
    }

    private static void twoThreadsNeverWorkAtOnce() {
        jedis.del("java:count");
        var lock = lock("java:counter", 30_000).writeLock();
        Runnable work = () -> {
            for (int i = 0; i < 50; i++) {
                lock.lock();
                String count = jedis.get("java:count");
                jedis.set("java:count", "" + (count == null ? 1 : Integer.parseInt(count) + 1));
                lock.unlock();
            }
        };
        CompletableFuture.allOf(CompletableFuture.runAsync(work), CompletableFuture.runAsync(work)).join();
        insist(jedis.get("java:count").equals("100"), "both worked at once");
    }

    private static void entersAgainAndDowngradesAndEndsItsWaitInTime() {
        var lock = lock("java:modes", 30_000);
        lock.writeLock().lock();
        long token = lock.writeLock().token();
        insist(lock.writeLock().tryLock() && lock.writeLock().token() == token, "to enter again keeps the token");
        lock.readLock().lock();
        insist(!elsewhere(() -> lock.readLock().tryLock()), "a reader beside a writer");
        lock.writeLock().unlock();
        lock.writeLock().unlock();
        insist(lock.readLock().token() > token, "tokens rise");
        insist(elsewhere(() -> lock.readLock().tryLock()), "readers share");
        long start = System.nanoTime();
        insist(!elsewhere(() -> lock.writeLock().tryLock(100, TimeUnit.MILLISECONDS)), "a writer beside a reader");
        insist(System.nanoTime() - start >= 100_000_000, "it waited");
        insist(refuses(JedisReadWriteLock.DeadlockException.class, lock.writeLock()::lock), "WRITE over one's own READ");
        lock.readLock().unlock();
    }

    private static void anAcquireThatArrivesTwiceCountsOnce() throws Exception {
        // The reply is late, the socket times out, and what was sent before is executed as well.
        var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(20_000).blockingSocketTimeoutMillis(2_000).build();
        var hasty = redis.clients.jedis.RedisClient.builder().hostAndPort("127.0.0.1", PORT).clientConfig(config).build();
        insist(hasty.ping().equals("PONG"), "connected");
        var lock = new JedisReadWriteLock(hasty, watchdog, "java:resend", 30_000).writeLock();
        long before = number("commandstats", "cmdstat_rlock.acquire:calls=");
        String server = "" + number("server", "process_id:");
        new ProcessBuilder("kill", "-STOP", server).start().waitFor();
        watchdog.schedule(() -> new ProcessBuilder("kill", "-CONT", server).start(), 3_000, TimeUnit.MILLISECONDS);
        insist(lock.tryLock(), "granted");
        insist(number("commandstats", "cmdstat_rlock.acquire:calls=") == before + 2, "it was sent but once");
        insist(depth("java:resend") == 1, "it counted twice");
        lock.unlock();
    }

    private static void aHoldOutlivesItsLeaseAndALostOneIsNoticed() {
        var lock = lock("java:lost", 2_000).writeLock();
        lock.lock();
        untilRenewedFor("java:lost", 2_000);
        insist(lock.isHeld() && fencedSet("java:lost", lock.token(), "java:value", "mine"), "the watchdog renews");
        try (Jedis operator = new Jedis("127.0.0.1", PORT)) {
            operator.eval("return redis.call('RLOCK.FORCE', KEYS[1])", 1, "java:lost");
        }
        insist(!fencedSet("java:lost", lock.token(), "java:value", "too late"), "a write without the lock");
        until(() -> !lock.isHeld());
        insist(refuses(JedisReadWriteLock.LockLostException.class, lock::unlock), "it was lost");
        insist(jedis.get("java:value").equals("mine"), "the value is whose it was");
    }

    private static void lettuceWaitsWithoutBlockingAndHearsOfItsTurn() {
        RedisURI uri = RedisURI.create("127.0.0.1", PORT);
        try (RedisClient client = RedisClient.create(uri); LettuceLocks locks = new LettuceLocks(client, uri)) {
            var busy = locks.acquire("java:turn", "WRITE", 0, 30_000).join().orElseThrow();
            insist(locks.acquire("java:turn", "WRITE", 100, 30_000).join().isEmpty(), "two hold it");
            insist(queue("java:turn") == 0, "who gives up leaves the line");
            busy.release().join();
            // Who hears nothing asks after a second. A busy machine may be as slow, but not each time.
            boolean isTold = false;
            for (int tries = 0; tries < 10 && !isTold; tries++) isTold = handsOver(locks) < 800_000_000;
            insist(isTold, "the message tells");
            var hold = locks.acquire("java:turn", "WRITE", 0, 2_000).join().orElseThrow();
            untilRenewedFor("java:turn", 2_000);
            insist(fencedSet("java:turn", hold.token, "java:value", "mine") && !hold.lost.isDone(), "it is renewed");
            jedis.del("java:turn");
            until(hold.lost::isCompletedExceptionally);
            insist(hold.release().handle((done, error) -> error != null).join(), "it was lost");
        }
    }

    /** The nanoseconds that it takes until the next one has the lock. */
    private static long handsOver(LettuceLocks locks) {
        long start = System.nanoTime();
        var first = locks.acquire("java:turn", "WRITE", 0, 30_000).join().orElseThrow();
        CompletableFuture<Optional<LettuceLocks.Hold>> second = locks.acquire("java:turn", "WRITE", 10_000, 30_000);
        until(() -> queue("java:turn") == 1);
        first.release().join();
        var hold = second.join().orElseThrow();
        insist(hold.token > first.token, "tokens rise");
        hold.release().join();
        return System.nanoTime() - start;
    }

    public static void main(String[] arguments) throws Exception {
        try {
            twoThreadsNeverWorkAtOnce();
            entersAgainAndDowngradesAndEndsItsWaitInTime();
            anAcquireThatArrivesTwiceCountsOnce();
            aHoldOutlivesItsLeaseAndALostOneIsNoticed();
            lettuceWaitsWithoutBlockingAndHearsOfItsTurn();
        } finally {
            watchdog.shutdownNow();
        }
    }
}
