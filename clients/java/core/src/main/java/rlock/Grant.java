package rlock;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/**
 * A token and how long it is sure: until a lease after the last request that the server answered was <em>sent</em>. Renews
 * itself every third of the lease, and says that it may be lost no later than its deadline.
 */
final class Grant {
    private static final System.Logger LOG = System.getLogger("rlock");
    private final Locks locks;
    private final Holding holding;
    final Options options;
    final long token;
    final CompletableFuture<Void> lost = new CompletableFuture<>();
    private final Object state = new Object();
    private Deadline deadline; // guarded by state
    private long leaseMillis; // what is renewed: the longest that was asked for; guarded by state
    private boolean renewed; // guarded by state
    /** The thread that alone can release it; null if a {@link Hold} can. */
    volatile Thread holder;
    private volatile long retryMillis; // the pause after the last renewal that failed
    private boolean over; // released or lost; guarded by state
    private volatile boolean isLost;
    private Future<?> next; // guarded by state
    private Link session; // guarded by state

    /** By the clock that never jumps, and by the one that goes on while the machine sleeps: whichever comes first. */
    record Deadline(long nanos, long wallMillis) {
        // Timers are late, never early; and two clocks never run alike.
        private static final long EARLY_MILLIS = 5;

        static Deadline after(long sentNanos, long sentWall, long leaseMillis) {
            long sure = leaseMillis - Math.min(EARLY_MILLIS, leaseMillis / 10);
            return new Deadline(sentNanos + TimeUnit.MILLISECONDS.toNanos(sure), sentWall + sure);
        }

        long leftNanos() {
            long byWall = TimeUnit.MILLISECONDS.toNanos(wallMillis - System.currentTimeMillis());
            return Math.min(nanos - System.nanoTime(), byWall);
        }
    }

    Grant(Locks locks, Holding holding, Options options, long token, Deadline deadline) {
        this.locks = locks;
        this.holding = holding;
        this.options = options;
        this.token = token;
        this.deadline = deadline;
        this.leaseMillis = options.leaseMillis();
        this.renewed = options.renewed();
    }

    void begin() {
        synchronized (state) {
            schedule();
        }
    }

    /** The owner entered again, with a lease of its own: the deadline moves if that is later. */
    void extend(Options again, Deadline to) {
        synchronized (state) {
            if (over) return;
            if (to.nanos - deadline.nanos > 0) deadline = to;
            if (again.renewed()) {
                leaseMillis = renewed ? Math.max(leaseMillis, again.leaseMillis()) : again.leaseMillis();
                renewed = true;
            }
            schedule();
        }
    }

    boolean isLost() {
        if (isLost) return true;
        boolean past;
        synchronized (state) {
            past = !over && deadline.leftNanos() <= 0;
        }
        if (past) lose();
        return past;
    }

    Duration left() {
        synchronized (state) {
            return isLost ? Duration.ZERO : Duration.ofNanos(Math.max(0, deadline.leftNanos()));
        }
    }

    long leftNanos() {
        synchronized (state) {
            return deadline.leftNanos();
        }
    }

    /** It is given back: from now on neither renewed nor lost. */
    void end() {
        finish(false);
    }

    /** It is lost, or may be. */
    void lose() {
        finish(true);
    }

    private void finish(boolean isLoss) {
        Link link;
        synchronized (state) {
            if (over) return;
            over = true;
            isLost = isLoss;
            if (next != null) next.cancel(false);
            link = session;
            session = null;
        }
        locks.forget(this);
        if (!isLoss) {
            // A session that ends before its hold is released ends the hold: so the release closes it.
            if (link != null) sessionToClose = link;
            return;
        }
        if (link != null) locks.tell(link::close);
        // What the application does when it hears of it must not hold up the others.
        locks.tell(() -> lost.complete(null));
    }

    private volatile Link sessionToClose;

    /** After the release: the session's connection is needed no longer. */
    void closeSession() {
        Link link = sessionToClose;
        if (link != null) link.close();
    }

    // One timer per hold: a third of the lease after the last renewal, else the deadline.
    private void schedule() {
        if (over) return;
        if (next != null) next.cancel(false);
        long left = deadline.leftNanos();
        long third = left - TimeUnit.MILLISECONDS.toNanos(leaseMillis) * 2 / 3;
        next = renewed
                ? locks.after(Math.max(0, third), this::renewNow)
                : locks.after(Math.max(0, left), this::expire);
    }

