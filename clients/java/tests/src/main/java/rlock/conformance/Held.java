package rlock.conformance;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import rlock.Hold;
import rlock.Holds;

/** A hold of one lock or of several. */
record Held(long token, String owner, String key, BooleanSupplier isHeld, Supplier<Duration> remaining, CompletableFuture<Void> lost, Runnable release) {
    static Held of(Hold hold) {
        return new Held(hold.token(), hold.owner(), hold.key(), hold::isHeld, hold::remaining, hold.lost(), hold::release);
    }

    static Held of(Holds holds) {
        return new Held(holds.token(), holds.owner(), String.join(", ", holds.tokens().keySet()), holds::isHeld, holds::remaining, holds.lost(), holds::release);
    }
}
