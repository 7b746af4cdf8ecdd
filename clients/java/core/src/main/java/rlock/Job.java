package rlock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
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

/** Does what the machine of an attempt or a release says, for who has the seat, until that is free. */
sealed class Job permits AsyncJob {
    private static final System.Logger LOG = System.getLogger("rlock");
    /** The server refuses to block for longer, except for ever. */
    private static final long LONGEST_BLOCK = TimeUnit.DAYS.toMillis(7);

    /** Of the last request. */
    RuntimeException trouble;
    /** Its own connection. */
    Link link;
    final Links links;
    final Seat seat;
    private final Options options;
    private final int depth;
    private final Machine machine;
    private final CompletableFuture<Void> freed = new CompletableFuture<>();
    private boolean interruptible;
    private boolean interrupted;
    private Event stop; // what ended an operation before its time
    private boolean isClosed;
    Output op; // under way
    private Tell told;
    Input brought; // by an operation that was interrupted
    CompletableFuture<Object> reply; // on its own connection
    private Address at; // where that leads
    private Address asked; // where -ASK pointed
    Turns.Turn turn;
    boolean hasSlot;
    private long warnsAt;
    private volatile Thread thread; // that waits

    Job(Links links, Seat seat, Options options, int depth, Machine machine, boolean interruptible, long warnsAt) {
        this.links = links;
        this.seat = seat;
        this.options = options;
        this.depth = depth;
        this.machine = machine;
        this.interruptible = interruptible;
        this.warnsAt = warnsAt;
        links.jobs.add(this);
    }

    static void warn(String key, RuntimeException trouble) {
        LOG.log(System.Logger.Level.WARNING, key + ": still waiting; last error: " + trouble.getMessage());
    }

    /** What comes of it. */
    Tell call() {
        Input in = Input.of(Event.CALL);
        try {
            while (step(in) == null) in = bring();
            return told;
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
            interrupted = interruptible = false;
        }
    }

    /** What was granted is taken, or not. */
    void ends(Event event) {
        step(Input.of(event));
    }

    /** What is left is undone in the background, without whom this is told, but for a moment. */
    void rest() {
        if (!leave()) return;
        // Who locks something else at once shall not still wait here.
        Driver.await(freed, TimeUnit.MILLISECONDS.toNanos(Machine.LATE));
    }

    /** The same without that moment; false if nothing is left. */
    boolean leave() {
        if (freed.isDone()) return false;
        seat.failed(trouble);
        goOn(null);
        return true;
    }

