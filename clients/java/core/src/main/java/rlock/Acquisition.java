package rlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import rlock.Driver.Address;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;
import rlock.Grant.Deadline;

/** One acquisition, from the first request until it is granted, refused, or leaves nothing behind. */
final class Acquisition {
    /** Wait forever. */
    static final long FOREVER = Long.MAX_VALUE;

    /** Errors after which to ask again: the lock is served elsewhere, or soon. */
    private static final Set<String> PASSING = Set.of("UNBLOCKED", "READONLY", "LOADING", "MOVED", "ASK", "TRYAGAIN",
            "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN", "BUSY");

    /** How long a ticket lives; it is asked for again every third of that. */
    static final long TICKET_MILLIS = 5_000;

    private static final long LONGEST_BLOCK_MILLIS = TimeUnit.DAYS.toMillis(7);
    private static final long GRACE_NANOS = MILLISECONDS.toNanos(100);
    private static final int TRIES_WITHOUT_WAITING = 4;
    private static final long SILENT_NANOS = TimeUnit.SECONDS.toNanos(3);
    private static final System.Logger LOG = System.getLogger("rlock");

    private final Locks locks;
    private final Links links;
    private final Options options;
    private final String key;
    private Holding holding; // null until the server is known
    private String owner;
    private final boolean interruptible;
    private final boolean waits;
    private final long end; // nanoTime, or FOREVER
    private final long start = System.nanoTime();
    private int tries;
    private RuntimeException trouble; // of the last try
    private long pause = 10;
    private boolean warned;
    private int depth;
    private Address asked; // where -ASK pointed
    private long sentNanos;
    private long sentWall;
    private boolean unknown; // something was sent whose outcome nobody told
    private boolean queued; // there may be a ticket
    private int todo; // how many releases are still to be sent
    private final CompletableFuture<Void> tidied = new CompletableFuture<>();
    private boolean handedOver; // what is left to do happens in the background, with the turn
    private boolean interrupted;

    Acquisition(Locks locks, String key, Options options, long patienceNanos, boolean interruptible) {
        this.locks = locks;
        this.links = locks.links;
        this.options = options;
        this.key = key;
        this.interruptible = interruptible;
        this.waits = patienceNanos > 0;
        this.end = patienceNanos == FOREVER ? FOREVER : System.nanoTime() + Math.min(Math.max(0, patienceNanos), FOREVER / 4);
    }

