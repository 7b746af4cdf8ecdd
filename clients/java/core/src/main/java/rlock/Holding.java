package rlock;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;

/**
 * What one owner has of one key in one mode, in this whole process: objects come and go, the depth is counted here. The
 * server is told depths, never "one more", so that a command that arrives twice counts once.
 */
final class Holding {
    /** Who holds what, where: the same key at another service is another lock. */
    record Name(Service service, String key, String owner, Mode mode) {}

    private static final Map<Name, Holding> ALL = new ConcurrentHashMap<>();

    final Name name;
    /** One operation at a time: a depth is only right while nobody else changes it. */
    final Semaphore turn = new Semaphore(1, true);

    volatile int depth; // changed by who has the turn
    volatile Grant grant; // null at depth 0
    /** The turn belongs to what an abandoned attempt left to do. */
    volatile boolean tidying;
    /** Why that attempt failed, or why what it left is not done yet. */
    volatile RuntimeException trouble;
    private int users; // guarded by ALL.compute

    private Holding(Name name) {
        this.name = name;
    }

    /** Begins to use it; each use ends with {@link #leave}. */
    static Holding enter(Name name) {
        return ALL.compute(name, (same, old) -> {
            Holding holding = old == null ? new Holding(same) : old;
            holding.users++;
            return holding;
        });
    }

    /** For an owner that nobody else knows the name of. */
    static Holding alone(Name name) {
        return new Holding(name);
    }

    /** One more use of this very one. */
    void enter() {
        ALL.computeIfPresent(name, (same, holding) -> {
            holding.users++;
            return holding;
        });
    }

    LockException unconfirmed() {
        String text = name.key() + ": no server confirms the end of this owner's last attempt";
        RuntimeException why = trouble;
        return LockException.Unavailable.because(why == null ? text : text + ": " + why.getMessage(), why);
    }

    /** It is forgotten when nobody uses it and nothing is held. */
    void leave() {
        ALL.computeIfPresent(name, (same, holding) -> --holding.users > 0 || holding.depth > 0 ? holding : null);
    }

    /** What there is, or null. */
    static Holding find(Name name) {
        return ALL.get(name);
    }
}
