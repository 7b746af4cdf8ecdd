package rlock;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import rlock.Driver.Address;
import rlock.Driver.Feed;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/**
 * Hears whose turn it is: one connection per server, on which each owner that waits by ticket has a channel. What is heard
 * is a hint; who hears nothing asks again in time.
 */
final class Turns implements AutoCloseable {
    private static final long LISTEN_MILLIS = 2_000;
    private final Driver driver;
    private final String prefix;
    private final String base;
    private final Executor background;
    private volatile boolean forbidden;
    private volatile boolean closed;
    private final Map<Address, Listening> feeds = new ConcurrentHashMap<>();

    private static final class Listening {
        final Map<String, Channel> channels = new ConcurrentHashMap<>();
        final CompletableFuture<Feed> opened = new CompletableFuture<>();
        volatile long restsUntil = System.nanoTime();
        volatile boolean ended;

        /** Before that, whoever wants to listen hears nothing and asks all the same. */
        boolean isToBeReplaced() {
            return ended && opened.isDone() && System.nanoTime() - restsUntil >= 0;
        }
    }

    /** An owner's channel, for all that it waits for. */
    private static final class Channel {
        int users; // guarded by Listening.channels.compute
        CompletableFuture<Void> confirmed;
        final Map<String, Turn> keys = new ConcurrentHashMap<>();
    }

    /** {@code base}: what all owners' names begin with; a channel of that name keeps the connection in its state. */
    Turns(Driver driver, String base, Executor background) {
        this.driver = driver;
        this.background = background;
        this.base = base;
        this.prefix = "__keyevent@" + driver.database() + "__:rlock.turn:";
    }

    /** A wait for a turn; ends with {@link #close}. */
    final class Turn implements AutoCloseable {
        private final Listening listening;
        private final Feed feed;
        private final String channel;
        private final String key;
        private final Address at;
        private final Runnable signal;
        private final AtomicBoolean isCalled = new AtomicBoolean();

        private Turn(Address at, Listening listening, Feed feed, String channel, String key, Runnable signal) {
            this.at = at;
            this.listening = listening;
            this.feed = feed;
            this.channel = channel;
            this.key = key;
            this.signal = signal;
        }

        /** It is of this server, and its connection has not ended. */
        boolean isAt(Address server) {
            return !listening.ended && at.equals(server);
        }

        /** Whether it came since this was last asked. */
        boolean isCalled() {
            return isCalled.getAndSet(false);
        }

        private void call() {
            isCalled.set(true);
            signal.run();
        }

        @Override
        public void close() {
            listening.channels.computeIfPresent(channel, (name, entry) -> {
                entry.keys.remove(key);
                if (--entry.users > 0) return entry;
                if (!listening.ended) feed.remove(name);
                return null;
            });
        }
    }

    /**
     * Begins to listen; {@code signal} runs when its turn comes. Fails with a {@link LinkException} when there is no
     * connection to be had in this time.
     */
    Turn listen(Address at, String owner, String key, long limitMillis, Runnable signal) {
        if (forbidden) throw new ServerException("NOPERM this user may not listen");
        long by = Clock.now() + limitMillis;
        Listening listening = feeds.compute(at, (address, old) -> old == null || old.isToBeReplaced() ? connect(at) : old);
        boolean isOpened = Driver.await(listening.opened, TimeUnit.MILLISECONDS.toNanos(limitMillis));
        Feed feed = isOpened ? listening.opened.exceptionally(failed -> null).join() : null;
        if (feed == null) throw new LinkException("nothing to listen on", null);
        String name = prefix + owner.replace("\0", "\\x00"); // as the server names it, which escapes nothing else
        var turn = new Turn(at, listening, feed, name, key, signal);
        Channel channel = listening.channels.compute(name, (same, old) -> {
            Channel entry = old == null ? new Channel() : old;
            if (entry.users++ == 0) entry.confirmed = feed.add(same);
            entry.keys.put(key, turn);
            return entry;
        });
        // Whoever asks after this hears of a turn that comes later. Unconfirmed: then by asking alone.
        Driver.await(channel.confirmed, TimeUnit.MILLISECONDS.toNanos(Math.min(by - Clock.now(), 1_000)));
        return turn;
    }

    // In a thread of its own: those who wait for it have their own patience. Who failed is not used again.
    private Listening connect(Address at) {
        var listening = new Listening();
        background.execute(() -> {
            try {
                Feed feed = driver.listen(at, LISTEN_MILLIS, prefix + base,
                        (channel, key) -> heard(listening, channel, key), () -> ended(listening));
                listening.opened.complete(feed);
                if (closed) feed.close();
            } catch (RuntimeException failed) {
                listening.restsUntil = Links.restsUntil();
                listening.ended = true;
                forbidden |= failed instanceof ServerException error && error.code().equals("NOPERM");
                listening.opened.completeExceptionally(failed);
            }
        });
        return listening;
    }

    private void heard(Listening listening, String name, String key) {
        Channel channel = listening.channels.get(name);
        Turn turn = channel == null ? null : channel.keys.get(key);
        if (turn != null) turn.call();
    }

    private void ended(Listening listening) {
        listening.ended = true;
        listening.channels.values().forEach(channel -> channel.keys.values().forEach(Turn::call));
    }

    @Override
    public void close() {
        closed = true;
        for (Listening listening : feeds.values()) {
            ended(listening);
            listening.opened.thenAccept(Feed::close);
        }
    }
}