    /** A level of the hold, or null if not acquired. */
    Hold run(Supplier<Holding> entered) throws InterruptedException {
        boolean mine = false;
        try {
            if (interruptible && Thread.interrupted()) throw new InterruptedException();
            identify();
            holding = entered.get();
            owner = holding.name.owner();
            mine = takeTurn();
            if (!mine && holding.tidying)
                throw holding.unconfirmed();
            if (!mine) return null;
            refuseWhatWasLost();
            depth = holding.depth + 1;
            while (true) {
                Object token = acquire();
                if (token == null) return null;
                Hold hold = granted((Long) token);
                if (hold != null) return hold;
            }
        } finally {
            if (mine && !handedOver && (unknown || queued)) inBackground(this::undo);
            if (mine && !handedOver) holding.turn.release();
            // Who locks something else at once shall not still wait here.
            else if (mine) tidied.completeOnTimeout(null, GRACE_NANOS, NANOSECONDS).join();
            if (holding != null) holding.leave();
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    // Which locks it would be, and under which name, only a server can say.
    private void identify() throws InterruptedException {
        while (!locks.isIdentified()) {
            try {
                locks.service(key, limitMillis());
            } catch (ServerException error) {
                if (!isPassing(error.code())) throw LockException.of(error);
                again(error);
            } catch (LinkException nobody) {
                again(nobody);
            }
        }
    }

    // Another operation of this owner may still be tidying up after an abandoned wait.
    private boolean takeTurn() throws InterruptedException {
        while (true) {
            try {
                long left = waits ? left() : MILLISECONDS.toNanos(links.timeoutMillis);
                return holding.turn.tryAcquire(left, NANOSECONDS);
            } catch (InterruptedException interrupt) {
                remember(interrupt);
            }
        }
    }

    private void refuseWhatWasLost() {
        Grant grant = holding.grant;
        if (grant != null && grant.isLost())
            throw new LockLostException(key + " was lost; release what is left of the hold before acquiring it again");
    }

    private Object acquire() throws InterruptedException {
        RuntimeException failure = null;
        for (boolean first = true; ; first = false) {
            try {
                Object token = first && options.acks() <= 0 || !waits ? ask() : null;
                if (token != null || !waits) return token;
                token = await();
                failure = null;
                if (token != null || left() <= 0 || options.maxQueue() != Options.UNSET) return token;
                // Ended early, by an operator: a timed wait is over, one for ever is not.
                if (end != FOREVER && left() > GRACE_NANOS) return null;
            } catch (ServerException error) {
                failure = error;
                // Who does not wait does not wait for itself either.
                if (!waits && error.code().equals("DEADLOCK")) return null;
                if (!isPassing(error)) throw definite(error);
            } catch (LinkException broken) {
                unknown |= !broken.isNeverSent();
                // What a server said is a better cause than that the last try had no time.
                if (!(failure instanceof ServerException) || left() > 0) failure = broken;
            }
            if (failure == null && left() <= 0) return null;
            again(failure);
        }
    }

    /** Pauses before the next try, after a failure or an early end; throws when there shall be none. */
    private void again(RuntimeException failure) throws InterruptedException {
        tries++;
        trouble = failure;
        if (failure != null && (waits ? left() <= 0 : isSilent(failure) || tries == TRIES_WITHOUT_WAITING))
            throw unavailable(failure);
        if (failure != null && !warned && System.nanoTime() - start > SILENT_NANOS) {
            LOG.log(System.Logger.Level.WARNING, key + ": still asking for it, though " + failure.getMessage());
            warned = true;
        }
        // At once, but servers that point at each other are not asked without end.
        if (failure instanceof ServerException error && isElsewhere(error) && tries < 5) return;
        if (failure != null) refresh(failure);
        if (waits || tries > 1) sleep(Math.min(MILLISECONDS.toNanos(pause), left()));
        pause = Math.min(2 * pause, 250);
        // One more try without time for it would only hide the cause.
        if (failure != null && waits && left() <= 0) throw unavailable(failure);
    }

    private LockException unavailable(RuntimeException failure) {
        return LockException.Unavailable.because(key + " was not acquired: " + failure.getMessage(), failure);
    }

    private static boolean isSilent(RuntimeException failure) {
        return failure instanceof LinkException broken && Links.isSilent(broken);
    }

    static boolean isPassing(String code) {
        return PASSING.contains(code);
    }

    private boolean isPassing(ServerException error) {
        if (!isPassing(error.code())) return false;
        if (isElsewhere(error)) {
            Address at = links.topology.primary(key);
            Address to = Links.target(error, at);
            if (error.code().equals("MOVED")) links.topology.moved(key, to);
            else asked = to;
        }
        return true;
    }

    private static boolean isElsewhere(ServerException error) {
        return error.code().equals("MOVED") || error.code().equals("ASK");
    }

    private RuntimeException definite(ServerException error) {
        boolean gone = error.code().equals("NOTHELD") || depth > 1 && error.getMessage().startsWith("ERR DEPTH");
        if (!gone) return LockException.of(error);
        if (holding.grant != null) holding.grant.lose();
        return new LockLostException(error.getMessage());
    }

    private void refresh(RuntimeException failure) {
        if (failure instanceof LinkException) links.dropIdle(key);
        locks.refresh();
    }

    private void sent() {
        sentNanos = System.nanoTime();
        sentWall = System.currentTimeMillis();
    }

    private long left() {
        return end == FOREVER ? FOREVER : end - System.nanoTime();
    }

    /** Asks without waiting. */
    private Object ask() throws InterruptedException {
        if (options.acks() > 0) return await();
        sent();
        return links.call(Links.Use.COMMAND, key, limitMillis(), options.acquire(key, owner, depth));
    }

    /** How long a reply to what does not wait may take. */
    private long limitMillis() {
        if (!waits || end == FOREVER) return links.timeoutMillis;
        // The last request is sent when the time is over, and is to be answered all the same.
        return Math.min(links.timeoutMillis, NANOSECONDS.toMillis(Math.max(0, left()) + GRACE_NANOS));
    }

    private Object await() throws InterruptedException {
        Address at = asked != null ? asked : links.topology.primary(key);
        if (!links.waits.tryAcquire()) return byTicket();
        try {
            return blocked(at);
        } finally {
            links.waits.release();
        }
    }

    private Object blocked(Address at) throws InterruptedException {
        Link link = links.take(at, System.nanoTime() + MILLISECONDS.toNanos(limitMillis()));
        CompletableFuture<Object> reply;
        try {
            if (asked != null) link.call(links.timeoutMillis, "ASKING");
            asked = null;
            sent();
            links.waits(link);
            reply = link.send(options.acquire(key, owner, depth, waits ? new String[] {"BLOCK", blockMillis()} : new String[0]));
        } catch (RuntimeException broken) {
            links.waited(link);
            link.close();
            throw broken;
        }
        reply.whenComplete((token, failed) -> links.waited(link));
        // Without BLOCK it is the acknowledgements that are waited for; the server limits that.
        long patience = waits ? end : System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
        var place = new Place();
        while (true) {
            long left = patience == FOREVER ? FOREVER : patience - System.nanoTime() + GRACE_NANOS;
            try {
                Object token = reply.get(Math.min(left, TimeUnit.SECONDS.toNanos(1)), NANOSECONDS);
                links.give(at, link);
                return token;
            } catch (ExecutionException failed) {
                if (failed.getCause() instanceof ServerException error) {
                    links.give(at, link);
                    throw error;
                }
                link.close();
                if (failed.getCause() instanceof LinkException broken) throw broken;
                throw new LinkException("the wait broke", failed.getCause());
            } catch (TimeoutException silent) {
                if (left <= TimeUnit.SECONDS.toNanos(1) && patience - System.nanoTime() + GRACE_NANOS <= 0) {
                    abandon(at, link, reply);
                    throw new LinkException("no reply until the patience was over", silent);
                }
                if (waits && !place.isThere(at)) {
                    link.close();
                    throw new LinkException(at + " is no longer the primary, or has forgotten that this waits", null);
                }
            } catch (InterruptedException interrupt) {
                if (interruptible) abandon(at, link, reply);
                remember(interrupt);
            }
        }
    }

    /** Whether the server still knows of the wait: asked every second on another connection, by another thread. */
    private final class Place {
        private final AtomicBoolean looking = new AtomicBoolean();
        private volatile int misses;

        boolean isThere(Address at) {
            if (looking.compareAndSet(false, true)) {
                try {
                    links.inTurn(Links.Use.ASIDE, key, this::look);
                } catch (RejectedExecutionException closing) {
                    return false;
                }
            }
            return misses < 2 && isPrimary(at);
        }

        private boolean isPrimary(Address at) {
            try {
                return at.equals(links.topology.primary(key));
            } catch (LinkException unknown) {
                return true;
            }
        }

        private void look() {
            try {
                links.lookAround();
                boolean isKnown = links.call(Links.Use.ASIDE, key, "RLOCK.PLACE", key, owner) != null
                        || Topology.text(field(found(), "acks")).equals("pending");
                misses = isKnown ? 0 : misses + 1;
            } catch (ServerException forbidden) {
                misses = 0;
            } catch (LinkException silent) {
                locks.refresh();
            } catch (IllegalStateException closing) {
                misses = 2;
            } finally {
                looking.set(false);
            }
        }
    }

    private String blockMillis() {
        if (end == FOREVER) return "0";
        return String.valueOf(Math.min(LONGEST_BLOCK_MILLIS, millisUp(left())));
    }

    private static long millisUp(long nanos) {
        return Math.max(1, (nanos + 999_999) / 1_000_000);
    }

    /** Waits by ticket: asks again every third of its time, and when its turn comes. */
    private Object byTicket() throws InterruptedException {
        String[] words = options.acquire(key, owner, depth, "QUEUE", String.valueOf(TICKET_MILLIS));
        asked = null; // who asks without waiting follows by itself
        Turns.Turn turn = listen();
        try {
            while (true) {
                Object token = queue(words);
                if (token != null) return token;
                if (left() <= 0 || hasNoPlace()) return giveUp();
                long third = Math.min(left(), MILLISECONDS.toNanos(TICKET_MILLIS / 3));
                if (turn == null) sleep(third);
                else called(turn, third);
                if (turn == null || turn.isDeaf() || !turn.at.equals(links.topology.primary(key))) {
                    if (turn != null) turn.close();
                    turn = null;
                    turn = listen();
                }
            }
        } finally {
            if (turn != null) turn.close();
        }
    }

    private void called(Turns.Turn turn, long nanos) throws InterruptedException {
        long until = System.nanoTime() + nanos;
        while (true) {
            try {
                if (turn.called.tryAcquire(until - System.nanoTime(), NANOSECONDS)) turn.called.drainPermits();
                return;
            } catch (InterruptedException interrupt) {
                remember(interrupt);
            }
        }
    }

    private Object queue(String[] words) {
        sent();
        boolean before = queued;
        queued = true;
        try {
            return links.call(Links.Use.COMMAND, key, limitMillis(), words);
        } catch (LinkException broken) {
            queued = before || !broken.isNeverSent();
            throw broken;
        }
    }

    // Who may not subscribe, or cannot just now, hears nothing and asks all the same.
    private Turns.Turn listen() {
        try {
            return locks.turns.listen(links.topology.primary(key), owner, key, limitMillis());
        } catch (LinkException | ServerException | RejectedExecutionException deaf) {
            return null;
        }
    }

    // With MAXQUEUE nil may say that there was no place to be had.
    private boolean hasNoPlace() {
        if (options.maxQueue() == Options.UNSET) return false;
        try {
            return links.call(Links.Use.COMMAND, key, "RLOCK.PLACE", key, owner) == null;
        } catch (ServerException unknownCommand) {
            return false;
        }
    }

    private Object giveUp() {
        // A turn that was taken and waits for its acknowledgements is a hold already.
        if (options.acks() > 0) unknown = true;
        return null; // the ticket is given up in the background
    }

    /** Ends a wait that nobody wants any more, and what it may have been granted meanwhile. */
    private void abandon(Address at, Link link, CompletableFuture<Object> reply) {
        var cancelled = new AtomicInteger();
        var over = new AtomicBoolean();
        inBackground(() -> {
            if (!over.get() && !reply.isDone() && cancelled.get() < 6 && !expired()) {
                cancel(reply, cancelled);
                return false;
            }
            if (over.compareAndSet(false, true)) {
                boolean told = reply.isDone() && (!reply.isCompletedExceptionally() || isAnswer(reply));
                if (told) links.give(at, link);
                else link.close();
                unknown |= !told || reply.isCompletedExceptionally() || reply.join() != null;
            }
            return undo();
        });
    }

    private static boolean isAnswer(CompletableFuture<Object> reply) {
        return reply.handle((token, failed) -> failed instanceof ServerException).join();
    }

    // Nobody can say which of the two arrives first, so CANCEL is sent until the wait has an answer.
    private void cancel(CompletableFuture<Object> reply, AtomicInteger cancelled) {
        try {
            links.call(Links.Use.ASIDE, key, "RLOCK.CANCEL", key, owner);
            cancelled.incrementAndGet();
            reply.get(5, MILLISECONDS);
        } catch (ServerException refused) {
            cancelled.incrementAndGet();
        } catch (LinkException | ExecutionException | TimeoutException later) {
            // Then once more, or not.
        } catch (InterruptedException closing) {
            Thread.currentThread().interrupt();
        }
    }

    private boolean expired() {
        return System.nanoTime() - sentNanos > MILLISECONDS.toNanos(options.leaseMillis()) + GRACE_NANOS;
    }

    /**
     * Down to the depth of before, whatever was granted. Tried until the server says so, or the lease is over anyway. By
     * its token, because a release can arrive long after nobody waits for its reply, and must not end a later hold.
     *
     * @return whether nothing is left to do
     */
    private boolean undo() {
        // Twice: what was sent on a connection that broke may be carried out after the first one.
        if (unknown) todo = 2;
        unknown = false;
        if (expired()) return true;
        try {
            if (queued) links.call(Links.Use.ASIDE, key, "RLOCK.CANCEL", key, owner);
            queued = false;
            Object token = todo == 0 ? null : depth > 1 ? (Object) holding.grant.token : field(found(), "token");
            if (token instanceof Long)
                links.call(Links.Use.ASIDE, key, "RLOCK.RELEASE", key, owner, options.mode().name(),
                        "TOKEN", token.toString(), "DEPTH", String.valueOf(depth - 1));
            return --todo <= 0;
        } catch (ServerException error) {
            if (error.code().equals("NOTHELD")) return --todo <= 0;
            if (!isPassing(error.code())) return true;
            holding.trouble = error;
        } catch (LinkException silent) {
            holding.trouble = silent;
        }
        locks.refresh();
        return false;
    }

    /** What the server says of this owner's hold, or nothing. */
    private List<?> found() {
        Object info = links.call(Links.Use.COMMAND, key, "RLOCK.INFO", key, "HOLDERS", "10000");
        for (Object holder : (List<?>) field(info, "holders"))
            if (Topology.text(field(holder, "owner")).equals(owner)
                    && Topology.text(field(holder, "mode")).equalsIgnoreCase(options.mode().name())) return (List<?>) holder;
        return List.of();
    }

    private static Object field(Object reply, String name) {
        List<?> words = (List<?>) reply;
        for (int i = 0; i < words.size(); i += 2) if (Topology.text(words.get(i)).equals(name)) return words.get(i + 1);
        return List.of();
    }

    /**
     * The rest happens in the background, step by step until one of them says that it was the last, and no other operation
     * of this owner begins before that.
     */
    private void inBackground(BooleanSupplier step) {
        if (handedOver) return;
        handedOver = true;
        holding.trouble = trouble;
        holding.enter();
        holding.tidying = true;
        inTurn(step, 20);
    }

    private void inTurn(BooleanSupplier step, long pauseMillis) {
        try {
            links.inTurn(Links.Use.ASIDE, key, () -> {
                boolean last = true;
                try {
                    last = step.getAsBoolean();
                } catch (IllegalStateException closed) {
                    // The leases end what is left.
                } finally {
                    Runnable next = () -> inTurn(step, Math.min(2 * pauseMillis, 1_000));
                    if (last || locks.after(MILLISECONDS.toNanos(pauseMillis), next) == null) tidied();
                }
            });
        } catch (RejectedExecutionException closing) {
            tidied();
        }
    }

    private void tidied() {
        holding.tidying = false;
        holding.turn.release();
        holding.leave();
        tidied.complete(null);
    }

    private void remember(InterruptedException interrupt) throws InterruptedException {
        if (interruptible) throw interrupt;
        interrupted = true;
    }

    private void sleep(long nanos) throws InterruptedException {
        long until = System.nanoTime() + nanos;
        while (true) {
            try {
                NANOSECONDS.sleep(until - System.nanoTime());
                return;
            } catch (InterruptedException interrupt) {
                remember(interrupt);
            }
        }
    }

    /** The hold as it is known from now on; null if it was over before that: then it is asked for again. */
    private Hold granted(long token) throws InterruptedException {
        Grant grant = holding.grant;
        if (grant != null && grant.token != token) {
            // The old hold was over, and this is a new one of which nobody counts the levels.
            grant.lose();
            unknown = true;
            depth = 1;
            throw new LockLostException(key + " was lost before it was entered again");
        }
        Deadline deadline = Deadline.after(sentNanos, sentWall, options.leaseMillis());
        if (grant != null) {
            grant.extend(options, deadline);
        } else {
            grant = new Grant(locks, holding, options, token, deadline);
            if (!confirm(grant)) return null;
            if (options.session()) tie(grant);
            grant.begin();
            locks.remember(grant);
        }
        holding.grant = grant;
        holding.depth = depth;
        unknown = false;
        queued = false;
        return new Hold(locks, holding, grant);
    }

    // A wait was sent long before it was granted: only a renewal tells when the lease ends.
    private boolean confirm(Grant grant) throws InterruptedException {
        if (System.nanoTime() - sentNanos < MILLISECONDS.toNanos(options.leaseMillis()) / 10) return true;
        long pause = 10;
        long until = System.nanoTime() + MILLISECONDS.toNanos(options.leaseMillis());
        while (System.nanoTime() < until) {
            try {
                grant.renew(options.leaseMillis());
                return true;
            } catch (LockLostException gone) {
                return false;
            } catch (LockException | LinkException later) {
                if (left() <= 0) break;
                refresh(later);
                sleep(MILLISECONDS.toNanos(pause));
                pause = Math.min(2 * pause, 250);
            }
        }
        grant.end();
        unknown = true;
        return false;
    }

    private void tie(Grant grant) {
        unknown = true;
        try {
            grant.tie(locks.tie(holding.name, options, depth, grant.token));
        } catch (LockLostException gone) {
            grant.end();
            throw gone;
        } catch (ServerException error) {
            grant.end();
            throw LockException.of(error);
        } catch (LinkException broken) {
            grant.end();
            throw new LockException.Unavailable(key + " was acquired, but not for a session: " + broken.getMessage(), broken);
        }
    }
}
