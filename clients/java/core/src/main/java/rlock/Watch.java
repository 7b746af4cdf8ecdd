package rlock;

import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/** Observes who holds WRITE of a key, with RLOCK.AWAIT, repeatedly until it is closed. */
final class Watch implements AutoCloseable {
    private final Links links;
    private final String key;
    private final long block;
    private final BiConsumer<Long, String> heard;
    private final Consumer<ServerException> refused;
    private final Inbox.Waiter waiter;
    private long token; // that it heard of last; -1: of none. From here on guarded by this
    private long pause = Machine.FIRST_PAUSE;
    private boolean isWaiting;
    private Future<?> timer;
    private boolean isClosed;

    /**
     * Each request waits for {@code block} ms at the server. {@code heard} gets the token and the owner, or 0 and null,
     * and {@code refused} gets the server's error; both must return at once.
     */
    Watch(Links links, String key, long token, long block, BiConsumer<Long, String> heard, Consumer<ServerException> refused) {
        this.links = links;
        this.key = key;
        this.token = token;
        this.block = block;
        this.heard = heard;
        this.refused = refused;
        this.waiter = links.inbox.waiter(this::signal);
    }

    /** Begins. */
    void ask() {
        try {
            links.inTurn(Links.Use.ASIDE, key, this::asks);
        } catch (RejectedExecutionException closing) {
            close();
        }
    }

    private void asks() {
        long seen;
        synchronized (this) {
            if (isClosed) return;
            seen = token;
        }
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(links.timeoutMillis);
        try {
            links.listen(waiter, key, end);
            String[] tell = waiter.tell();
            answered(links.call(Links.Use.ASIDE, waiter, key, links.timeoutMillis, "RLOCK.AWAIT", key, String.valueOf(Math.max(0, seen)),
                    "BLOCK", String.valueOf(block), tell[0], tell[1], tell[2]));
        } catch (ServerException | LinkException failed) {
            fails(failed);
        }
        synchronized (this) {
            if (isClosed) waiter.close();
        }
    }

    private void answered(Object reply) {
        if (!Inbox.isWaiting(reply)) {
            says(reply);
            return;
        }
        boolean isNobody;
        synchronized (this) {
            if (isClosed) return;
            pause = Machine.FIRST_PAUSE;
            isWaiting = true;
            timer = links.later(block + Machine.REPLY, this::signal); // a message may be lost
            isNobody = token < 0;
            if (isNobody) token = 0;
        }
        if (isNobody) heard.accept(0L, null);
        if (waiter.isOver()) signal();
    }

    // Called once for each request. What arrived before the reply is read after it.
    private void signal() {
        synchronized (this) {
            if (isClosed || !isWaiting) return;
            isWaiting = false;
            if (timer != null) timer.cancel(false);
        }
        String message = waiter.message();
        try {
            if (message == null) ask();
            else says(Inbox.reply(message));
        } catch (ServerException failed) {
            fails(failed);
        }
    }

    private void says(Object reply) {
        if (reply instanceof List<?> holder) {
            synchronized (this) {
                if (isClosed) return;
                token = (Long) holder.get(0);
            }
            heard.accept((Long) holder.get(0), holder.get(1) == null ? null : Topology.text(holder.get(1)));
        }
        ask();
    }

    private void fails(RuntimeException why) {
        RuntimeException failed = links.tagged(why);
        boolean passes = !(failed instanceof ServerException error) || Machine.passes(error.code());
        if (!passes) refused.accept((ServerException) failed);
        links.refresh();
        synchronized (this) {
            if (isClosed) return;
            links.later(passes ? pause : Machine.LOOKS, this::ask); // it may be allowed again
            pause = Math.min(2 * pause, Machine.LONGEST_PAUSE);
        }
    }

    @Override
    public void close() {
        synchronized (this) {
            isClosed = true;
            if (timer != null) timer.cancel(false);
        }
        waiter.close();
    }
}
