package rlock;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;
import rlock.Machine.Act;
import rlock.Machine.Event;
import rlock.Machine.Input;
import rlock.Machine.Outcome;
import rlock.Machine.Output;
import rlock.Machine.Tell;
import rlock.Machine.Told;

/** A hold from its first level to its last, shared by all levels: does what its {@link Holding} asks for. */
final class Tenure {
    private static final System.Logger LOG = System.getLogger("rlock");
    /** How long an unlock may take in total, with the wait for its seat and its repetitions. */
    private static final long RELEASES_MILLIS = 10_000;
    /** Timers are late, never early; and two clocks never run at exactly the same rate. */
    private static final long EARLY_MILLIS = 5;

    final long token;
    private final Loss lost = new Loss();
    private List<Watch> watches = List.of(); // these are guarded by this
    private boolean isWatched;
    /** The only thread that can release levels which no {@link Hold} can release; null if there is none. */
    volatile Thread holder;
    /** How many levels can be released through a {@link Hold}. */
    final AtomicInteger values = new AtomicInteger();
    private final Instant start = Instant.now();
    private final long startNanos = System.nanoTime();
    private final Locks locks;
    private final Seat seat;
    private Options options; // of the level whose lease is renewed; from here on guarded by this
    private Holding machine;
    private boolean lingers;
    private boolean isOver;
    private long operation; // the number of the one under way
    private Output op; // that one
    private final Inbox.Waiter waiter; // null without acks
    private Future<?> timer;
    private Link session;
    private Link tying;
    private volatile boolean isLost;
    // The server keeps a session whose deadline has passed until it notices that the connection is closed: until then,
    // the owner would re-enter the hold, and lose it afterward.
    private boolean mayStand;
    private volatile boolean isDoubted; // the connection of the session has ended, and it is not tied to a new one

    Tenure(Locks locks, Seat seat, Options options, Tell told) {
        this.locks = locks;
        this.seat = seat;
        this.options = options;
        this.token = told.token();
        this.lingers = told.lingers();
        this.machine = new Holding(kept(told.sent()));
        this.waiter = options.acks() > 0 ? locks.links.inbox.waiter(this::hears) : null;
    }

    private Holding.Kept kept(long sent) {
        long lease = options.leaseMillis();
        return new Holding.Kept(token, lease, sent, Math.min(EARLY_MILLIS, lease / 10), options.acks() > 0, options.renewed());
    }

    void begins() {
        locks.remember(this);
        tell(Event.CALL);
    }

    /**
     * The signal of the loss. Once it was asked for, the server reports the end of a WRITE hold at once; other losses
     * are noticed at the next renewal.
     */
    synchronized Loss lost() {
        if (isWatched || isOver) return lost;
        isWatched = true;
        long block = Math.min(options.leaseMillis(), TimeUnit.DAYS.toMillis(1));
        watches = seat.members().stream().map(each -> each.name).filter(name -> name.mode() == Mode.WRITE)
                .map(name -> new Watch(locks.links, name.key(), token, block, (now, owner) -> gone(), this::unwatched)).toList();
        watches.forEach(Watch::ask);
        return lost;
    }

    // Unless it is being released.
    private synchronized void gone() {
        if (!watches.isEmpty()) step(Input.of(Event.GONE));
    }

    // A server that is a replica for the moment will be asked again later.
    private synchronized void unwatched(ServerException refused) {
        if (!refused.code().equals("ERR") || refused.getMessage().contains("syntax")) unwatch();
    }

    private void unwatch() {
        watches.forEach(Watch::close);
        watches = List.of();
    }

    /** The owner re-entered, with a lease of its own. */
    synchronized void entered(Options again, Tell told) {
        lingers |= told.lingers();
        if (seat instanceof Group) return; // of one of several locks: they have one deadline together
        long deadline = told.sent() + again.leaseMillis();
        if (!isOver && again.renewed() && (!options.renewed() || again.leaseMillis() > options.leaseMillis())) {
            long before = machine.deadline();
            options = options.lease(Math.max(again.leaseMillis(), options.renewed() ? options.leaseMillis() : 1), true);
            machine = new Holding(kept(told.sent()));
            step(Input.of(Event.EXTEND, before - options.leaseMillis()));
            step(Input.of(Event.CALL));
            if (options.session() && session == null) step(Input.of(Event.ENDED));
        } else {
            extendTo(deadline);
        }
    }

    private synchronized void extendTo(long deadline) {
        step(Input.of(Event.EXTEND, deadline - options.leaseMillis()));
    }

