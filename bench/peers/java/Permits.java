import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**`Permits act NAME URL SEED LEASE-MS FIRST COUNT`: COUNT workers of tests/torture/thousand, with Redisson's semaphore.
 * Each prints its operations in the format of tests/torture/history.rs, with times of CLOCK_MONOTONIC. They stop when
 * standard input ends.
 */
public final class Permits {
    private static final String POOL = "pool";
    private static final int PERMITS = 10;

    private static volatile boolean stopped;

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[2]);
        RedissonClient client = Redisson.create(config);
        RPermitExpirableSemaphore pool = client.getPermitExpirableSemaphore(POOL);
        // Only the first call sets them.
        pool.trySetPermits(PERMITS);
        long lease = Long.parseLong(args[4]);
        int first = Integer.parseInt(args[5]);
        Thread[] workers = new Thread[Integer.parseInt(args[6])];
        for (int i = 0; i < workers.length; i++) {
            int actor = first + i;
            Random random = new Random(Long.parseLong(args[3]) + actor);
            workers[i] = new Thread(null, () -> work(pool, actor, lease, random), "", 1 << 18);
            workers[i].start();
        }
        while (System.in.read() >= 0) {}
        stopped = true;
        for (Thread worker : workers) {
            worker.join();
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void work(RPermitExpirableSemaphore pool, int actor, long lease, Random random) {
        String acquire = "{\"Acquire\":{\"mode\":\"Read\",\"lease_ms\":" + lease
                + ",\"wait\":{\"Block\":120000},\"upgrade\":false,\"session\":false,"
                + "\"depth\":null,\"limit\":" + PERMITS + ",\"acks\":0}}";
        long token = actor * 1_000_000L;
        try {
            while (!stopped) {
                long sent = System.nanoTime();
                say(actor, acquire, sent, 0, "\"Never\"");
                String permit = pool.acquire(lease, TimeUnit.MILLISECONDS);
                token++;
                say(actor, acquire, sent, System.nanoTime(), "{\"Token\":" + token + "}");
                Thread.sleep(1 + random.nextInt(9));
                String release = "{\"Release\":{\"mode\":\"Read\",\"down_to\":null,\"token\":"
                        + token + "}}";
                sent = System.nanoTime();
                say(actor, release, sent, 0, "\"Never\"");
                String reply = pool.tryRelease(permit) ? "{\"Number\":0}" : "\"NotHeld\"";
                say(actor, release, sent, System.nanoTime(), reply);
            }
        } catch (Exception failure) {
            failure.printStackTrace();
        }
    }

    /** Writes the line at once and in one piece, so that a process that is killed has printed everything it did. */
    private static void say(int actor, String asked, long sent, long received, String reply) {
        String line = "{\"actor\":" + actor + ",\"connection\":" + actor
                + ",\"link\":1,\"key\":\"" + POOL + "\",\"owner\":\"a" + actor
                + ".0\",\"asked\":" + asked + ",\"sent_ns\":" + sent + ",\"received_ns\":"
                + received + ",\"reply\":" + reply + ",\"secured_ns\":null}\n";
        synchronized (System.out) {
            System.out.print(line);
            System.out.flush();
        }
    }
}
