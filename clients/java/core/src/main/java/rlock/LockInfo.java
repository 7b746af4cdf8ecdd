package rlock;

import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * What the server reports about a lock: {@code RLOCK.INFO}.
 *
 * @param holders the first 10 000 holds
 * @param holderCount how many holds there are; an owner that holds both modes counts twice
 * @param queue the first 10 000 waiters, the next in line first
 * @param queueLength how many wait
 */
public record LockInfo(String key, List<Holder> holders, long holderCount, List<Waiter> queue, long queueLength) {

    /**
     * A hold.
     *
     * @param lease until its deadline
     * @param held since it began
     * @param isSession it is tied to a connection
     */
    public record Holder(String owner, Mode mode, int depth, long token, Duration lease, Duration held, boolean isSession) {}

    /**
     * An entry of the queue.
     *
     * @param remaining the time until the wait ends by itself; empty if it never does
     * @param limit how many permits there are; 0 if it does not ask for a permit
     * @param hasTurn whether the lock is reserved for it
     */
    public record Waiter(String owner, Mode mode, Duration waited, Optional<Duration> remaining, int limit, boolean hasTurn) {}

    /** Whether anybody holds it, in any mode. */
    public boolean isLocked() {
        return holderCount > 0;
    }

    static LockInfo of(String key, Object info) {
        return new LockInfo(key,
                Replies.list(info, "holders").stream().map(LockInfo::holder).toList(), Replies.number(info, "holder-count"),
                Replies.list(info, "waiters").stream().map(LockInfo::waiter).toList(), Replies.number(info, "queue-length"));
    }

    private static Holder holder(Object reply) {
        return new Holder(Replies.text(reply, "owner"), mode(reply), (int) Replies.number(reply, "depth"),
                Replies.number(reply, "token"), Duration.ofMillis(Replies.number(reply, "ttl-ms")),
                Duration.ofMillis(Replies.number(reply, "held-ms")), Replies.number(reply, "session") != 0);
    }

    private static Waiter waiter(Object reply) {
        long left = Replies.number(reply, "left-ms");
        return new Waiter(Replies.text(reply, "owner"), mode(reply), Duration.ofMillis(Replies.number(reply, "waited-ms")),
                left < 0 ? Optional.empty() : Optional.of(Duration.ofMillis(left)), (int) Replies.number(reply, "limit"),
                Replies.number(reply, "turn") == 1);
    }

    private static Mode mode(Object reply) {
        return Replies.text(reply, "mode").equalsIgnoreCase("read") ? Mode.READ : Mode.WRITE;
    }
}
