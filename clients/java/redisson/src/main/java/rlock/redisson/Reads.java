package rlock.redisson;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;
import rlock.Mode;

/** The readers of one client: which of them have joined, and which wait for each other. */
final class Reads {
    private static final System.Logger LOG = System.getLogger("rlock");
    private static final long LONG_NANOS = TimeUnit.SECONDS.toNanos(2);
    private static final Executor LATER = CompletableFuture.delayedExecutor(1, TimeUnit.SECONDS, Answers.THREADS);

    private record Reader(String key, long thread) {}

    private record Waits(String key, long thread, long since) {}

    private final Client client;
    private final Map<Reader, Deque<Hold>> joined = new ConcurrentHashMap<>();
    private final Set<String> warned = ConcurrentHashMap.newKeySet(); // keys
    private final Set<Waits> waiting = ConcurrentHashMap.newKeySet();
    private final AtomicBoolean isLooking = new AtomicBoolean();

    Reads(Client client) {
        this.client = client;
    }

    /** After an operator ended the hold, those who had joined it hold nothing either. */
    void drop(KeyLock lock) {
        KeyLock all = lock.owner(client.id() + ":readers");
        Keys.dropLost(all::getHoldCount, () -> false, all::unlock);
    }

    /**
     * The lock that all threads of the client share. If they lost it together, it is dropped, so that it can be
     * acquired again.
     */
    KeyLock together(KeyLock lock) {
        KeyLock all = lock.owner(client.id() + ":readers");
        Keys.dropLost(all::getHoldCount, all::isHeldByCurrentThread, all::unlock);
        return all;
    }

    void add(String key, long thread, Hold hold) {
        joined.compute(new Reader(key, thread), (reader, old) -> {
            Deque<Hold> levels = old == null ? new ArrayDeque<>() : old;
            levels.removeIf(level -> !level.isHeld()); // which was lost: this one began anew
            levels.push(hold);
            return levels;
        });
    }

    /** Takes the thread's innermost level, which no longer belongs to the thread; null if it has none. */
    Hold take(String key, long thread) {
        var last = new Hold[1];
        joined.computeIfPresent(new Reader(key, thread), (reader, levels) -> {
            last[0] = levels.poll();
            return levels.isEmpty() ? null : levels;
        });
        return last[0];
    }

    /** Releases a hold whose caller is no longer interested. */
    void giveBack(String key, long thread, Hold hold) {
        joined.computeIfPresent(new Reader(key, thread), (reader, levels) -> {
            levels.remove(hold);
            return levels.isEmpty() ? null : levels;
        });
        hold.release();
    }

    int depth(String key, long thread) {
        var count = new int[1];
        joined.computeIfPresent(new Reader(key, thread), (reader, levels) -> {
            count[0] = (int) levels.stream().filter(Hold::isHeld).count();
            return levels;
        });
        return count[0];
    }

    /** Logs which other threads of the client read if this one waits long to read as well, until the result is run. */
    Runnable watch(String key, long thread) {
        var waits = new Waits(key, thread, System.nanoTime());
        waiting.add(waits);
        if (isLooking.compareAndSet(false, true)) LATER.execute(this::lookAtAll);
        return () -> waiting.remove(waits);
    }

    // One check serves all waiters, however many there are.
    private void lookAtAll() {
        for (Waits each : waiting) if (System.nanoTime() - each.since >= LONG_NANOS) look(each.key, each.thread);
        isLooking.set(false);
        if (!waiting.isEmpty() && isLooking.compareAndSet(false, true)) LATER.execute(this::lookAtAll);
    }

    private void look(String key, long thread) {
        if (warned.contains(key)) return;
        List<String> others;
        try {
            others = Keys.holders(client.locks, key, Mode.READ).stream().map(holder -> Keys.text(Keys.field(holder, "owner")))
                    .filter(owner -> owner.startsWith(client.id() + ":")).map(owner -> owner.substring(client.id().length() + 1)).toList();
        } catch (LockException | IllegalStateException unknown) {
            return;
        }
        if (others.isEmpty() || !warned.add(key)) return;
        LOG.log(System.Logger.Level.WARNING, key + ": thread " + thread + " waits for the read lock behind a writer, while thread "
                + String.join(", ", others) + " of this client has the read lock. If that waits for thread " + thread
                + ", none of them goes on. With RlockRedisson.create(config, Readers.JOIN), readers of one client join each other");
    }
}
