import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;

/** `Worker LOCK WORK THREADS SECONDS`: measure.py says what it does and prints. */
public final class Worker {
    /** Marks the end of the jobs. */
    private static final long END = Long.MIN_VALUE;

    /** How one contender acquires and releases the lock that all of them want. */
    interface Handle {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    /** When a contender acquired the lock, when it began to release, and when the job arrived, three values per
     * sample. */
    private static final class Samples {
        private long[] stamps = new long[3 << 15];
        private int length;

        /** `arrived` is 0 if the work has no jobs that arrive. */
        synchronized void add(long acquired, long releasing, long arrived) {
            if (length == stamps.length) {
                stamps = Arrays.copyOf(stamps, 2 * length);
            }
            stamps[length++] = acquired;
            stamps[length++] = releasing;
            stamps[length++] = arrived;
        }

        synchronized void print(int contender, StringBuilder out) {
            for (int i = 0; i < length; i += 3) {
                out.append(contender).append(' ').append(stamps[i]).append(' ').append(stamps[i + 1]);
                if (stamps[i + 2] != 0) out.append(' ').append(stamps[i + 2]);
                out.append('\n');
            }
        }
    }

    public static void main(String[] args) throws Exception {
        Supplier<Handle> handles = Handles.of(args[0]);
        String work = args[1];
        int threads = Integer.parseInt(args[2]);
        long nanoseconds = (long) (Double.parseDouble(args[3]) * 1e9);
        Samples[] samples = new Samples[threads];
        Semaphore[] turns = new Semaphore[threads];
        CountDownLatch ready = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
        LinkedBlockingQueue<Long> jobs = new LinkedBlockingQueue<>();
        CountDownLatch served = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) {
            samples[i] = new Samples();
            turns[i] = new Semaphore(i == 0 ? 1 : 0);
        }
        for (int i = 0; i < threads; i++) {
            Samples mine = samples[i];
            Semaphore turn = turns[i];
            Semaphore next = turns[(i + 1) % threads];
            start(() -> {
                Handle handle = handles.get();
                ready.countDown();
                go.await();
                switch (work) {
                    case "hand-off" -> alternate(handle, mine, turn, next);
                    case "arrivals" -> serve(handle, mine, jobs);
                    default -> contend(handle, mine);
                }
                served.countDown();
            });
        }
        ready.await();
        System.out.println("ready");
        while (System.in.read() >= 0) {}
        long started = System.nanoTime();
        StringBuilder out = new StringBuilder("started " + started + "\n");
        go.countDown();
        if (work.equals("arrivals")) {
            arrive(started, jobs, threads);
            served.await((long) (Double.parseDouble(System.getenv("PEER_DRAIN_SECONDS")) * 1000), TimeUnit.MILLISECONDS);
        } else {
            TimeUnit.NANOSECONDS.sleep(nanoseconds);
        }
        for (int i = 0; i < threads; i++) {
            samples[i].print(i, out);
        }
        System.out.print(out);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private interface Contender {
        void run() throws Exception;
    }

    private static void start(Contender contender) {
        new Thread(() -> {
            try {
                contender.run();
            } catch (Exception failure) {
                failure.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }).start();
    }

    /** Hands over each job when it arrives, and afterwards one end mark for each thread. */
    private static void arrive(long started, LinkedBlockingQueue<Long> jobs, int threads) throws Exception {
        for (String line : Files.readAllLines(Path.of(System.getenv("PEER_ARRIVALS")))) {
            long moment = started + Long.parseLong(line);
            until(moment);
            jobs.add(moment);
        }
        for (int i = 0; i < threads; i++) jobs.add(END);
    }

    /** Sleeps exactly until that moment, which `Thread.sleep` does not promise. */
    private static void until(long moment) {
        for (long rest = moment - System.nanoTime(); rest > 0; rest = moment - System.nanoTime()) {
            LockSupport.parkNanos(rest);
        }
    }

    private static void serve(Handle handle, Samples samples, LinkedBlockingQueue<Long> jobs) throws Exception {
        long hold = Long.parseLong(System.getenv("PEER_HOLD_NS"));
        for (long arrived = jobs.take(); arrived != END; arrived = jobs.take()) {
            handle.acquire();
            long acquired = System.nanoTime();
            until(acquired + hold);
            long releasing = System.nanoTime();
            handle.release();
            samples.add(acquired, releasing, arrived);
        }
    }

    private static void contend(Handle handle, Samples samples) throws Exception {
        while (true) {
            handle.acquire();
            long acquired = System.nanoTime();
            handle.release();
            samples.add(acquired, acquired, 0);
        }
    }

    /** A contender acquires the lock only once the one before it holds it, so that exactly one waits at each
     * release. */
    private static void alternate(Handle handle, Samples samples, Semaphore turn, Semaphore next)
            throws Exception {
        Random random = new Random();
        while (true) {
            turn.acquire();
            handle.acquire();
            long acquired = System.nanoTime();
            next.release();
            Thread.sleep(2 + random.nextInt(9));
            long releasing = System.nanoTime();
            handle.release();
            samples.add(acquired, releasing, 0);
        }
    }
}
