package rlock.spring.boot;

import rlock.Hold;

/** The hold under which a {@link Locked} method runs, for its token and its signal. */
public final class CurrentHold {
    private static final ThreadLocal<Hold> CURRENT = new ThreadLocal<>();

    private CurrentHold() {}

    /**
     * That of the innermost {@link Locked} method of this thread. Do not release it.
     *
     * @throws IllegalStateException if there is none
     */
    public static Hold get() {
        Hold hold = CURRENT.get();
        if (hold == null) throw new IllegalStateException("no method with @Locked is running in this thread");
        return hold;
    }

    static Hold set(Hold hold) {
        Hold outer = CURRENT.get();
        if (hold == null) CURRENT.remove();
        else CURRENT.set(hold);
        return outer;
    }
}