    /** Whether it is lost, or may be. */
    boolean isLost() {
        if (isLost) return true;
        synchronized (this) {
            if (!isOver && Clock.now() >= machine.limit()) step(Input.of(Event.GONE));
        }
        return isLost;
    }

    /** Whether it is already known to be lost. */
    boolean isKnownLost() {
        return isLost;
    }

    /** Whether a user may rely on it. If a session's connection has broken, the server may have ended the hold. */
    boolean isSure() {
        return !isLost() && !isDoubted;
    }

    synchronized long leftMillis() {
        return isOver ? 0 : Math.max(0, machine.limit() - Clock.now());
    }

    Duration left() {
        return Duration.ofMillis(leftMillis());
    }

    /** The server has reported the end, or nobody renews the hold any more. */
    void lose() {
        tell(Event.GONE);
    }

    private synchronized void tell(Event event) {
        step(Input.of(event));
    }

    private void step(Input in) {
        for (Output output : machine.step(Clock.now(), in)) {
            switch (output.act()) {
                case SLEEP -> begin(output, null, null, Input.of(Event.TIME));
                case WAIT -> {
                    begin(output, null, null, Input.of(Event.TIME));
                    hears();
                }
                case LISTEN -> begin(output, Links.Use.RENEWAL, () -> listen(output), Input.of(Event.REPLIED, Outcome.UNSENT));
                case SEND -> renews(output);
                case SEAT -> begin(output, null, this::takeSeat, Input.of(Event.SEAT));
                case OPEN -> begin(output, Links.Use.RENEWAL, () -> open(output), Input.of(Event.REPLIED, Outcome.UNSENT));
                case OWN -> begin(output, Links.Use.RENEWAL, () -> ties(output), Input.of(Event.OWN, Outcome.SILENT));
                case DOUBT -> isDoubted = true;
                case TIED -> {
                    tied(tying);
                    isDoubted = false;
                    tying = null;
                }
                case DROP -> {
                    close(tying);
                    tying = null;
                }
                case LEAVE -> {
                    if (machine.isUnsure()) undoTie();
                    else seat.free();
                }
                case TELL -> isLost = true;
                default -> over();
            }
        }
    }

    // Runs in one of the few threads for the server, however many holds there are; the time limit may pass before that.
    private void begin(Output output, Links.Use use, Supplier<Input> work, Input late) {
        long number = ++operation;
        op = output;
        if (timer != null) timer.cancel(false);
        timer = work == null || use != null ? locks.after(output.by() - Clock.now(), () -> arrived(number, late)) : null;
        if (work == null) return;
        Runnable does = () -> {
            synchronized (this) {
                if (number != operation) return;
            }
            arrived(number, result(output, work));
        };
        try {
            if (use == null) locks.tell(does);
            else locks.links.inTurn(use, seat.name.key(), does);
        } catch (RejectedExecutionException closing) {
            // In that case, only the deadline counts.
        }
    }

    private Input result(Output of, Supplier<Input> work) {
        try {
            return work.get();
        } catch (ServerException | LinkException failed) {
            if (of.act() != Act.OPEN && of.act() != Act.OWN) locks.notices.failedRenewals.increment();
            locks.links.refresh();
            return Input.of(of.act() == Act.OWN ? Event.OWN : of.act() == Act.WAIT ? Event.MESSAGE : Event.REPLIED,
                    Job.outcome(locks.links.tagged(failed)));
        }
    }

    private synchronized void arrived(long number, Input in) {
        if (number == operation) {
            operation++;
            step(in);
        } else if (in.event() == Event.OPENED) {
            close(tying);
            tying = null;
        } else if (in.event() == Event.SEAT && in.number() > 0) {
            seat.free();
        }
    }

    private void renews(Output output) {
        Thread thread = holder;
        if (thread != null && !thread.isAlive() && values.get() == 0) {
            LOG.log(System.Logger.Level.WARNING, seat + ": " + thread.getName() + " ended without unlocking it");
            step(Input.of(Event.GONE));
            return;
        }
        begin(output, Links.Use.RENEWAL, () -> Input.of(Event.REPLIED, Job.outcome(renew(waiter, options.leaseMillis(), output.by()))),
                Input.of(Event.REPLIED, Outcome.SILENT));
    }

    private Object renew(Inbox.Waiter late, long millis, long by) {
        String[] words = seat.renew(options, token, millis, late == null ? new String[0] : late.tell());
        return locks.links.call(Links.Use.RENEWAL, late, seat.name.key(), locks.links.limit(by), words);
    }

