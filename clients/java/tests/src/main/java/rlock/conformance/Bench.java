package rlock.conformance;

import static rlock.conformance.Runner.number;
import static rlock.conformance.Runner.text;

import com.google.gson.JsonObject;
import java.util.concurrent.TimeUnit;
import rlock.KeyLock;

/** Free pairs per second: by the package, and by two bare commands of the user's client, in turns. */
final class Bench {
    private static final long TURN = TimeUnit.MILLISECONDS.toNanos(200);
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
        long[] pairs = new long[2];
        long[] nanos = new long[2];
        while (System.nanoTime() < end) {
            turn(pairs, nanos, 0, () -> {
                lock.lock();
                lock.unlock();
            });
            turn(pairs, nanos, 1, () -> {
                client.command("RLOCK.ACQUIRE", key, "o", "DEPTH", "1");
                client.command("RLOCK.RELEASE", key, "o", "WRITE", "DEPTH", "0");
            });
        }
        var reply = new JsonObject();
        reply.addProperty("package", perSecond(pairs[0], nanos[0]));
        reply.addProperty("bare", perSecond(pairs[1], nanos[1]));
        return reply;
    }

    private static void turn(long[] pairs, long[] nanos, int which, Runnable pair) {
        long start = System.nanoTime();
        while (System.nanoTime() - start < TURN) {
            pair.run();
            pairs[which]++;
        }
        nanos[which] += System.nanoTime() - start;
    }

    private static long perSecond(long pairs, long nanos) {
        return pairs * TimeUnit.SECONDS.toNanos(1) / nanos;
    }
}
