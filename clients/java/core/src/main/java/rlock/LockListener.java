package rlock;

import java.time.Duration;
import java.time.Instant;

/**
 * Hears what becomes of the locks of one {@link Locks}. Apart from {@link #context}, all methods are called in one thread
 * of its own, one event after the other: a listener that blocks, or throws, delays neither a lock nor a renewal. Events
 * that find {@value #BACKLOG} others waiting are dropped, and {@link Counters#unheard} counts them.
 */
public interface LockListener {
    /** How many events wait for a slow listener. */
    int BACKLOG = 10_000;

    /**
     * What the caller has with it, for example a trace. This alone is called in the thread that acquires, before it asks
     * the server: it must return at once. {@link Waited} hands back what it returns.
     */
    default Object context() {
        return null;
    }

    /** An acquisition ended, be it at once, after a wait or without the lock. */
    default void waited(Waited wait) {}

    /** A hold was released, its last level. */
    default void held(Held hold) {}

    /** A hold was lost, or may be. */
    default void lost(Held hold) {}

    /** How an acquisition ended. */
    enum Result {
        /** With the lock. */
        GRANTED,
        /** Somebody else held it for all that time, or too many waited. */
        NOT_ACQUIRED,
        /** By an interrupt, or because its future was completed. */
        CANCELLED,
        /** With an exception. */
        FAILED
    }

    /** An acquisition that ended, after {@code time}; {@code context} is that of the {@link LockListener}. */
    record Waited(String key, Mode mode, Result result, Instant start, Duration time, Object context) {}

    /** A hold that ended, after {@code time}. */
    record Held(String key, Mode mode, Instant start, Duration time) {}
}
