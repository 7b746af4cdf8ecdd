package rlock;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/**
 * The decisions of clients/ALGORITHM.md, with the names of that page, and without I/O, clock or randomness. A machine
 * gets one input at a time, with the time in ms, and returns outputs, of which at most one, the last, is an operation
 * that takes time. clients/traces/README.md lists all of them; the tests replay what the same machine did in the
 * simulation.
 */
abstract sealed class Machine permits Undoing, Holding {
    static final long FOREVER = Long.MAX_VALUE;
    /** How long a reply may take. */
    static final long REPLY = 2_000;
    /** How long a reply may be late at the end of the patience, and how long a caller waits for undoing. */
    static final long LATE = 50;
    /** The average pause before the next connection to a server that could not be reached. */
    static final long DIALS = 200;
    /** How long a request that does not wait is repeated. */
    static final long PATIENCE = 3_000;
    /** How often a waiting request is sent again: a lost message costs at most this much time. */
    static final long LOOKS = 1_000;
    /** The same with ACKS: a request that is sent again begins to wait for acknowledgments anew. */
    static final long ACKS = 3 * REPLY;
    /**
     * With ACKS, a request ends at most this long before the wait does: so its message, with the reason, comes in time.
     */
    static final long AHEAD = 250;
    static final long FIRST_PAUSE = 10;
    static final long LONGEST_PAUSE = 500;
    /** A request is sent again after this time: by then, a server that was suspended has read what it had received. */
    static final long AGAIN = 500;
    /** How long undoing may take after {@code close}. */
    static final long CLOSES = 1_000;
    /** How many redirections an attempt follows without a pause. */
    static final int HOPS = 5;

    private static final Set<String> PASSING = Set.of("UNBLOCKED", "READONLY", "LOADING", "MOVED", "ASK", "TRYAGAIN",
            "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN");

    /** Whether the condition behind an error ends by itself: no server can decide for now. */
    static boolean passes(String code) {
        return PASSING.contains(code);
    }

    /** How a request ended. UNSENT was certainly not executed; after WAITING, a message follows. */
    enum Ending { TOKEN, NIL, WAITING, REFUSED, UNSENT, BROKEN, SILENT }

    /** The result of a request, with its number or the first word of the error. */
    record Outcome(Ending ending, long token, String code) {
        static final Outcome NIL = of(Ending.NIL);
        static final Outcome WAITING = of(Ending.WAITING);
        static final Outcome UNSENT = of(Ending.UNSENT);
        static final Outcome BROKEN = of(Ending.BROKEN);
        static final Outcome SILENT = of(Ending.SILENT);

        private static Outcome of(Ending ending) {
            return new Outcome(ending, 0, "");
        }

        static Outcome token(long number) {
            return new Outcome(Ending.TOKEN, number, "");
        }

        static Outcome refused(String code) {
            return new Outcome(Ending.REFUSED, 0, code);
        }

        boolean isToken() {
            return ending == Ending.TOKEN;
        }

        boolean isNil() {
            return ending == Ending.NIL;
        }

        /** Whether the request may have been executed, or may still be. */
        boolean isUnknown() {
            return ending == Ending.BROKEN || ending == Ending.SILENT;
        }

        boolean isNotHeld() {
            return code.equals("NOTHELD");
        }

        /** Whether it was refused permanently. */
        boolean isFinal() {
            return ending == Ending.REFUSED && !passes(code);
        }
    }

    /**
     * The inputs. {@code REPLIED}: a request on a shared connection has ended; {@code OWN}: a request on the job's own
     * connection has ended; {@code LOST}: the subscription has ended.
     */
    enum Event {
        CALL, OPENED, REPLIED, OWN, LISTENING, MESSAGE, LOST, TIME, TAKEN, CANCEL, CLOSE,
        ENDED, SEAT, RELEASING, RELEASED, GONE, EXTEND
    }

    /** {@code number} is a round trip, a depth (0: the seat is not free) or a time. */
    record Input(Event event, Outcome outcome, long number) {
        static Input of(Event event) {
            return of(event, 0);
        }

        static Input of(Event event, Outcome outcome) {
            return new Input(event, outcome, 0);
        }

        static Input of(Event event, long number) {
            return new Input(event, null, number);
        }
    }

    /** The requests on a shared connection. */
    enum Request { ACQUIRE, RENEW, CANCEL, INFO, RELEASE }

    /** The result of a call. */
    enum Told { GRANTED, NIL, RELEASED, LOST, UNAVAILABLE, NOREPLICAS, REFUSED, CANCELLED, CLOSED }

    /** The actions of a machine. Those up to {@code SEAT} are operations: they continue until an input ends them. */
    enum Act {
        OPEN, OWN, SEND, AWAIT, LISTEN, WAIT, SLEEP, SEAT,
        KEEP, DROP, TELL, UNDO, FREE, DOUBT, TIED, LEAVE, DONE
    }

    /**
     * An operation ends at {@code by} at the latest. {@code token} and {@code depth} belong to a request; {@code block}
     * is how long it waits at the server: 0 means forever, and -1 not at all.
     */
    record Output(Act act, long by, Request request, long token, int depth, long block, boolean session, Tell tell) {
        static Output of(Act act) {
            return of(act, 0);
        }

        static Output of(Act act, long by) {
            return new Output(act, by, null, 0, 0, -1, false, null);
        }

        static Output send(Request request, long token, int depth, long by) {
            return new Output(Act.SEND, by, request, token, depth, -1, false, null);
        }

        static Output own(long block, boolean session, int depth, long by) {
            return new Output(Act.OWN, by, null, 0, depth, block, session, null);
        }
    }

    /** The lease of a grant counts from {@code sent}. The result lingers if an earlier request was never answered. */
    record Tell(Told told, long token, long sent, boolean lingers, String code) {
        static Tell of(Told told) {
            return new Tell(told, 0, 0, false, "");
        }
    }

    private List<Output> out;

    /** Takes the input, and returns what follows from it. */
    final List<Output> step(long now, Input in) {
        out = new ArrayList<>(3);
        react(now, in);
        return out;
    }

    abstract void react(long now, Input in);

    final void say(Act act) {
        out.add(Output.of(act));
    }

    final void say(Output output) {
        out.add(output);
    }

    final void tell(Tell tell) {
        out.add(new Output(Act.TELL, 0, null, 0, 0, -1, false, tell));
    }

    /** That much later; FOREVER remains FOREVER. */
    static long after(long now, long takes) {
        return takes > FOREVER - now ? FOREVER : now + takes;
    }

    /**
     * How long a request waits for a seat that another request of its owner has; longer while that request is being
     * undone, but no longer than it waits without a server.
     */
    static long come(boolean isUndone, long wait, long patience, long outage) {
        if (!isUndone) return wait > 0 ? wait : 2 * LATE;
        return Math.min(outage, wait > 0 ? wait : patience);
    }
}
