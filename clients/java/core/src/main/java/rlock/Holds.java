package rlock;

import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Several locks that are held: those that were granted together, and one more level of each that the owner had before. The
 * loss of one is the loss of all. {@link #close} releases them, from any thread.
 */
public final class Holds implements AutoCloseable {
    private final List<Hold> holds; // the one of those that were granted together is the first
    private Loss loss; // null until somebody asks; guarded by this
    private final AtomicBoolean released = new AtomicBoolean();

    Holds(List<Hold> holds) {
        this.holds = List.copyOf(holds);
    }

    void belongsTo(Thread thread) {
        holds.forEach(hold -> hold.belongsTo(thread));
    }

    Holds belongsToNobody() {
        holds.forEach(Hold::belongsToNobody);
        return this;
    }

    /** The owner's name, as {@code RLOCK.INFO} shows it. */
    public String owner() {
        return holds.get(0).owner();
    }

    /** The fencing token. That of a lock which the owner held before is older: {@link #tokens}. */
    public long token() {
        return holds.stream().map(Hold::token).max(Comparator.naturalOrder()).orElseThrow();
    }

    /** The token of each key. */
    public Map<String, Long> tokens() {
        Map<String, Long> tokens = new TreeMap<>();
        holds.forEach(hold -> hold.keys().forEach(key -> tokens.put(key, hold.token())));
        return tokens;
    }

    /** Whether all are certain now: neither released nor lost, and before their deadlines. Sends nothing. */
    public boolean isHeld() {
        return !released.get() && holds.stream().allMatch(Hold::isHeld);
    }

    /** Fails unless {@link #isHeld}: see {@link Hold#ensureHeld}. */
    public void ensureHeld() {
        if (released.get()) throw new IllegalMonitorStateException(this + " were released");
        holds.forEach(Hold::ensureHeld);
    }

    /** The time until the first deadline; zero if they are not all held. */
    public Duration remaining() {
        return isHeld() ? holds.stream().map(Hold::remaining).min(Comparator.naturalOrder()).orElseThrow() : Duration.ZERO;
    }

    /** Completes when one of them is lost or may be: see {@link Hold#lost}. */
    public synchronized CompletableFuture<Void> lost() {
        if (loss == null) {
            loss = new Loss();
            for (Hold each : holds) each.lost().thenRun(loss::happens);
        }
        return loss;
    }

    /** Runs this once when one of them is lost, in a thread of the package. */
    public Holds onLost(Runnable action) {
        lost().thenRun(action);
        return this;
    }

    /**
     * Moves the deadlines to no earlier than {@code lease} from now.
     *
     * @throws LockLostException if one of them was lost
     * @throws IllegalMonitorStateException if they were released
     */
    public void renew(Duration lease) {
        holds.forEach(hold -> hold.renew(lease));
    }

    /**
     * Releases them all, also if one of them was lost.
     *
     * @throws IllegalMonitorStateException if they were released before
     * @throws LockLostException if one of them was lost before: others may have worked at the same time
     * @throws LockException.Unavailable if no server answered; the holds end with their leases at the latest
     */
    public void release() {
        if (!released.compareAndSet(false, true)) throw new IllegalMonitorStateException(this + " were released before");
        release(holds, null);
    }

    /** Releases all of them, the last first, whatever fails; {@code failed} is what it adds that to, or null. */
    static void release(List<Hold> holds, Exception failed) {
        Exception first = failed;
        for (int i = holds.size() - 1; i >= 0; i--) {
            try {
                holds.get(i).release();
            } catch (RuntimeException broken) {
                if (first == null) first = broken;
                else first.addSuppressed(broken);
            }
        }
        if (failed == null && first != null) throw (RuntimeException) first;
    }

    /** {@link #release}, for try-with-resources; after a release it does nothing. */
    @Override
    public void close() {
        if (!released.get()) release();
    }

    @Override
    public String toString() {
        return "locks of " + String.join(", ", tokens().keySet()) + " by " + owner() + ", token " + token();
    }
}
