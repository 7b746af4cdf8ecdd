package rlock;

import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;

/**
 * The hold of several locks: those that were granted together, and one more level of each that the owner held before.
 * If one of them is lost, all count as lost. {@link #close} releases them, from any thread.
 */
public final class Holds extends Owned<Holds> {
    private final List<Hold> holds; // the one of those that were granted together is the first
    private Loss loss; // null until somebody asks; guarded by this

    Holds(List<Hold> holds) {
        this.holds = List.copyOf(holds);
    }

    @Override
    Holds belongsTo(Thread thread) {
        holds.forEach(hold -> hold.belongsTo(thread));
        return this;
    }

    @Override
    public String owner() {
        return holds.get(0).owner();
    }

    /** The fencing token. A lock that the owner held before has an older token: {@link #tokens}. */
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

    @Override
    public synchronized CompletableFuture<Void> lost() {
        if (loss == null) {
            loss = new Loss();
            for (Hold each : holds) each.lost().thenRun(loss::happens);
        }
        return loss;
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

    @Override
    void releases() {
        release(holds, null);
    }

    /**
     * Releases all of them, the last one first, even if some fail. Errors are added to {@code failed}, unless it is
     * null.
     */
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

    @Override
    public String toString() {
        return "locks of " + String.join(", ", tokens().keySet()) + " by " + owner() + ", token " + token() + " (" + remaining().toMillis() + " ms left)";
    }
}
