package rlock.conformance;

import static rlock.conformance.Runner.number;
import static rlock.conformance.Runner.text;

import com.google.gson.JsonObject;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.TimeUnit;
import rlock.KeyLock;

/** Pairs on a free lock: through the package, and by two bare commands of the user's client, in alternation. */
final class Bench {
    private static final long TURN = TimeUnit.MILLISECONDS.toNanos(200);
    private static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final Client client;
    private final String key;
    private final long end;

    Bench(Client client, JsonObject request) {
        this.client = client;
        this.key = text(request, "key");
        this.end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(number(request, "ms"));
    }

    JsonObject run() {
        KeyLock lock = client.locks.lock(key);
        Count packaged = new Count();
        Count bare = new Count();
        while (System.nanoTime() < end) {
            packaged.turn(() -> {
                lock.lock();
                lock.unlock();
            });
            bare.turn(() -> {
                client.command("RLOCK.ACQUIRE", key, "o", "DEPTH", "1");
                client.command("RLOCK.RELEASE", key, "o", "WRITE", "DEPTH", "0");
            });
        }
        var reply = new JsonObject();
        reply.addProperty("package", packaged.perSecond());
        reply.addProperty("bare", bare.perSecond());
        reply.addProperty("packageCpu", packaged.cpuMicros());
        reply.addProperty("bareCpu", bare.cpuMicros());
        return reply;
    }

    private static final class Count {
        private long pairs;
        private long nanos;
        private long cpuNanos;

        void turn(Runnable pair) {
            long start = System.nanoTime();
            long cpu = SYSTEM.getProcessCpuTime();
            while (System.nanoTime() - start < TURN) {
                pair.run();
                pairs++;
            }
            nanos += System.nanoTime() - start;
            cpuNanos += SYSTEM.getProcessCpuTime() - cpu;
        }

        double perSecond() {
            return pairs * 1e9 / nanos;
        }

        double cpuMicros() {
            return cpuNanos / 1e3 / pairs;
        }
    }
}
