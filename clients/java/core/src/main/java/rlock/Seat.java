package rlock;

import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.function.BooleanSupplier;

/**
 * One owner of one key in one mode, in the whole process: lock objects come and go, but the depth is counted here.
 * Requests name the depth to reach, never "one more", so that a command that arrives twice counts once.
 */
sealed class Seat permits Group {
    /** The owner, the key, the mode and the service: the same key at another service is another lock. */
    record Name(Service service, String key, String owner, Mode mode) {}

    private static final Map<Name, Seat> ALL = new ConcurrentHashMap<>();
    /**
     * An unlock of a lost hold must fail, so the seat is kept until then. But a lease that is not renewed may be meant
     * to expire without an unlock: of such seats, only this many are kept.
     */
    static final int MOST_LOST = 1_000;
    private static final Set<Seat> LOST = new LinkedHashSet<>(); // the oldest first; guarded by itself

    final Name name;
    /** One request at a time: a depth is right only while no other request changes it. */
    final Semaphore turn = new Semaphore(1, true);

    volatile int depth; // changed by the request that has the turn
    volatile Tenure tenure; // null at depth 0
    /** The turn belongs to the undoing of an earlier request. */
    private volatile boolean isUndone;
    /** Why that request failed, or why it is not undone yet. */
    private volatile RuntimeException trouble;
    private int users; // guarded by ALL.compute
    private final Queue<BooleanSupplier> callers = new ConcurrentLinkedQueue<>(); // that wait without a thread

    Seat(Name name) {
        this.name = name;
    }

    /** Begins to use the seat of that name; each use ends with {@link #leave}. */
    static Seat enter(Name name) {
        return ALL.compute(name, (same, old) -> {
            Seat seat = old == null ? new Seat(same) : old;
            seat.users++;
            return seat;
        });
    }

    /** A seat for an owner whose name nobody else knows. */
    static Seat alone(Name name) {
        return new Seat(name);
    }

    /** The seats whose turns it takes, in key order: itself, or those of a group. */
    List<Seat> members() {
        return List.of(this);
    }

    /** The name of the key at which the owner's wait has its place or its turn. */
    Name place() {
        return name;
    }

    /** Counts one more use of this seat. */
    void enter() {
        ALL.computeIfPresent(name, (same, seat) -> {
            if (seat == this) users++;
            return seat;
        });
    }

    /** The seat is removed when nobody uses it and nothing is held. */
    void leave() {
        ALL.computeIfPresent(name, (same, seat) -> seat != this || --users > 0 || depth > 0 ? seat : null);
    }

    /** Its hold was lost: if nobody releases it, the seat is removed after many other losses. */
    void lost() {
        if (find(name) != this) return;
        Seat oldest;
        synchronized (LOST) {
            LOST.remove(this);
            LOST.add(this);
            if (LOST.size() <= MOST_LOST) return;
            oldest = LOST.iterator().next();
            LOST.remove(oldest);
        }
        if (!oldest.forgetLost()) return;
        synchronized (LOST) {
            LOST.add(oldest);
        }
    }

    // Removes the seat, unless somebody is using it at the moment.
    private boolean forgetLost() {
        Seat kept = ALL.computeIfPresent(name, (same, seat) -> seat == this && users == 0 && hasLost() ? null : seat);
        return kept == this && hasLost();
    }

    private boolean hasLost() {
        Tenure of = tenure;
        return of != null && of.isKnownLost();
    }

    /** Passes the turn on: nothing of the previous request is still to be executed. */
    void free() {
        isUndone = false;
        passTurn();
        leave();
    }

    /** Takes the turn if it is free. */
    boolean tryTurn() {
        return turn.tryAcquire();
    }

    /** Adds one level of this hold. The caller has the turn, as for {@link #lower}. */
    void raise(Tenure of) {
        tenure = of;
        depth++;
    }

    /** One level less. */
    void lower() {
        if (--depth == 0) tenure = null;
    }

    /** Hands the turn over to the undoing of a request. */
    void undoes() {
        isUndone = true;
    }

    void failed(RuntimeException why) {
        trouble = why;
    }

    boolean isUndone() {
        return isUndone;
    }

    /**
     * Takes the turn, or arranges that {@code again} is called once when that may succeed; it returns whether the turn
     * is still wanted.
     */
    boolean tryTurn(BooleanSupplier again) {
        if (turn.tryAcquire()) return true;
        callers.add(again);
        if (!turn.tryAcquire()) return false;
        callers.remove(again);
        return true;
    }

    /** Cancels that call. */
    void forget(BooleanSupplier again) {
        callers.remove(again);
    }

    /** The turn is free again. */
    void passTurn() {
        turn.release();
        callNext();
    }

    /** Calls the next request that waits and still wants the turn. */
    void callNext() {
        BooleanSupplier next = callers.poll();
        while (next != null && !next.getAsBoolean()) next = callers.poll();
    }

    LockException unavailable() {
        String text = this + ": no server confirms the end of this owner's last request";
        RuntimeException why = trouble;
        return LockException.Unavailable.because(why == null ? text : text + ": " + why.getMessage(), why);
    }

    /** What errors call it. */
    @Override
    public String toString() {
        return name.key();
    }

    /** The seat, or null if there is none. */
    static Seat find(Name name) {
        return ALL.get(name);
    }

    // --- how it is asked for

    /**
     * The request for the lock, with the depth to reach. It waits for {@code block} ms: 0 means forever, -1 not at all.
     * The late reply comes on the channel in {@code tell}.
     */
    String[] acquire(Options options, int at, boolean tied, long block, String... tell) {
        return options.acquire(name, at, tied, block, tell);
    }

    /** The request that extends the hold with this token. The late reply comes on the channel in {@code tell}. */
    String[] renew(Options options, long token, long millis, String... tell) {
        return options.renew(name, token, millis, tell);
    }

    /** The request that releases all levels of that hold above this depth. */
    String[] release(long token, int to) {
        return new String[] {"RLOCK.RELEASE", name.key(), name.owner(), name.mode().name(),
            "TOKEN", String.valueOf(token), "DEPTH", String.valueOf(to)};
    }

    /** The reply to a release; of several locks, {@code NOTHELD} if fewer holds ended than there are locks. */
    Object released(Object reply) {
        return reply;
    }
}
