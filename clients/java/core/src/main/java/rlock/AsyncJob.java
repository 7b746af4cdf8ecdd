package rlock;

import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.Consumer;
import rlock.Driver.ServerException;
import rlock.Machine.Act;
import rlock.Machine.Event;
import rlock.Machine.Input;
import rlock.Machine.Outcome;
import rlock.Machine.Tell;

/**
 * A {@link Job} of a caller without a thread. Requests are sent in the few threads for the key's server. Between
 * requests, no thread waits: only a timer, and a callback for messages.
 */
final class AsyncJob extends Job {
    private final Consumer<Tell> then;
    private long operation; // the number of the one under way; from here on guarded by this
    private Future<?> timer;
    private boolean isQueued; // for a thread
    private boolean isStarted; // a thread is at it, and nothing else ends it
    private boolean isCancelled; // once that thread is done
    private boolean isTold;

    /** {@code then} gets the result once, in any thread, and must return at once. */
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
                if (op == null || isStarted) return;
                if (mustEnd()) stop(Event.CLOSE);
                else if (op.act() == Act.WAIT && waiter.isOver()) advance(message());
                return;
            }
        }
        super.signal();
    }

    @Override
    void rest() {
        leave();
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

    // Continues until an operation takes time.
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

    // The input that is known at once, or null.
    private Input begin() {
        if (mustEnd()) {
            brought = unsent();
            return Input.of(Event.CLOSE);
        }
        return switch (op.act()) {
            case WAIT -> waiter.isOver() ? message() : waits();
            case SLEEP -> waits();
            case LISTEN -> {
                Input now = listens();
                yield now == null ? works() : now;
            }
            default -> works();
        };
    }

    private Input waits() {
        warnOnce();
        long number = operation;
        long by = op.by();
        if (by != Machine.FOREVER) timer = links.later(by - Clock.now(), () -> isTime(number, by));
        return null;
    }

    // After a suspension of the process, the socket is read before a reply counts as missing.
    private synchronized void isTime(long number, long by) {
        long late = Clock.now() - by;
        if (number != operation || isTold) return;
        if (late < 2) arrived(number, Input.of(Event.TIME));
        else timer = links.later(Math.min(Machine.LATE, late), () -> arrived(number, Input.of(Event.TIME)));
    }

    private Input message() {
        try {
            return heard(waiter);
        } catch (ServerException refused) {
            return failed(refused);
        }
    }

    // Runs in its turn; a request that could not begin in time was never sent.
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
        synchronized (this) {
            if (number != operation || isTold) return;
            isQueued = false;
            isStarted = true;
        }
        arrived(number, perform());
    }

    private synchronized void unstarted(long number) {
        if (number == operation && isQueued) arrived(number, unsent());
    }

    private Input unsent() {
        return Input.of(op.act() == Act.OWN ? Event.OWN : Event.REPLIED, Outcome.UNSENT);
    }
}
