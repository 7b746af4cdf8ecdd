package rlock.conformance;

import static rlock.conformance.Runner.number;
import static rlock.conformance.Runner.text;

import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import rlock.KeyLock;

/** Many threads share one lock object, and count under it. */
final class Churn {
    private final KeyLock lock;
    private final Client client;
    private final int users;
    private final int times;
    private final String counter;
    private final AtomicInteger inside = new AtomicInteger();
    private final AtomicInteger most = new AtomicInteger();

    Churn(KeyLock lock, Client client, JsonObject request) {
        this.lock = lock;
        this.client = client;
        this.users = number(request, "users");
        this.times = number(request, "times");
        this.counter = text(request, "counter");
    }

    JsonObject run() throws InterruptedException, ExecutionException {
        var threads = Executors.newFixedThreadPool(users);
        var all = new ArrayList<Future<?>>();
        for (int i = 0; i < users; i++) all.add(threads.submit(this::user));
        try {
            for (Future<?> each : all) each.get();
        } finally {
            threads.shutdownNow();
        }
        JsonObject reply = Runner.ok(true);
        reply.addProperty("inside", most.get());
        return reply;
    }

    private void user() {
        for (int i = 0; i < times; i++) {
            lock.lock();
            try {
                most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                Object count = client.command("GET", counter);
                String text = count instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : (String) count;
                client.command("SET", counter, String.valueOf(text == null ? 1 : Integer.parseInt(text) + 1));
                inside.decrementAndGet();
            } finally {
                lock.unlock();
            }
        }
    }
}
