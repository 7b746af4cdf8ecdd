package rlock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;
import redis.clients.jedis.UnifiedJedis;

/** What the checks are told with. */
final class Support {
    static final int PORT = Integer.parseInt(System.getenv("PORT"));
    static final UnifiedJedis jedis = redis.clients.jedis.RedisClient.create("127.0.0.1", PORT);

    static long queue(String key) { return field(key, "redis.call('RLOCK.INFO', KEYS[1])", "queue-length"); }

    static long depth(String key) { return field(key, "redis.call('RLOCK.INFO', KEYS[1])[4][1]", "depth"); }

    private static long field(String key, String map, String name) {
        return (Long) jedis.eval("local map = " + map + " for i, word in ipairs(map) do "
            + "if word == ARGV[1] then return map[i + 1] end end", List.of(key), List.of(name));
    }

    /** Waits until the hold has outlived its first lease, by the server's clock. */
    static void untilRenewedFor(String key, long leaseMs) {
        long end = jedis.pexpireTime(key);
        until(() -> jedis.pexpireTime(key) >= end + leaseMs);
    }

    static long number(String section, String label) {
        return Long.parseLong(jedis.info(section).split(label)[1].split("[,\r]")[0]);
    }

    static boolean elsewhere(BooleanSupplier work) {
        return CompletableFuture.supplyAsync(work::getAsBoolean).join();
    }

    static boolean refuses(Class<? extends Exception> kind, Runnable work) {
        try {
            work.run();
            return false;
        } catch (RuntimeException error) {
            return kind.isInstance(error);
        }
    }

    static void until(BooleanSupplier isSo) {
        for (long end = System.nanoTime() + 10_000_000_000L; !isSo.getAsBoolean(); Thread.onSpinWait())
            insist(System.nanoTime() < end, "not within 10 seconds");
    }

    static void insist(boolean isSo, String what) {
        if (!isSo) throw new AssertionError(what);
    }
}
