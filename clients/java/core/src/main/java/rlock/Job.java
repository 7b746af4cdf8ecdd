package rlock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import rlock.Driver.Address;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;
import rlock.Machine.Act;
import rlock.Machine.Event;
import rlock.Machine.Input;
import rlock.Machine.Outcome;
import rlock.Machine.Output;
import rlock.Machine.Request;
import rlock.Machine.Tell;

/**
 * Does what the machine of an attempt or a release asks for, on behalf of the seat's holder, until the seat is free.
 */
sealed class Job permits AsyncJob {
    /** The longest BLOCK that the server accepts, apart from 0, which means no limit. */
    private static final long LONGEST_BLOCK = TimeUnit.DAYS.toMillis(7);

    /** The error of the last request. */
    RuntimeException trouble;
    /** Its own connection. */
    Link link;
    final Links links;
    final Seat seat;
    private final Options options;
    private final int depth;
    private final boolean isNew; // it asks for a hold that its owner has not: a drain ends it
    private final Machine machine;
    private final CompletableFuture<Void> freed = new CompletableFuture<>();
    private boolean interruptible;
    private boolean interrupted;
    private Event stop; // what ended an operation before its time
    private boolean isClosed;
    Output op; // under way
    private Tell told;
    Input brought; // by an operation that was interrupted
    Inbox.Waiter waiter; // null until it listens
    private Address at; // where its own connection leads
    private Address asked; // where -ASK pointed
    private long warnsAt;
    private volatile Thread thread; // that waits

    Job(Links links, Seat seat, Options options, int depth, Machine machine, boolean interruptible, long warnsAt) {
        this.links = links;
        this.seat = seat;
        this.options = options;
        this.depth = depth;
        this.isNew = depth == 1 && machine instanceof Attempt;
        this.machine = machine;
        this.interruptible = interruptible;
        this.warnsAt = warnsAt;
        links.jobs.add(this);
    }

    /** The result. */
    Tell call() {
        Input in = Input.of(Event.CALL);
        try {
            while (step(in) == null) in = performUnlessStopped();
            return told;
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
            interrupted = interruptible = false;
        }
    }

    /** The caller takes the grant, or does not. */
    void ends(Event event) {
        step(Input.of(event));
    }

    /** Undoes what is left, in the background; the caller waits for that at most LATE. */
    void rest() {
        if (!leave()) return;
        // A caller that locks something else next should not be kept waiting.
        Driver.await(freed, TimeUnit.MILLISECONDS.toNanos(Machine.LATE));
    }

    /** The same without waiting; false if nothing is left. */
    boolean leave() {
        if (freed.isDone()) return false;
        seat.failed(trouble);
        goOn(null);
        return true;
    }

    /** Something happened that the job may be waiting for. */
    void signal() {
        LockSupport.unpark(thread);
    }

    /** Nothing can be undone any more. */
    void abandon() {
        if (!freed.isDone()) end();
    }

    private void goOn(Input first) {
        try {
            links.inTurn(Links.Use.ASIDE, seat.name.key(), () -> {
                if (first != null) step(first);
                while (!freed.isDone()) {
                    if (op.act() == Act.SLEEP && !links.isClosing()) {
                        Runnable later = () -> goOn(Input.of(Event.TIME));
                        if (links.later(op.by() - Clock.now(), later) != null) return;
                    }
                    step(performUnlessStopped());
                }
            });
        } catch (RejectedExecutionException closed) {
            abandon();
        }
    }

    Tell step(Input in) {
        for (Output output : machine.step(Clock.now(), in)) {
            switch (output.act()) {
                case KEEP -> letGo(true);
                case DROP -> letGo(false);
                case TELL -> told = output.tell();
                case UNDO -> seat.undoes();
                case FREE -> end();
                default -> op = output;
            }
        }
        return told;
    }

    private synchronized void end() {
        if (freed.isDone()) return;
        if (waiter != null) waiter.close();
        letGo(false);
        links.jobs.remove(this);
        seat.free();
        freed.complete(null);
    }

    private void letGo(boolean isKept) {
        Link old = link;
        link = null;
        if (old == null) return;
        if (isKept) links.give(at, old);
        else old.close();
    }

    // The input that ends the operation in progress.
    private Input performUnlessStopped() {
        stop = null;
        Input in = perform();
        if (stop == null) stops();
        if (stop == null) return in;
        brought = in;
        return Input.of(stop);
    }

    private boolean stops() {
        if (Thread.interrupted()) {
            if (interruptible) stop = Event.CANCEL;
            else interrupted = true;
        } else if (!isClosed && mustEnd()) {
            isClosed = true;
            stop = Event.CLOSE;
        }
        return stop != null;
    }

    /** Whether it is closed, or drained. */
    final boolean mustEnd() {
        return isNew && told == null ? links.isDraining() : links.isClosing();
    }

    /** Whether the reply came in time. A process that was suspended first reads what its socket has received. */
    private boolean await(long by, BooleanSupplier isThere) {
        thread = Thread.currentThread();
        long until = by;
        while (!isThere.getAsBoolean()) {
            if (stops()) return false;
            long left = until - Clock.now();
            if (left <= 0 && (left > -2 || until != by)) return false;
            if (left <= 0) until = Clock.now() + Math.min(Machine.LATE, -left);
            else if (until == Machine.FOREVER) LockSupport.park(this);
            else LockSupport.parkNanos(this, TimeUnit.MILLISECONDS.toNanos(left));
        }
        return true;
    }

