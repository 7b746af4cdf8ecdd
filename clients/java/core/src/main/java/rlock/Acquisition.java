package rlock;

import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;
import rlock.LockListener.Result;
import rlock.Machine.Event;
import rlock.Machine.Tell;
import rlock.Machine.Told;

/** One acquisition by a thread: the identity of the server, the owner's seat, and an {@link Attempt}. */
final class Acquisition {
    private final Locks locks;
    private final String key;
    private final Options options;
    private final boolean interruptible;
    private final long waits;
    final long start = Clock.now();
    final long end;
    final long metBy; // the server has to say who it is
    long warnsAt;
    private boolean interrupted;
    private boolean hasAll; // of several locks, before it asks for them

    /** {@code waits} for this many ms: 0 does not wait, {@link Machine#FOREVER} has no limit. */
    Acquisition(Locks locks, String key, Options options, long waits, boolean interruptible) {
        this.locks = locks;
        this.key = key;
        this.options = options;
        this.waits = waits;
        this.interruptible = interruptible;
        this.end = after(waits > 0 ? waits : Machine.PATIENCE);
        this.metBy = Math.min(end, Machine.after(start, locks.links.outageMillis));
        this.warnsAt = waits > 0 ? start + Machine.PATIENCE : Machine.FOREVER;
    }

    /** The time at which {@code millis} have passed since the start, rounded up so that no wait is short. */
    long after(long millis) {
        return Machine.after(start + 1, millis);
    }

    /** Returns a level of the hold, or null if not acquired. */
    Hold run(Supplier<Seat> entered) throws InterruptedException {
        Notices.Wait wait = locks.notices.waits(key, options.mode());
        Result result = Result.FAILED;
        try {
            Hold hold = acquire(entered);
            result = hold == null && !hasAll ? Result.NOT_ACQUIRED : Result.GRANTED;
            return hold;
        } catch (InterruptedException interrupt) {
            result = Result.CANCELLED;
            throw interrupt;
        } finally {
            wait.ends(result);
        }
    }

