package rlock;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;

/**
 * One of many: the write lock of the first key that is free; immutable and thread-safe, made by {@link Locks#any}. Callers
 * wait in line for a permit of the pool, which has as many permits as there are keys. Each acquisition is its own owner.
 */
public final class AnyLock {
    private final KeyLock permit;
    private final List<KeyLock> each;

    AnyLock(KeyLock permit, List<KeyLock> each) {
        this.permit = permit;
        this.each = each;
    }

    private AnyLock with(UnaryOperator<KeyLock> option) {
        return new AnyLock(option.apply(permit), each.stream().map(option).toList());
    }

    /** As {@link KeyLock#lease}. */
    public AnyLock lease(Duration lease) {
        return with(lock -> lock.lease(lease));
    }

    /** As {@link KeyLock#session}. */
    public AnyLock session() {
        return with(KeyLock::session);
    }

    /** As {@link KeyLock#acks}. */
    public AnyLock acks(int replicas) {
        return with(lock -> lock.acks(replicas));
    }

    /** Does not wait if this many requests already wait in line: see {@link KeyLock#maxQueue}. */
    public AnyLock maxQueue(int waiters) {
        return new AnyLock(permit.maxQueue(waiters), each);
    }

    /** Waits forever and ignores interrupts. {@link Hold#key} says which key it is. */
    public Hold acquire() {
        Hold granted = permit.acquire();
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return first(granted, Machine.FOREVER).orElseThrow();
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
        } catch (RuntimeException failed) {
            granted.releaseQuietly();
            throw failed;
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    /** Waits at most this long, or until interrupted; zero does not wait. Empty if no key was free. */
    public Optional<Hold> acquire(Duration wait) throws InterruptedException {
        long until = Machine.after(Clock.now() + 1, Acquirable.millis(wait));
        Optional<Hold> granted = permit.acquire(wait);
        if (granted.isEmpty()) return granted;
        Optional<Hold> first = Optional.empty();
        try {
            return first = first(granted.get(), until);
        } finally {
            if (first.isEmpty()) granted.get().releaseQuietly();
        }
    }

    /** Does not wait. */
    public Optional<Hold> tryAcquire() {
        Optional<Hold> granted = permit.tryAcquire();
        Optional<Hold> first = Optional.empty();
        try {
            return first = granted.flatMap(this::now);
        } finally {
            if (first.isEmpty()) granted.ifPresent(Hold::releaseQuietly);
        }
    }

    private Optional<Hold> now(Hold granted) {
        for (KeyLock lock : each) {
            Optional<Hold> hold = lock.tryAcquire();
            if (hold.isPresent()) return hold.map(one -> one.withPermit(granted));
        }
        return Optional.empty();
    }

    // If all are taken, somebody holds a lock without a permit: no event reports when that hold ends.
    private Optional<Hold> first(Hold granted, long until) throws InterruptedException {
        for (long pause = Machine.FIRST_PAUSE; ; pause = Math.min(2 * pause, Machine.LONGEST_PAUSE)) {
            Optional<Hold> hold = now(granted);
            long left = until - Clock.now();
            if (hold.isPresent() || left <= 0) return hold;
            TimeUnit.MILLISECONDS.sleep(Math.min(pause, left));
        }
    }

    @Override
    public String toString() {
        return "one of " + String.join(", ", each.stream().map(KeyLock::key).toList());
    }
}
