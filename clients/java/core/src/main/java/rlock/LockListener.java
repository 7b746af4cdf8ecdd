package rlock;

import java.time.Duration;
import java.time.Instant;

/**
 * Receives the events of one {@link Locks}. Apart from {@link #context}, all methods are called in one thread of its
 * own, one event after the other: a listener that blocks, or throws, delays neither a lock nor a renewal. If {@value
 * #BACKLOG} events wait, further ones are dropped, and {@link Counters#unheard} counts them.
 */
public interface LockListener {
    /** How many events wait at most for a slow listener. */
    int BACKLOG = 10_000;

    /**
     * Captures context of the caller, for example a trace. Only this method is called in the acquiring thread, before
     * the request is sent: it must return at once. {@link Waited} has its result.
     */
    default Object context() {
        return null;
    }

    /** An acquisition ended: at once or after a wait, with or without the lock. */
    default void waited(Waited wait) {}

    /** The last level of a hold was released. */
    default void held(Held hold) {}

    /** A hold was lost, or may be. */
    default void lost(Held hold) {}

    /** How an acquisition ended. */
    enum Result {
        /** With the lock. */
        GRANTED,
        /** Another owner held it for all that time, or too many requests waited. */
        NOT_ACQUIRED,
        /** It was interrupted, or its future was completed by the caller. */
        CANCELLED,
        /** With an exception. */
        FAILED
    }

    /** An acquisition that ended, after {@code time}; {@code context} comes from {@link LockListener#context}. */
    record Waited(String key, Mode mode, Result result, Instant start, Duration time, Object context) {}

    /** A hold that ended, after {@code time}. */
    record Held(String key, Mode mode, Instant start, Duration time) {}
}