    private void expire() {
        if (isLost()) return;
        synchronized (state) {
            // The clock was set back meanwhile.
            if (!over) next = locks.after(TimeUnit.MILLISECONDS.toNanos(1) + Math.max(0, deadline.leftNanos()), this::expire);
        }
    }

    // In one of the few threads for the server: however many holds there are, and however late it answers.
    private void renewNow() {
        if (isLost()) return;
        Thread thread = holder;
        if (thread != null && !thread.isAlive()) {
            LOG.log(System.Logger.Level.WARNING, holding.name.key() + ": " + thread.getName() + " ended without unlocking it");
            lose();
            return;
        }
        long millis;
        synchronized (state) {
            if (over) return;
            // Until this renewal has been answered the deadline is what counts.
            next = locks.after(Math.max(0, deadline.leftNanos()), this::expire);
            millis = leaseMillis;
        }
        try {
            locks.links.inTurn(use(), holding.name.key(), () -> tryToRenew(millis));
        } catch (RejectedExecutionException closing) {
            // Then the deadline says the rest.
        }
    }

    private void tryToRenew(long millis) {
        synchronized (state) {
            if (over) return;
        }
        try {
            renew(millis);
            retryMillis = 0;
        } catch (LockLostException gone) {
            // Whoever wanted to know has been told.
        } catch (LinkException | LockException | IllegalStateException later) {
            locks.refresh();
            retryMillis = Math.min(Math.max(20, 2 * retryMillis), Math.max(20, millis / 10));
            synchronized (state) {
                if (over) return;
                if (next != null) next.cancel(false);
                long pause = Math.min(TimeUnit.MILLISECONDS.toNanos(retryMillis), deadline.leftNanos());
                next = locks.after(Math.max(0, pause), this::renewNow);
            }
        }
    }

    private Links.Use use() {
        return options.acks() > 0 ? Links.Use.ACKED_RENEWAL : Links.Use.RENEWAL;
    }

    /** Renews now, for so long from now; fails if the hold is lost, or nobody answers. */
    void renew(long millis) {
        long nanos = System.nanoTime();
        long wall = System.currentTimeMillis();
        try {
            locks.links.call(use(), holding.name.key(), patience(millis),
                    options.renew(holding.name.key(), holding.name.owner(), token, millis));
        } catch (ServerException error) {
            if (!error.code().equals("NOTHELD")) throw LockException.of(error);
            lose();
            throw new LockLostException(error.getMessage());
        }
        Deadline to = Deadline.after(nanos, wall, millis);
        synchronized (state) {
            // Who was told that it may be lost cannot be told otherwise.
            if (over && isLost) throw new LockLostException(holding.name.key() + " was lost while it was renewed");
            if (over) return;
            if (to.nanos - deadline.nanos > 0) deadline = to;
            schedule();
        }
    }

    // One connection that hangs must not take the whole lease.
    private long patience(long millis) {
        return Math.max(50, Math.min(options.patience(locks.links.timeoutMillis), millis / 3));
    }

    /** The hold is tied to this connection; when it ends, the hold has ended or is tied to a new one. */
    void tie(Link link) {
        synchronized (state) {
            if (over) {
                link.close();
                return;
            }
            session = link;
        }
        link.whenClosed(() -> locks.tell(() -> untied(link)));
    }

    // The server closes the connection of a hold that ended; so does a failover, and the hold stays.
    private void untied(Link link) {
        long millis;
        synchronized (state) {
            if (over || session != link) return;
            session = null;
            millis = leaseMillis;
        }
        long pause = 10;
        while (!isLost()) {
            try {
                renew(millis);
                if (tieAgain()) return;
            } catch (LockLostException gone) {
                lose();
                return;
            } catch (LinkException | ServerException | LockException | IllegalStateException later) {
                synchronized (state) {
                    if (over) return;
                }
                locks.refresh();
                if (!locks.pause(pause)) return;
                pause = Math.min(2 * pause, 250);
            } catch (InterruptedException closing) {
                return;
            }
        }
    }

    private boolean tieAgain() throws InterruptedException {
        // While a depth is being changed it cannot be said.
        if (!holding.turn.tryAcquire(1, TimeUnit.SECONDS)) return false;
        try {
            synchronized (state) {
                if (over) return true;
            }
            tie(locks.tie(holding.name, options, holding.depth, token));
            return true;
        } finally {
            holding.turn.release();
        }
    }
}