    private Hold acquire(Supplier<Seat> entered) throws InterruptedException {
        if (interruptible && Thread.interrupted()) throw new InterruptedException();
        try {
            identify();
            while (true) {
                Seat seat = entered.get();
                if (!take(seat) || isHeld(seat)) return null;
                Job job = attempt(seat);
                Tell told = job.call();
                if (told.told() == Told.GRANTED) return granted(seat, job, told);
                Hold none = refused(seat, job, told);
                // An operator ended the request early: a wait without a limit continues.
                if (isOver(told)) return none;
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    /** Whether the acquisition ends without the lock; otherwise, another attempt follows. */
    boolean isOver(Tell told) {
        return told.told() != Told.NIL || waits != Machine.FOREVER || options.maxQueue() != Options.UNSET;
    }

    private void identify() throws InterruptedException {
        long pause = Machine.FIRST_PAUSE;
        while (!locks.isIdentified()) {
            RuntimeException failure = meet();
            if (failure == null) return;
            long left = metBy - Clock.now();
            if (left > 0) sleep(Math.min(pause, left));
            if (Clock.now() >= metBy) throw unavailable(failure);
            if (Clock.now() >= warnsAt) {
                warnsAt = Machine.FOREVER;
                locks.links.worries.of(key, failure);
            }
            pause = Math.min(2 * pause, Machine.LONGEST_PAUSE);
        }
    }

    /**
     * Asks the server for its identity, on which the owner's name depends. Returns null, or why the server did not
     * answer; throws an error that no retry ends.
     */
    RuntimeException meet() {
        locks.refuseDraining();
        RuntimeException failure;
        try {
            locks.service(key, locks.links.limit(Machine.after(metBy, Machine.LATE)));
            return null;
        } catch (ServerException error) {
            if (!Machine.passes(error.code())) throw LockException.of(error);
            failure = error;
        } catch (LinkException nobody) {
            failure = nobody;
        }
        locks.links.refresh();
        return failure;
    }

    private void sleep(long millis) throws InterruptedException {
        try {
            TimeUnit.MILLISECONDS.sleep(millis);
        } catch (InterruptedException interrupt) {
            remember(interrupt);
        }
    }

    private void remember(InterruptedException interrupt) throws InterruptedException {
        if (interruptible) throw interrupt;
        interrupted = true;
    }

    /** When the wait for a seat that another request has ends. */
    long seatedBy(boolean isUndone) {
        return after(Machine.come(isUndone, waits, Machine.PATIENCE, locks.links.outageMillis));
    }

    // Another request of this owner may still be undone.
    private boolean take(Seat seat) throws InterruptedException {
        int taken = 0;
        boolean isUndone = seat.isUndone();
        long until = seatedBy(isUndone);
        try {
            while (taken < seat.members().size() && take(seat.members().get(taken).turn, until)) taken++;
        } finally {
            if (taken < seat.members().size()) {
                seat.members().subList(0, taken).forEach(each -> each.passTurn());
                seat.leave();
            }
        }
        boolean isTaken = taken == seat.members().size();
        if (!isTaken && seat.isUndone()) throw seat.unavailable();
        return isTaken;
    }

    private boolean take(Semaphore turn, long until) throws InterruptedException {
        while (true) {
            try {
                long left = until == Machine.FOREVER ? TimeUnit.DAYS.toMillis(1) : Math.max(0, until - Clock.now());
                if (turn.tryAcquire(left, TimeUnit.MILLISECONDS)) return true;
                if (Clock.now() >= until) return false;
            } catch (InterruptedException interrupt) {
                remember(interrupt);
            }
        }
    }

    // The owner holds all of several locks: then nothing has to be requested together.
    private boolean isHeld(Seat seat) {
        if (!(seat instanceof Group group)) return false;
        group.taken();
        return hasAll = group.members().isEmpty();
    }

    private Job attempt(Seat seat) {
        Attempt machine = machine(seat);
        return new Job(locks.links, seat, options, seat.depth + 1, machine, interruptible, warnsAt);
    }

    /** Creates the machine of a request that has this seat; if that fails, the seat is free again. */
    Attempt machine(Seat seat) {
        try {
            locks.refuseClosed();
            Tenure held = seat.tenure;
            if (held != null && held.isLost())
                throw new LockLostException(seat + " was lost; release what is left of the hold before acquiring it again");
            if (held == null) locks.refuseDraining();
            long left = waits == 0 || waits == Machine.FOREVER ? waits : Math.max(1, end - Clock.now());
            var ask = new Attempt.Ask(left, Math.max(1, end - Clock.now()), locks.links.outageMillis, options.leaseMillis(),
                    seat.depth + 1, held == null ? 0 : held.token, locks.links.inbox.hears(seat.name.key()),
                    options.session(), options.acks() > 0);
            return new Attempt(ask);
        } catch (RuntimeException failed) {
            seat.free();
            throw failed;
        }
    }

    /** The hold of what was granted. */
    Hold granted(Seat seat, Job job, Tell told) {
        if (locks.isClosed() || seat.tenure == null && locks.links.isDraining()) {
            job.ends(Event.CLOSE);
            job.rest();
            throw Locks.closed();
        }
        Tenure tenure = seat.tenure;
        if (tenure == null) {
            tenure = new Tenure(locks, seat, options, told);
            if (options.session()) tenure.tied(job.link);
            job.link = null;
        } else {
            tenure.entered(options, told);
        }
        seat.raise(tenure);
        if (seat.depth == 1) tenure.begins();
        var hold = new Hold(seat, tenure);
        job.ends(Event.TAKEN);
        return hold;
    }

    /** Returns nothing, or throws the reason why there is nothing. */
    Hold refused(Seat seat, Job job, Tell told) throws InterruptedException {
        RuntimeException trouble = job.trouble;
        Tenure held = seat.tenure;
        // The hold is lost as well if the server has no hold of the owner at the depth below the new level.
        boolean isLost = told.told() == Told.LOST || told.told() == Told.REFUSED && held != null
                && trouble.getMessage().startsWith("ERR DEPTH");
        if (isLost && held != null) held.lose();
        job.rest();
        if (isLost) throw new LockLostException(seat + " was lost before it was entered again");
        return switch (told.told()) {
            case NIL -> null;
            case CANCELLED -> throw new InterruptedException();
            case CLOSED -> throw Locks.closed();
            case REFUSED -> {
                // A request that does not wait does not wait for its own owner either.
                if (waits == 0 && told.code().equals("DEADLOCK")) yield null;
                throw LockException.of((ServerException) trouble);
            }
            default -> throw unavailable(trouble);
        };
    }

    LockException unavailable(RuntimeException failure) {
        String why = failure == null ? "no reply in time" : failure.getMessage();
        return LockException.Unavailable.because(key + " was not acquired: " + why, failure);
    }
}
