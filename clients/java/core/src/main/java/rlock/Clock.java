package rlock;

import java.util.concurrent.TimeUnit;

/** Milliseconds that go on while the computer sleeps, and that setting the clock back does not stop. */
final class Clock {
    private static long lastNanos = System.nanoTime(); // these are guarded by Clock.class
    private static long lastWall = System.currentTimeMillis();
    private static long slept;

    private Clock() {}

    /** Rounded down, so that no deadline is late by it. */
    static synchronized long now() {
        long before = System.nanoTime();
        long wall = System.currentTimeMillis();
        long nanos = System.nanoTime();
        // By the wall's clock at least that much more has passed than by the one that may have stood still.
        long more = wall - lastWall - TimeUnit.NANOSECONDS.toMillis(nanos - lastNanos) - 1;
        if (more > 20) slept += more;
        lastNanos = before;
        lastWall = wall;
        return TimeUnit.NANOSECONDS.toMillis(nanos) + slept;
    }
}
