package rlock;

import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.Consumer;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;
import rlock.Machine.Act;
import rlock.Machine.Event;
import rlock.Machine.Input;
import rlock.Machine.Outcome;
import rlock.Machine.Output;
import rlock.Machine.Tell;

/**
 * A {@link Job} of a caller without a thread. Requests are sent in the few threads for the key's server; between them
 * nothing but a timer waits, or what is called when a reply or a turn has come.
 */
final class AsyncJob extends Job {
    private final Consumer<Tell> then;
    private long operation; // the number of the one under way; from here on guarded by this
    private Future<?> timer;
    private boolean isQueued; // for a thread
    private boolean isStarted; // a thread is at it, and nothing else ends it
    private boolean isCancelled; // once that thread is done
    private boolean isTold;

    /** {@code then} hears once what comes of it, in any thread, and returns at once. */
    AsyncJob(Links links, Seat seat, Options options, int depth, Machine machine, long warnsAt, Consumer<Tell> then) {
        super(links, seat, options, depth, machine, false, warnsAt);
        this.then = then;
    }

    synchronized void start() {
        advance(Input.of(Event.CALL));
    }

    /** Ends the wait. */
    synchronized void cancel() {
        if (isTold) return;
        if (isStarted) isCancelled = true;
        else stop(Event.CANCEL);
    }

    @Override
    void signal() {
        synchronized (this) {
            if (!isTold) {
                if (op != null && !isStarted) looks();
                return;
            }
        }
        super.signal();
    }

    @Override
    void rest() {
        leave();
    }

    private void looks() {
        boolean isReading = op.act() == Act.OWN || op.act() == Act.READ || op.act() == Act.LOOK;
        if (links.isClosing()) stop(Event.CLOSE);
        else if (op.act() == Act.TURN && turn != null && turn.isCalled()) advance(Input.of(Event.TURN));
        else if (isReading && reply != null && reply.isDone()) advance(answer());
    }

    private void stop(Event event) {
        brought = unsent();
        advance(Input.of(event));
    }

    private synchronized void arrived(long number, Input in) {
        if (number != operation || isTold) return;
        if (isCancelled) {
            brought = in;
            advance(Input.of(Event.CANCEL));
        } else {
            advance(in);
        }
    }

    // Until something takes its time.
    private void advance(Input first) {
        for (Input in = first; in != null; in = begin()) {
            operation++;
            isQueued = isStarted = false;
            if (timer != null) timer.cancel(false);
            timer = null;
            Tell tell = step(in);
            if (tell != null) {
                isTold = true;
                then.accept(tell);
                return;
            }
        }
    }

    // What is known at once, or null.
    private Input begin() {
        if (links.isClosing()) {
            brought = unsent();
            return Input.of(Event.CLOSE);
        }
        return switch (op.act()) {
            case SLOT -> Input.of(Event.SLOT, hasSlot = links.waits.tryAcquire());
            case READ -> reads();
            case TURN -> turn != null && turn.isCalled() ? Input.of(Event.TURN) : waits(Input.of(Event.TIME));
            case SLEEP -> {
                warnOnce();
                yield waits(Input.of(Event.TIME));
            }
            default -> works();
        };
    }

    private Input waits(Input late) {
        long number = operation;
        if (op.by() != Machine.FOREVER) timer = links.later(op.by() - Clock.now(), () -> arrived(number, late));
        return null;
    }

    private Input reads() {
        if (reply == null) return Input.of(Event.OWN, Outcome.BROKEN);
        if (reply.isDone()) return answer();
        long number = operation;
        long by = op.by();
        if (by != Machine.FOREVER) timer = links.later(by - Clock.now(), () -> readLate(number, by));
        return null;
    }

    // What lies in a socket is read before a process that slept believes that it did not come.
    private synchronized void readLate(long number, long by) {
        long late = Clock.now() - by;
        if (number != operation || isTold) return;
        if (late >= 2) timer = links.later(Math.min(Machine.LATE, late), () -> arrived(number, silence()));
        else arrived(number, silence());
    }

    private synchronized Input silence() {
        return reply.isDone() ? answer() : Input.of(Event.OWN, Outcome.SILENT);
    }

    private Input answer() {
        try {
            return reply();
        } catch (ServerException | LinkException failed) {
            return failed(failed);
        }
    }

    // In its turn; what could not begin in time was never sent.
    private Input works() {
        long number = operation;
        isQueued = true;
        try {
            links.inTurn(Links.Use.COMMAND, seat.name.key(), () -> work(number));
        } catch (RejectedExecutionException closed) {
            brought = unsent();
            return Input.of(Event.CLOSE);
        }
        if (op.by() != Machine.FOREVER) timer = links.later(op.by() - Clock.now(), () -> unstarted(number));
        return null;
    }

    private void work(long number) {
        Output mine;
        synchronized (this) {
            if (number != operation || isTold) return;
            mine = op;
            isQueued = false;
            // Whether it has its place is of no use to a wait whose reply has come.
            isStarted = mine.act() != Act.LOOK;
        }
        Input in = mine.act() == Act.LOOK ? Input.of(Event.PLACE, hasPlace(mine.by())) : does();
        synchronized (this) {
            if (in == null && !isCancelled) {
                isStarted = false;
                in = reads();
            }
            if (in != null || isCancelled) arrived(number, in);
        }
    }

    // Null: it is sent, and the reply is still to come.
    private Input does() {
        try {
            if (op.act() != Act.OWN) return perform();
            sendAlone();
            return null;
        } catch (ServerException | LinkException failed) {
            return failed(failed);
        }
    }

    private synchronized void unstarted(long number) {
        if (number == operation && isQueued) arrived(number, unsent());
    }

    private Input unsent() {
        return switch (op.act()) {
            case OWN -> Input.of(Event.OWN, Outcome.UNSENT);
            case LOOK -> Input.of(Event.PLACE, (Boolean) null);
            case LISTEN -> Input.of(Event.LISTENING);
            default -> Input.of(Event.REPLIED, Outcome.UNSENT);
        };
    }
}
