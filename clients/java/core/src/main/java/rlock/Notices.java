package rlock;

import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Consumer;
import rlock.LockListener.Held;
import rlock.LockListener.Result;
import rlock.LockListener.Waited;

/** Counts events, and reports them to the user's listener, in a thread where that delays nobody. */
final class Notices {
    private static final System.Logger LOG = System.getLogger("rlock");

    final LongAdder waiting = new LongAdder();
    final LongAdder lost = new LongAdder();
    final LongAdder failedRenewals = new LongAdder();
    private final LongAdder unheard = new LongAdder();
    private final LockListener listener; // null: nobody listens
    private final ThreadPoolExecutor thread;
    private volatile boolean warned;

    Notices(LockListener listener, ThreadFactory threads) {
        this.listener = listener;
        thread = new ThreadPoolExecutor(1, 1, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<>(LockListener.BACKLOG), threads,
                (event, full) -> unheard.increment());
        thread.allowCoreThreadTimeOut(true);
    }

    Counters counters(long held) {
        return new Counters(held, waiting.sum(), lost.sum(), failedRenewals.sum(), unheard.sum());
    }

    /** An acquisition, from its begin to its end. */
    final class Wait {
        private final String key;
        private final Mode mode;
        private final Instant start = Instant.now();
        private final long startNanos = System.nanoTime();
        private final Object context = context();

        private Wait(String key, Mode mode) {
            this.key = key;
            this.mode = mode;
            waiting.increment();
        }

        void ends(Result result) {
            waiting.decrement();
            if (listener == null) return;
            var event = new Waited(key, mode, result, start, Duration.ofNanos(System.nanoTime() - startNanos), context);
            report(heard -> heard.waited(event));
        }
    }

    Wait waits(String key, Mode mode) {
        return new Wait(key, mode);
    }

    /** A hold ended that had begun at {@code start}. */
    void ended(Seat.Name name, boolean isLost, Instant start, long startNanos) {
        if (isLost) lost.increment();
        if (listener == null) return;
        var event = new Held(name.key(), name.mode(), start, Duration.ofNanos(System.nanoTime() - startNanos));
        report(isLost ? heard -> heard.lost(event) : heard -> heard.held(event));
    }

    private Object context() {
        if (listener == null) return null;
        try {
            return listener.context();
        } catch (RuntimeException | Error failed) {
            warn(failed);
            return null;
        }
    }

    private void report(Consumer<LockListener> event) {
        thread.execute(() -> {
            try {
                event.accept(listener);
            } catch (RuntimeException | Error failed) {
                warn(failed);
            }
        });
    }

    private void warn(Throwable failed) {
        if (warned) return;
        warned = true;
        LOG.log(System.Logger.Level.WARNING, "the listener failed; this is logged once", failed);
    }

    /** Events that were reported are still delivered, however long that takes; nobody waits for it. */
    void close() {
        thread.shutdown();
    }
}
