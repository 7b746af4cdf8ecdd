package rlock;

import java.time.Duration;
import java.util.Optional;

/** One run in each interval, on all machines together; immutable and thread-safe, made by {@link Locks#once}. */
public final class Once {
    /** What happens to the interval if a run fails, or its process dies. */
    public enum IfItFails {
        /** Nobody else runs in this interval. */
        KEEP,
        /** Another run may begin: at once, or when the lease of a process that died has ended. */
        AGAIN
    }

    /**
     * The work of a run.
     *
     * @param <E> what it may throw
     */
    @FunctionalInterface
    public interface Body<E extends Exception> {
        /** Runs with the hold. With {@link IfItFails#KEEP}, the hold is lost if this takes longer than the interval. */
        void run(Hold hold) throws E;
    }

    private final KeyLock lock;
    private final long everyMillis;
    private final boolean isAgain;

    Once(KeyLock lock, long everyMillis, boolean isAgain) {
        if (everyMillis < 1) throw new IllegalArgumentException("an interval is at least 1 ms, not " + everyMillis);
        this.lock = lock;
        this.everyMillis = everyMillis;
        this.isAgain = isAgain;
    }

    /** Sets what happens to the interval if a run fails, or its process dies; {@link IfItFails#KEEP} by default. */
    public Once ifItFails(IfItFails choice) {
        return new Once(lock, everyMillis, choice == IfItFails.AGAIN);
    }

    /** Sets how long the lock outlives a process that dies, for {@link IfItFails#AGAIN}. */
    public Once lease(Duration lease) {
        return new Once(lock.lease(lease), everyMillis, isAgain);
    }

    /** Makes the grant count only when this many replicas have acknowledged it. */
    public Once acks(int replicas) {
        return new Once(lock.acks(replicas), everyMillis, isAgain);
    }

    /** Runs the work unless a run began in this interval, on any machine, and returns whether it did. Does not wait. */
    public <E extends Exception> boolean run(Body<E> body) throws E {
        return run(asked().tryAcquire(), body);
    }

    /** The same, but waits at most this long, or until interrupted, for the next interval. */
    public <E extends Exception> boolean run(Duration wait, Body<E> body) throws E, InterruptedException {
        return run(asked().acquire(wait), body);
    }

    // With KEEP, the grant lasts for the interval, whatever happens to this process.
    private KeyLock asked() {
        return isAgain ? lock : lock.fixedLease(Duration.ofMillis(everyMillis));
    }

    private <E extends Exception> boolean run(Optional<Hold> granted, Body<E> body) throws E {
        if (granted.isEmpty()) return false;
        Hold hold = granted.get();
        long until = Clock.now() + 1 + everyMillis; // the server has counted from the grant, which was earlier: no interval is short
        try {
            body.run(hold);
        } catch (Throwable failed) {
            try {
                end(hold, until, true);
            } catch (RuntimeException problem) {
                failed.addSuppressed(problem);
            }
            throw failed;
        }
        end(hold, until, false);
        return true;
    }

    private void end(Hold hold, long until, boolean hasFailed) {
        boolean isKept = false;
        if (until > Clock.now() && hold.isHeld() && !(isAgain && hasFailed)) {
            try {
                isKept = keepOut(hold, until);
            } catch (RuntimeException failed) {
                if (!isAgain) return; // it ends with the interval anyway
                try {
                    hold.release();
                } catch (RuntimeException problem) {
                    failed.addSuppressed(problem);
                }
                throw failed;
            }
        }
        try {
            hold.release();
        } catch (LockLostException lost) {
            if (!isKept) throw lost; // else its lease ended behind the READ
        }
    }

    // READ in addition to one's own WRITE is granted at once. It outlives the WRITE, and keeps every other WRITE out.
    private boolean keepOut(Hold hold, long until) {
        if (isAgain && lock.options.acks() > 0) hold.renew(Duration.ofMillis(Math.max(1, until - Clock.now())));
        String rest = String.valueOf(Math.max(1, until - Clock.now()));
        return lock.locks.call(hold.key(), "RLOCK.ACQUIRE", hold.key(), hold.owner(), "READ", "LEASE", rest, "DEPTH", "1") != null;
    }

    @Override
    public String toString() {
        return lock + ", once in " + Duration.ofMillis(everyMillis);
    }
}