    /** Something came that it may wait for. */
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
                        if (links.after(op.by() - Clock.now(), later)) return;
                    }
                    step(bring());
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
        if (hasSlot) links.waits.release();
        if (turn != null) turn.close();
        letGo(reply == null);
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

    // What ends the operation under way.
    private Input bring() {
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
        } else if (!isClosed && links.isClosing()) {
            isClosed = true;
            stop = Event.CLOSE;
        }
        return stop != null;
    }

    /** Whether it came in time. What lies in a socket is read before a process that slept believes that it did not. */
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
                case SLOT -> Input.of(Event.SLOT, hasSlot = links.waits.tryAcquire());
                case OPEN -> open(by);
                case OWN -> asksAlone(by);
                case READ -> read(by);
                case LOOK -> look(by);
                case SEND -> Input.of(Event.REPLIED, send());
                case AWAIT -> brought == null ? Input.of(Event.REPLIED, Outcome.BROKEN) : brought;
                case LISTEN -> listen(by);
                case TURN -> Input.of(await(by, () -> turn != null && turn.isCalled()) ? Event.TURN : Event.TIME);
                default -> sleep(by);
            };
        } catch (ServerException | LinkException failed) {
            return failed(failed);
        }
    }

    Input failed(RuntimeException failure) {
        if (op.act() == Act.LOOK) return Input.of(Event.PLACE, (Boolean) null); // no server decides at the moment
        // What came of a request whose time was over says less, unless a server said it.
        if (failure instanceof ServerException || trouble == null || Clock.now() < op.by()) trouble = failure;
        if (failure instanceof LinkException) links.dropIdle(seat.name.key());
        boolean isOwn = op.act() == Act.OWN || op.act() == Act.READ;
        if (isOwn && failure instanceof ServerException error) asked = links.redirected(error, seat.name.key(), at);
        links.refresh();
        return Input.of(isOwn ? Event.OWN : Event.REPLIED, outcome(failure));
    }

    static Outcome outcome(RuntimeException failure) {
        if (failure instanceof ServerException error) return Outcome.refused(error.code());
        LinkException broken = (LinkException) failure;
        return broken.isNeverSent() ? Outcome.UNSENT : Links.isSilent(broken) ? Outcome.SILENT : Outcome.BROKEN;
    }

    static Outcome outcome(Object reply) {
        return reply == null ? Outcome.NIL : reply instanceof Long number ? Outcome.token(number) : Outcome.token(0);
    }

    private Input open(long by) {
        at = asked != null ? asked : links.primary(seat.name.key(), Links.endOf(by));
        link = links.take(at, Links.endOf(by));
        reply = null;
        try {
            if (asked != null) link.call(links.limit(by, false), "ASKING");
        } catch (LinkException broken) {
            throw broken.neverSent();
        } finally {
            asked = null;
        }
        return Input.of(Event.OPENED, links.roundTrip());
    }

    private Input asksAlone(long by) {
        sendAlone();
        return read(by);
    }

    /** Asks on its own connection; {@link #signal} is called when the reply is there. */
    void sendAlone() {
        // A longer wait ends here alone: for the server it has no end.
        long block = op.block() > LONGEST_BLOCK ? 0 : op.block();
        String[] wait = block < 0 ? new String[0] : new String[] {"BLOCK", String.valueOf(block)};
        reply = link.send(seat.acquire(options, depth, op.session(), wait));
        reply.whenComplete((token, failed) -> signal());
    }

    private Input read(long by) {
        if (reply == null) return Input.of(Event.OWN, Outcome.BROKEN);
        return await(by, reply::isDone) ? reply() : Input.of(Event.OWN, Outcome.SILENT);
    }

    /** What came on its own connection. */
    Input reply() {
        try {
            return Input.of(Event.OWN, outcome(reply.join()));
        } catch (CompletionException failed) {
            if (failed.getCause() instanceof ServerException error) throw error;
            if (failed.getCause() instanceof LinkException broken) throw broken;
            throw new LinkException("the wait broke", failed.getCause());
        }
    }

    private Input look(long by) {
        var place = new AtomicReference<Input>();
        try {
            links.inTurn(Links.Use.ASIDE, seat.name.key(), () -> {
                place.set(Input.of(Event.PLACE, hasPlace(by)));
                signal();
            });
        } catch (RejectedExecutionException closing) {
            return Input.of(Event.PLACE, (Boolean) null);
        }
        await(by, () -> place.get() != null || reply.isDone());
        if (reply.isDone()) return read(by);
        return place.get() != null ? place.get() : Input.of(Event.PLACE, (Boolean) null);
    }

    // Whether whoever decides now knows of the wait; null if nobody does.
    Boolean hasPlace(long by) {
        Seat.Name name = seat.place();
        try {
            links.lookAround();
            long limit = links.limit(by, false);
            if (links.call(Links.Use.ASIDE, name.key(), limit, "RLOCK.PLACE", name.key(), name.owner()) != null) return true;
            // What is not acknowledged yet has no place.
            return options.acks() > 0 && Topology.text(Replies.field(found(by), "acks")).equals("pending");
        } catch (ServerException | LinkException nobody) {
            links.refresh();
            return null;
        }
    }

    private Outcome send() {
        Request request = op.request();
        if (request == Request.INFO) {
            Object token = Replies.field(found(op.by()), "token");
            return token instanceof Long number ? Outcome.token(number) : Outcome.NIL;
        }
        boolean grants = request == Request.ACQUIRE || request == Request.QUEUE || request == Request.RENEW;
        boolean hasAcks = options.acks() > 0 && grants;
        Links.Use use = hasAcks ? Links.Use.ACKED : told != null || request == Request.CANCEL ? Links.Use.ASIDE
                : request == Request.RELEASE ? Links.Use.RELEASE : Links.Use.COMMAND;
        Object reply = links.call(use, seat.name.key(), links.limit(op.by(), hasAcks), words(request));
        return outcome(request == Request.RELEASE ? seat.released(reply) : reply);
    }

    private String[] words(Request request) {
        return switch (request) {
            case ACQUIRE -> seat.acquire(options, depth, false);
            case QUEUE -> seat.acquire(options, depth, false, "QUEUE", String.valueOf(Machine.TICKET));
            case RENEW -> seat.renew(options, op.token(), options.leaseMillis());
            case RELEASE -> seat.release(op.token(), op.depth());
            default -> new String[] {"RLOCK." + request, seat.place().key(), seat.place().owner()};
        };
    }

    // What the server says of this owner's hold, or nothing. Of several locks one may have ended by itself.
    private List<?> found(long by) {
        List<?> holder = List.of();
        for (Seat each : seat.members()) {
            Seat.Name name = each.name;
            Object info = links.call(Links.Use.ASIDE, name.key(), links.limit(by, false),
                    "RLOCK.INFO", name.key(), "HOLDERS", "10000", "WAITERS", "0");
            holder = Replies.holder(info, name.owner(), name.mode());
            if (!holder.isEmpty()) break;
        }
        return holder;
    }

    // Who may not subscribe, or cannot just now, hears nothing and asks all the same.
    private Input listen(long by) {
        try {
            Address now = links.primary(seat.name.key(), Links.endOf(by));
            if (turn == null || !turn.isAt(now)) {
                if (turn != null) turn.close();
                turn = null;
                turn = links.turns.listen(now, seat.place().owner(), seat.place().key(), links.limit(by, false), this::signal);
            }
        } catch (LinkException | ServerException | RejectedExecutionException deaf) {
            // Then by asking alone.
        }
        return Input.of(Event.LISTENING);
    }

    private Input sleep(long by) {
        warnOnce();
        await(by, () -> false);
        return Input.of(Event.TIME);
    }

    /** Of a wait that no server answers for long. */
    void warnOnce() {
        if (told == null && trouble != null && Clock.now() >= warnsAt) {
            warnsAt = Machine.FOREVER;
            warn(seat.toString(), trouble);
        }
    }
}
