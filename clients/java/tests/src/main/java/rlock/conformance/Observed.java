package rlock.conformance;

import static rlock.conformance.Runner.number;
import static rlock.conformance.Runner.text;

import com.google.gson.JsonObject;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import rlock.Election.Leader;

/** The latest leader that an observer got. */
final class Observed {
    private Optional<Leader> leader; // null until the first one; guarded by this
    private long at;

    synchronized void hear(Optional<Leader> leads) {
        leader = leads;
        at = System.currentTimeMillis();
        notifyAll();
    }

    synchronized JsonObject await(JsonObject request) throws InterruptedException {
        String name = request.get("name").isJsonNull() ? null : text(request, "name");
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(number(request, "within"));
        while (leader == null || !Objects.equals(name, leader.map(Leader::name).orElse(null))) {
            long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
            if (left <= 0) return Runner.ok(false);
            wait(left);
        }
        JsonObject reply = Runner.ok(true);
        reply.addProperty("at", at);
        return reply;
    }
}