    Input perform() {
        long by = op.by();
        try {
            return switch (op.act()) {
                case OPEN -> open(by);
                case OWN -> Input.of(Event.OWN, outcome(link.call(links.limit(by), acquire(op.session()))));
                case SEND -> Input.of(Event.REPLIED, send());
                case AWAIT -> brought == null ? Input.of(Event.REPLIED, Outcome.BROKEN) : brought;
                case LISTEN -> listen(by);
                case WAIT -> waits(by);
                default -> sleep(by);
            };
        } catch (ServerException | LinkException failed) {
            return failed(failed);
        }
    }

    Input failed(RuntimeException why) {
        RuntimeException failure = links.tagged(why);
        // A failure after the time limit says less than an earlier one, unless it came from a server.
        if (failure instanceof ServerException || trouble == null || Clock.now() < op.by()) trouble = failure;
        if (failure instanceof LinkException && op.act() != Act.LISTEN) links.dropIdle(seat.name.key());
        if (op.act() == Act.OWN && failure instanceof ServerException error) asked = links.redirected(error, seat.name.key(), at);
        links.refresh();
        Event ended = op.act() == Act.OWN ? Event.OWN : op.act() == Act.WAIT ? Event.MESSAGE : Event.REPLIED;
        return Input.of(ended, outcome(failure));
    }

    static Outcome outcome(RuntimeException failure) {
        if (failure instanceof ServerException error) return Outcome.refused(error.code());
        LinkException broken = (LinkException) failure;
        return broken.isNeverSent() ? Outcome.UNSENT : Links.isSilent(broken) ? Outcome.SILENT : Outcome.BROKEN;
    }

    static Outcome outcome(Object reply) {
        return reply == null ? Outcome.NIL : reply instanceof Long number ? Outcome.token(number)
                : Inbox.isWaiting(reply) ? Outcome.WAITING : Outcome.token(0);
    }

    private Input open(long by) {
        at = asked != null ? asked : links.primary(seat.name.key(), Links.endOf(by));
        link = links.take(at, Links.endOf(by));
        try {
            if (asked != null) link.call(links.limit(by), "ASKING");
        } catch (LinkException broken) {
            throw broken.neverSent();
        } finally {
            asked = null;
        }
        return Input.of(Event.OPENED);
    }

    /** Subscribes if that takes no time; otherwise null. */
    Input listens() {
        links.lookAround();
        return waiter().listens(seat.name.key()) ? Input.of(Event.LISTENING, links.roundTrip()) : null;
    }

    private Input listen(long by) {
        links.listen(waiter(), seat.name.key(), Links.endOf(by));
        return Input.of(Event.LISTENING, links.roundTrip());
    }

    // A request that is answered at once has none.
    private Inbox.Waiter waiter() {
        if (waiter == null) waiter = links.inbox.waiter(this::signal);
        return waiter;
    }

    private Input waits(long by) {
        warnOnce();
        return await(by, waiter::isOver) ? heard(waiter) : Input.of(Event.TIME);
    }

    /** The result of the wait; an error is thrown. */
    static Input heard(Inbox.Waiter waiter) {
        String message = waiter.message();
        return message == null ? Input.of(Event.LOST) : Input.of(Event.MESSAGE, outcome(Inbox.reply(message)));
    }

    private Outcome send() {
        Request request = op.request();
        String key = seat.name.key();
        if (request == Request.INFO) {
            Object token = Replies.field(found(op.by()), "token");
            return token instanceof Long number ? Outcome.token(number) : Outcome.NIL;
        }
        if (request == Request.ACQUIRE && isTold())
            return outcome(links.call(Links.Use.COMMAND, waiter, key, links.limit(op.by()), acquire(false)));
        Links.Use use = told != null || request == Request.CANCEL ? Links.Use.ASIDE
                : request == Request.RELEASE ? Links.Use.RELEASE : Links.Use.COMMAND;
        Object reply = links.call(use, key, links.limit(op.by()), words(request));
        return outcome(request == Request.RELEASE ? seat.released(reply) : reply);
    }

    private String[] words(Request request) {
        return switch (request) {
            case ACQUIRE -> acquire(false);
            case RELEASE -> seat.release(op.token(), op.depth());
            default -> new String[] {"RLOCK." + request, seat.place().key(), seat.place().owner()};
        };
    }

    // Whether its reply may come late: because of BLOCK, or of acknowledgments.
    private boolean isTold() {
        return op.block() >= 0 || options.acks() > 0;
    }

    private String[] acquire(boolean tied) {
        // A longer wait is ended only by this package: for the server, it has no limit.
        long block = op.block() > LONGEST_BLOCK ? 0 : op.block();
        return seat.acquire(options, depth, tied, block, isTold() ? waiter.tell() : new String[0]);
    }

    // What the server reports about this owner's hold, or nothing. One of several locks may have ended by itself.
    private List<?> found(long by) {
        List<?> holder = List.of();
        for (Seat each : seat.members()) {
            Seat.Name name = each.name;
            Object info = links.call(Links.Use.ASIDE, name.key(), links.limit(by),
                    "RLOCK.INFO", name.key(), "HOLDERS", "10000", "WAITERS", "0");
            holder = Replies.holder(info, name.owner(), name.mode());
            if (!holder.isEmpty()) break;
        }
        return holder;
    }

    private Input sleep(long by) {
        warnOnce();
        await(by, () -> false);
        return Input.of(Event.TIME);
    }

    /** Warns about a wait that no server answers for long. */
    void warnOnce() {
        if (told == null && trouble != null && Clock.now() >= warnsAt) {
            warnsAt = Machine.FOREVER;
            links.worries.of(seat.toString(), trouble);
        }
    }
}
