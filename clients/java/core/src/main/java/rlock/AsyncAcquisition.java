package rlock;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.BooleanSupplier;
import rlock.LockListener.Result;
import rlock.Machine.Event;
import rlock.Machine.Tell;
import rlock.Machine.Told;

/** An {@link Acquisition} without a thread: the identity of the server, the owner's seat, and an {@link AsyncJob}. */
final class AsyncAcquisition {
    private final Locks locks;
    private final String key;
    private final Options options;
    private final String owner; // null: a new one
    private final long waits;
    private final Acquisition common;
    private final Notices.Wait wait;
    private final CompletableFuture<Optional<Hold>> result = new CompletableFuture<>();
    private Runnable cancel = () -> {}; // what is under way; from here on guarded by this
    private AsyncJob job;
    private boolean isOver; // the future has an answer, or is about to
    private volatile RuntimeException trouble;

    AsyncAcquisition(Locks locks, String key, Options options, long waits, String owner) {
        this.locks = locks;
        this.key = key;
        this.options = options;
        this.owner = owner;
        this.waits = waits;
        this.common = new Acquisition(locks, key, options, waits, false);
        this.wait = locks.notices.waits(key, options.mode());
    }

    CompletableFuture<Optional<Hold>> start() {
        result.whenComplete((hold, failed) -> completed());
        locks.begins(this);
        if (locks.isIdentified()) {
            sit();
        } else {
            if (common.metBy != Machine.FOREVER) locks.after(Machine.after(common.metBy, Machine.LATE) - Clock.now(), this::unidentified);
            identify(Machine.FIRST_PAUSE);
        }
        return result;
    }

    // Completed by this package, or before that by the caller that has the future.
    private void completed() {
        if (ends(Result.CANCELLED, () -> {})) current().run();
    }

    // A replacement checks in the same step whether the acquisition has ended.
    private synchronized Runnable current() {
        return cancel;
    }

    /** Sends no further request; requests in progress end by themselves. */
    void close() {
        boolean asks;
        synchronized (this) {
            asks = job != null;
        }
        if (asks) return;
        fail(Locks.closed());
        current().run();
    }

    private void inTurn(Runnable work) {
        try {
            locks.links.inTurn(Links.Use.COMMAND, key, work);
        } catch (RejectedExecutionException closed) {
            fail(Locks.closed());
        }
    }

    private synchronized boolean isOver() {
        return isOver;
    }

    // --- who the server is

    private void identify(long pause) {
        inTurn(() -> {
            if (isOver()) return;
            try {
                trouble = common.meet();
                if (trouble == null) {
                    sit();
                    return;
                }
            } catch (LockException | IllegalStateException failed) {
                fail(failed);
                return;
            }
            long left = common.metBy - Clock.now();
            if (left <= 0) fail(common.unavailable(trouble));
            else locks.after(Math.min(pause, left), () -> identify(Math.min(2 * pause, Machine.LONGEST_PAUSE)));
        });
    }

    private void unidentified() {
        if (!locks.isIdentified()) fail(common.unavailable(trouble));
    }

    // --- the owner's seat

    private void sit() {
        sit(owner == null ? Seat.alone(locks.name(key, locks.newOwner(), options.mode()))
                : Seat.enter(locks.name(key, owner, options.mode())));
    }

    private void sit(Seat seat) {
        var seatWait = new SeatWait(seat);
        boolean isTooLate;
        synchronized (this) {
            job = null;
            cancel = seatWait::giveUp;
            isTooLate = isOver;
        }
        if (isTooLate) seatWait.giveUp();
        else seatWait.begin();
    }

    /** Waits until a seat is free. */
    private final class SeatWait {
        private final Seat seat;
        private final BooleanSupplier again = this::called;
        private boolean isDone; // guarded by this

        SeatWait(Seat seat) {
            this.seat = seat;
        }

        void begin() {
            boolean isUndone = seat.isUndone();
            long until = common.seatedBy(isUndone);
            tryIt();
            synchronized (this) {
                if (!isDone && until != Machine.FOREVER) locks.after(until - Clock.now(), this::late);
            }
        }

        private void tryIt() {
            synchronized (this) {
                if (isDone || !seat.tryTurn(again)) return;
                isDone = true;
            }
            attempt(seat);
        }

        // Runs in another thread: the one that frees the seat is busy.
        private boolean called() {
            synchronized (this) {
                if (isDone) return false;
            }
            inTurn(() -> {
                boolean isLate;
                synchronized (this) {
                    isLate = isDone;
                }
                if (isLate) seat.callNext();
                else tryIt();
            });
            return true;
        }

        private void late() {
            if (!giveUp()) return;
            if (seat.isUndone()) fail(seat.unavailable());
            else ends(Result.NOT_ACQUIRED, () -> result.complete(Optional.empty()));
        }

        boolean giveUp() {
            synchronized (this) {
                if (isDone) return false;
                isDone = true;
                seat.forget(again);
            }
            seat.leave();
            return true;
        }
    }

    // --- the attempt

    private void attempt(Seat seat) {
        AsyncJob next;
        try {
            Attempt machine = common.machine(seat);
            var self = new AsyncJob[1];
            next = self[0] = new AsyncJob(locks.links, seat, options, seat.depth + 1, machine, common.warnsAt,
                    tell -> told(self[0], seat, tell));
        } catch (RuntimeException failed) {
            fail(failed);
            return;
        }
        boolean isTooLate;
        synchronized (this) {
            job = next;
            cancel = next::cancel;
            isTooLate = isOver;
        }
        next.start();
        if (isTooLate) next.cancel();
    }

    private void told(AsyncJob done, Seat seat, Tell told) {
        try {
            if (told.told() == Told.GRANTED && isOver()) {
                done.ends(Event.CANCEL);
                done.rest();
            } else if (told.told() == Told.GRANTED) {
                Hold hold = common.granted(seat, done, told).belongsTo(null);
                if (!ends(Result.GRANTED, () -> handOver(hold))) giveBack(hold);
            } else {
                common.refused(seat, done, told);
                if (common.isOver(told)) ends(Result.NOT_ACQUIRED, () -> result.complete(Optional.empty()));
                else sit();
            }
        } catch (InterruptedException cancelled) {
            // Completed by the caller that has the future.
        } catch (RuntimeException failed) {
            fail(failed);
        }
    }

    // Unless the future was completed meanwhile: then nobody gets the hold.
    private void handOver(Hold hold) {
        if (!result.complete(Optional.of(hold))) giveBack(hold);
    }

    private void giveBack(Hold hold) {
        try {
            locks.links.inTurn(Links.Use.ASIDE, key, () -> release(hold));
        } catch (RejectedExecutionException closed) {
            // In that case, it has ended as well.
        }
    }

    private static void release(Hold hold) {
        try {
            hold.release();
        } catch (LockException | IllegalMonitorStateException | IllegalStateException failed) {
            // Its lease ends it.
        }
    }

    private void fail(RuntimeException failure) {
        ends(Result.FAILED, () -> result.completeExceptionally(failure));
    }

    private boolean ends(Result how, Runnable answer) {
        synchronized (this) {
            if (isOver) return false;
            isOver = true;
        }
        locks.ends(this);
        wait.ends(how);
        locks.answer(answer);
        return true;
    }
}