    private Input listen(Output output) {
        locks.links.listen(waiter, seat.name.key(), Links.endOf(output.by()));
        return Input.of(Event.LISTENING);
    }

    // Handles the reply that waited for acknowledgments.
    private synchronized void hears() {
        if (op.act() != Act.WAIT || isOver || !waiter.isOver()) return;
        operation++;
        step(result(op, () -> Job.heard(waiter)));
    }

    // While a request is changing the depth, the depth is unknown.
    private Input takeSeat() {
        if (!seat.tryTurn()) return Input.of(Event.SEAT);
        seat.enter();
        return Input.of(Event.SEAT, (long) seat.depth);
    }

    private Input open(Output output) {
        long end = Links.endOf(output.by());
        Link link = locks.links.open(locks.links.primary(seat.name.key(), end), end);
        synchronized (this) {
            tying = link;
        }
        return Input.of(Event.OPENED);
    }

    private Input ties(Output output) {
        Link link;
        synchronized (this) {
            link = tying;
        }
        if (link == null) return Input.of(Event.OWN, Outcome.BROKEN);
        String[] words = seat.acquire(options, output.depth(), true, -1, waiter == null ? new String[0] : waiter.tell());
        return Input.of(Event.OWN, Job.outcome(link.call(locks.links.limit(output.by()), words)));
    }

    /**
     * If the request to tie the hold were executed late, it would tie this owner's next hold to a closed connection.
     */
    private void undoTie() {
        var undoing = new Release(0, options.leaseMillis(), 1, token, Long.MIN_VALUE, true);
        Job job = new Job(locks.links, seat, options, 1, undoing, false, Machine.FOREVER);
        job.ends(Event.CANCEL);
        job.leave();
    }

    /** The hold is tied to this connection: when the connection ends, the hold has ended or is tied to a new one. */
    synchronized void tied(Link link) {
        session = link;
        link.whenClosed(() -> locks.tell(() -> untied(link)));
    }

    // The server closes the connection of a hold that ended. A failover closes it as well, although the hold remains.
    private synchronized void untied(Link link) {
        if (session != link) return;
        session = null;
        step(Input.of(Event.ENDED));
    }

    private void over() {
        isOver = true;
        operation++;
        mayStand = isLost && options.session() && Clock.now() >= machine.limit();
        if (timer != null) timer.cancel(false);
        if (waiter != null) waiter.close();
        unwatch();
        locks.forget(this);
        if (isLost) seat.members().forEach(Seat::lost);
        locks.notices.ended(seat.name, isLost, start, startNanos);
        // After the counters. What the application does in response must not delay the others.
        if (isLost) locks.tell(lost::happens);
        Link[] links = {session, tying};
        session = tying = null;
        for (Link link : links) if (link != null) locks.tell(link::close);
    }

    private static void close(Link link) {
        if (link != null) link.close();
    }

    /** Moves the deadline to this long from now; fails if the hold is lost, or no server answers. */
    void renew(long millis) {
        long end = Clock.now() + Machine.PATIENCE;
        for (long pause = Machine.FIRST_PAUSE; ; pause = Math.min(2 * pause, Machine.LONGEST_PAUSE)) {
            refuseOver();
            long sent = Clock.now();
            RuntimeException failure;
            try {
                renewNow(millis, sent);
                // The loss was reported, which cannot be revoked.
                refuseOver();
                extendTo(sent + millis);
                return;
            } catch (ServerException error) {
                if (error.code().equals("NOTHELD")) {
                    lose();
                    refuseReleased();
                    throw new LockLostException(error.getMessage());
                }
                if (!Machine.passes(error.code())) throw LockException.of(error);
                failure = error;
            } catch (LinkException broken) {
                failure = broken;
            }
            locks.links.refresh();
            if (Clock.now() >= end)
                throw LockException.Unavailable.because(seat + " was not renewed: " + failure.getMessage(), failure);
            long rest = Math.min(pause, Math.min(end, limit()) - Clock.now());
            Driver.await(new CompletableFuture<>(), TimeUnit.MILLISECONDS.toNanos(rest));
        }
    }

