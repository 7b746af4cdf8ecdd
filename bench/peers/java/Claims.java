import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.IntConsumer;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** `Claims`: Redisson's locks for tests/torture/failovers/rivals.rs, which says what each line asks for. */
public final class Claims {
    private static final int THREADS = 16;
    private static final int WARM_UP = 50;
    private static final long ASK_MS_MAX = 10_000;
    /** A lock without a lease has that of the watchdog, which renews it: `lockWatchdogTimeout`. */
    private static final long LEASE_MS = new Config().getLockWatchdogTimeout();

    /** What happens between two failovers. */
    private static final class Round {
        private final RedissonClient client;
        private final String prefix;
        private boolean stopped;

        Round(RedissonClient client, String prefix) {
            this.client = client;
            this.prefix = prefix;
        }

        /** Locks and unlocks, as a client that has run for a while has done. */
        void warmUp(int thread) {
            for (int i = 0; i < WARM_UP; i++) {
                String key = prefix + ":warm:" + thread;
                lock(kind(thread), key);
                client.getLock(key).unlock();
            }
        }

        /** Locks one new key after the other. */
        void claim(int thread) {
            String kind = kind(thread);
            for (int i = 0; !isStopped(); i++) {
                String key = prefix + ":" + kind + ":" + thread + ":" + i;
                long sent = System.currentTimeMillis();
                try {
                    long token = lock(kind, key);
                    long told = System.currentTimeMillis();
                    String owner = client.getId() + ":" + Thread.currentThread().getId();
                    tell("claim " + kind + " " + key + " " + owner + " " + token + " " + sent + " " + told + " "
                            + (sent + LEASE_MS));
                } catch (RuntimeException failure) {
                    // The server is gone, or no replica has the lock: it is not held.
                }
            }
        }

        private static String kind(int thread) {
            return thread % 2 == 0 ? "Redisson" : "Fenced";
        }

        private long lock(String kind, String key) {
            if (kind.equals("Fenced")) {
                return client.getFencedLock(key).lockAndGetToken();
            }
            client.getLock(key).lock();
            return 0;
        }

        private synchronized boolean isStopped() {
            return stopped;
        }

        /** After `stop`, nothing is said anymore. */
        private synchronized void tell(String line) {
            if (!stopped) say(line);
        }

        synchronized void stop() {
            stopped = true;
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        Round round = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "claim" -> {
                    if (round != null) leave(round.client);
                    Round current = new Round(connect(words[1], words[2]), words[3]);
                    together(current::warmUp);
                    round = current;
                    say("ready");
                }
                case "go" -> {
                    for (int i = 0; i < THREADS; i++) {
                        int thread = i;
                        Round current = round;
                        start(() -> current.claim(thread));
                    }
                }
                case "stop" -> {
                    round.stop();
                    say("done");
                }
                case "ask" -> {
                    RedissonClient client = connect("single", words[1]);
                    ask(client, new ConcurrentLinkedQueue<>(List.of(words).subList(2, words.length)));
                    leave(client);
                    say("done");
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** Redisson's defaults, except that one sentinel is enough. */
    private static RedissonClient connect(String how, String port) {
        String address = "redis://127.0.0.1:" + port;
        Config config = new Config();
        switch (how) {
            case "sentinel" -> config.useSentinelServers()
                    .setMasterName("rlock")
                    .setCheckSentinelsList(false)
                    .addSentinelAddress(address);
            case "cluster" -> config.useClusterServers().addNodeAddress(address);
            default -> config.useSingleServer().setAddress(address);
        }
        return Redisson.create(config);
    }

    /** Asks for all of these locks. */
    private static void ask(RedissonClient client, ConcurrentLinkedQueue<String> keys) throws Exception {
        together(thread -> {
            for (String key = keys.poll(); key != null; key = keys.poll()) askFor(client, key);
        });
    }

    /** Lets each of the threads do this, and waits for them. */
    private static void together(IntConsumer work) throws Exception {
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            int thread = i;
            threads[i] = start(() -> work.accept(thread));
        }
        for (Thread thread : threads) thread.join();
    }

    private static void askFor(RedissonClient client, String key) {
        long ends = System.currentTimeMillis() + ASK_MS_MAX;
        while (System.currentTimeMillis() < ends) {
            try {
                Long token = tryLock(client, key);
                long told = System.currentTimeMillis();
                say(token == null ? "refused " + key : "granted " + key + " " + token + " " + told);
                return;
            } catch (RuntimeException failure) {
                // No reply, or not the last one: it asks again.
            }
        }
        say("unknown " + key);
    }

    private static Long tryLock(RedissonClient client, String key) {
        if (key.contains(":Fenced:")) {
            // In 4.7.0, `tryLockAndGetToken` of a lock that another owner holds does not return.
            RFencedLock lock = client.getFencedLock(key);
            return lock.tryLock() ? lock.getToken() : null;
        }
        return client.getLock(key).tryLock() ? 0L : null;
    }

    private static Thread start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    /** Its servers may be gone, so nobody waits for it. */
    private static void leave(RedissonClient client) {
        start(() -> client.shutdown(0, 1, TimeUnit.SECONDS));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
