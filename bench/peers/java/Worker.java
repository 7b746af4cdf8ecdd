import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** `Worker LOCK WORK THREADS SECONDS`: measure.py says what it does and prints. */
public final class Worker {
    /** One contender's way to the lock that all of them want. */
    interface Handle {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    /** When a contender had acquired, and when it began to release, in turn. */
    private static final class Samples {
        private long[] stamps = new long[1 << 16];
        private int length;

        synchronized void add(long acquired, long releasing) {
            if (length == stamps.length) {
                stamps = Arrays.copyOf(stamps, 2 * length);
            }
            stamps[length++] = acquired;
            stamps[length++] = releasing;
        }

        synchronized void print(int contender, StringBuilder out) {
            for (int i = 0; i < length; i += 2) {
                out.append(contender).append(' ').append(stamps[i]).append(' ')
                        .append(stamps[i + 1]).append('\n');
            }
        }
    }

    public static void main(String[] args) throws Exception {
        Supplier<Handle> handles = Handles.of(args[0]);
        boolean alternating = args[1].equals("hand-off");
        int threads = Integer.parseInt(args[2]);
        long nanoseconds = (long) (Double.parseDouble(args[3]) * 1e9);
        Samples[] samples = new Samples[threads];
        Semaphore[] turns = new Semaphore[threads];
        CountDownLatch ready = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
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
                if (alternating) {
                    alternate(handle, mine, turn, next);
                } else {
                    contend(handle, mine);
                }
            });
        }
        ready.await();
        System.out.println("ready");
        while (System.in.read() >= 0) {}
        StringBuilder out = new StringBuilder("started " + System.nanoTime() + "\n");
        go.countDown();
        TimeUnit.NANOSECONDS.sleep(nanoseconds);
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

    private static void contend(Handle handle, Samples samples) throws Exception {
        while (true) {
            handle.acquire();
            long acquired = System.nanoTime();
            handle.release();
            samples.add(acquired, acquired);
        }
    }

    /** Each asks once the one before it holds, so that each release finds exactly one who waits. */
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
            samples.add(acquired, releasing);
        }
    }
}