    private void renewNow(long millis, long sent) {
        long by = Math.min(sent + Machine.REPLY, limit());
        if (options.acks() <= 0) {
            renew(null, millis, by);
            return;
        }
        var over = new CompletableFuture<Void>();
        try (var late = locks.links.inbox.waiter(() -> over.complete(null))) {
            locks.links.listen(late, seat.name.key(), Links.endOf(by));
            if (!Inbox.isWaiting(renew(late, millis, by))) return;
            Driver.await(over, TimeUnit.MILLISECONDS.toNanos(Math.min(sent + Machine.ACKS, limit()) - Clock.now()));
            if (late.message() == null) throw new LinkException("no acknowledgment in time", new TimeoutException());
            Inbox.reply(late.message());
        }
    }

    private void refuseOver() {
        if (isLost()) throw new LockLostException(seat + " was lost before it was renewed");
        refuseReleased();
    }

    private synchronized void refuseReleased() {
        if (isOver && !isLost) throw new IllegalMonitorStateException(seat + " was released");
    }

    private synchronized long limit() {
        return machine.limit();
    }

    /** Whether it is a hold of several locks together, of which this is one. */
    boolean isTogetherAt(Seat at) {
        return seat instanceof Group && at != seat && at.depth == 1;
    }

    /** The seat whose release ends it. */
    Seat seat() {
        return seat;
    }

    /** Releases one level at this seat, which is one of a group's if several locks are held together. */
    void release(Seat at) {
        long end = Clock.now() + Math.max(Machine.PATIENCE, Math.min(leftMillis(), RELEASES_MILLIS));
        if (takeTurns(at, end)) {
            releaseInTurn(at, end);
            return;
        }
        // As soon as the earlier request has ended.
        locks.tell(() -> {
            at.members().forEach(each -> each.turn.acquireUninterruptibly());
            try {
                releaseInTurn(at, Clock.now() + RELEASES_MILLIS);
            } catch (RuntimeException late) {
                // The caller of the release already knows that its outcome is uncertain.
            }
        });
        if (isLost()) throw new LockLostException(at + " was lost before it was released");
        throw new LockException.Unavailable(
                at + " is not known to be released, and may be held until its lease ends: an earlier request of this owner is not over", null);
    }

    // Takes all of the turns until then, or none; ignores interrupts.
    private static boolean takeTurns(Seat at, long by) {
        int taken = 0;
        boolean interrupted = false;
        try {
            while (taken < at.members().size()) {
                try {
                    long left = Math.max(0, by - Clock.now());
                    if (!at.members().get(taken).turn.tryAcquire(left, TimeUnit.MILLISECONDS)) break;
                    taken++;
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
        if (taken == at.members().size()) return true;
        at.members().subList(0, taken).forEach(each -> each.passTurn());
        return false;
    }

    private void releaseInTurn(Seat at, long end) {
        at.enter();
        int depth = at.depth;
        String refused = at.tenure != this || depth == 0 ? " is not held by " + at.name.owner()
                : isTogetherAt(at) ? " is held together with others: release those" : null;
        if (refused != null) {
            at.free();
            if (isLost) throw new LockLostException(at + " was lost before it was released");
            throw new IllegalMonitorStateException(at + refused);
        }
        boolean wasLost = isLost();
        Job job = new Job(locks.links, at, options, depth, machineOf(at, depth, wasLost, end), false, Machine.FOREVER);
        if (at instanceof Group group && group.hasMore()) lose(); // the levels above end with it
        at.lower();
        Told told = job.call().told();
        RuntimeException trouble = job.trouble; // before that of what is left to undo
        if (told == Told.LOST) lose();
        if (depth == 1) tell(Event.RELEASED);
        job.rest();
        if (wasLost) throw new LockLostException(at + " was lost before it was released");
        if (told == Told.RELEASED) return;
        String why = told == Told.CLOSED ? "closed" : trouble == null ? "no reply in time" : trouble.getMessage();
        if (told == Told.LOST) throw new LockLostException(trouble == null ? at + " was lost" : why);
        if (told == Told.REFUSED) throw LockException.of((ServerException) trouble);
        throw LockException.Unavailable.because(at + " is not known to be released: " + why, trouble);
    }

    private synchronized Release machineOf(Seat at, int depth, boolean wasLost, long end) {
        if (depth == 1) {
            unwatch();
            step(Input.of(Event.RELEASING));
        }
        long patience = wasLost ? 0 : Math.min(machine.limit(), end) - Clock.now();
        // When one of several locks was lost, others may still be held: they are released before this owner's next
        // request.
        boolean isLeft = mayStand || at instanceof Group;
        long deadline = !wasLost ? machine.deadline() : isLeft ? Machine.FOREVER : Long.MIN_VALUE;
        return new Release(Math.max(0, patience), options.leaseMillis(), depth, token, deadline, lingers);
    }
}
