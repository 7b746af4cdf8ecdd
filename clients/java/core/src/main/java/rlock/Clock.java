package rlock;

import java.util.concurrent.TimeUnit;

/**
 * A clock in milliseconds that continues while the computer sleeps, and does not stop when the system clock is set
 * back.
 */
final class Clock {
    private static long lastNanos = System.nanoTime(); // these are guarded by Clock.class
    private static long lastWall = System.currentTimeMillis();
    private static long slept;

    private Clock() {}

    /** Rounded down, so that no deadline is reported late. */
    static synchronized long now() {
        long before = System.nanoTime();
        long wall = System.currentTimeMillis();
        long nanos = System.nanoTime();
        // By the system clock, at least this much more time has passed than by the clock that may have stopped.
        long more = wall - lastWall - TimeUnit.NANOSECONDS.toMillis(nanos - lastNanos) - 1;
        if (more > 20) slept += more;
        lastNanos = before;
        lastWall = wall;
        return TimeUnit.NANOSECONDS.toMillis(nanos) + slept;
    }
}
