package rlock.redisson;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;

/** Requests of a thread with an unknown outcome: its unlock comes after them, in whatever thread it runs. */
final class Pending {
    private static final Map<Object, CompletableFuture<?>> LAST = new ConcurrentHashMap<>();

    private Pending() {}

    /** {@code seat} stands for the thread and the lock. */
    static void add(Object seat, CompletionStage<?> asked) {
        CompletableFuture<?> done = asked.handle((value, failed) -> null).toCompletableFuture();
        CompletableFuture<?> all = LAST.merge(seat, done, (before, after) -> CompletableFuture.allOf(before, after));
        all.whenComplete((value, failed) -> LAST.remove(seat, all));
    }

    /** A future that ends when all of them have ended; null if there is none. */
    static CompletableFuture<?> of(Object seat) {
        return LAST.get(seat);
    }
}
