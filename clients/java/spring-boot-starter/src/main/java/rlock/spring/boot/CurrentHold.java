package rlock.spring.boot;

import java.util.function.Consumer;
import rlock.Hold;

/** The hold under which a {@link Locked} method runs, for its token and its signal. */
public final class CurrentHold {
    private static final ThreadLocal<Level> CURRENT = new ThreadLocal<>();

    /** A running method's hold, and the level of the calling method in the same thread. */
    private record Level(Hold hold, Level outer) {}

    private CurrentHold() {}

    /**
     * The hold of the innermost {@link Locked} method of this thread. Do not release it.
     *
     * @throws IllegalStateException if there is none
     */
    public static Hold get() {
        Level level = CURRENT.get();
        if (level == null) throw new IllegalStateException("no method with @Locked is running in this thread");
        return level.hold;
    }

    /** Whether this thread runs a method with {@link Locked}. */
    static boolean isThere() {
        return CURRENT.get() != null;
    }

    static void enter(Hold hold) {
        CURRENT.set(new Level(hold, CURRENT.get()));
    }

    static void leave() {
        Level outer = CURRENT.get().outer;
        if (outer == null) CURRENT.remove();
        else CURRENT.set(outer);
    }

    /** All holds of this thread's methods, the innermost first. */
    static void each(Consumer<Hold> visit) {
        for (Level level = CURRENT.get(); level != null; level = level.outer) visit.accept(level.hold);
    }
}
