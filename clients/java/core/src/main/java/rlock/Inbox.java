package rlock;

import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import rlock.Driver.Address;
import rlock.Driver.Feed;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/**
 * Receives the late replies of waiting requests: on one connection per server, with a channel of its own; in a Cluster,
 * with one channel for each slot. A request that may get a late reply names the channel and an ID.
 */
final class Inbox implements AutoCloseable {
    private static final AtomicLong IDS = new AtomicLong();

    private final Links links;
    private final Map<Address, Box> boxes = new ConcurrentHashMap<>();
    private volatile boolean closed;

    Inbox(Links links) {
        this.links = links;
    }

    /** Whether the channel of the key is subscribed at the server to which a request would go now. */
    boolean hears(String key) {
        return confirmed(key) != null;
    }

    private Box confirmed(String key) {
        Address at = links.topology.primary(key);
        Box box = at == null ? null : boxes.get(at);
        return box != null && box.isConfirmed(box.channel(key)) ? box : null;
    }

    /**
     * The subscription at one server. Its random name is drawn when it is created: a restored process draws another
     * one.
     */
    private final class Box implements Driver.Ear {
        final Address at;
        final String name = Owners.drawn();
        final Map<String, CompletableFuture<Void>> channels = new ConcurrentHashMap<>();
        final Map<String, Waiter> waiters = new ConcurrentHashMap<>(); // by the id of their request
        volatile boolean ended;
        private volatile long restsUntil = System.nanoTime(); // before that, whoever needs it hears why it failed
        private volatile long heardAt;
        private long askedAt; // whether it is still there; these are the timer's
        private long looksAt;
        private final CompletableFuture<Feed> opened; // in a thread of its own: those who wait for it have their own patience

        Box(Address at) {
            this.at = at;
            this.opened = CompletableFuture.supplyAsync(this::open, links::aside);
        }

        String channel(String key) {
            return "rlock:tell:" + links.topology.tag(key) + name;
        }

        boolean isConfirmed(String channel) {
            CompletableFuture<Void> confirmed = channels.get(channel);
            return !ended && confirmed != null && confirmed.isDone() && !confirmed.isCompletedExceptionally();
        }

        private Feed open() {
            try {
                Feed feed = links.listen(at, this);
                if (closed) feed.close();
                looksAt = Clock.now() + Machine.LOOKS;
                links.later(Machine.LOOKS, this::look);
                return feed;
            } catch (RuntimeException failed) {
                restsUntil = Links.restsUntil();
                ended = true;
                throw failed;
            }
        }

        void subscribe(String channel, long end) {
            Feed feed = within(opened, end);
            CompletableFuture<Void> confirmed = channels.computeIfAbsent(channel, feed::subscribe);
            try {
                within(confirmed, end);
            } finally {
                if (confirmed.isCompletedExceptionally()) channels.remove(channel, confirmed);
            }
        }

        void add(String id, Waiter waiter) {
            waiters.put(id, waiter);
            // If the subscription ends after this check, the waiter is already registered and is notified.
            if (!isConfirmed(waiter.channel)) waiter.ends(id, null);
        }

        // While anybody waits, the server has to answer: at least that a channel is still subscribed.
        private void look() {
            long now = Clock.now();
            boolean isAwaited = !waiters.isEmpty() || channels.values().stream().anyMatch(each -> !each.isDone());
            boolean asks = !isAwaited || heardAt >= askedAt;
            // What arrived while this process was suspended has yet to be read.
            if (asks || now - looksAt > Machine.LATE) askedAt = now;
            else if (now - askedAt >= Machine.REPLY) ended = true;
            if (ended) links.aside(this::close);
            else if (isAwaited && asks) links.aside(() -> channels.keySet().stream().findAny().ifPresent(this::ask));
            looksAt = now + Machine.LOOKS;
            if (!ended) links.later(Machine.LOOKS, this::look);
        }

        private void ask(String channel) {
            opened.join().subscribe(channel).thenRun(() -> heardAt = Clock.now());
        }

        void close() {
            ended();
            opened.thenAccept(Feed::close);
        }

        @Override
        public void heard(String message) {
            heardAt = Clock.now();
            String[] idAndRest = message.split(" ", 2);
            Waiter waiter = waiters.get(idAndRest[0]);
            if (waiter != null) waiter.ends(idAndRest[0], idAndRest[1]);
        }

        @Override
        public void left(String channel) {
            channels.remove(channel);
            waiters.forEach((id, waiter) -> {
                if (waiter.channel.equals(channel)) waiter.ends(id, null);
            });
        }

        @Override
        public void ended() {
            ended = true;
            boxes.remove(at, this);
            waiters.forEach((id, waiter) -> waiter.ends(id, null));
        }
    }

    /** Waits for the message to one request at a time. */
    final class Waiter implements AutoCloseable {
        private final Runnable signal;
        private volatile Box box;
        private volatile String channel = "";
        private String id = ""; // of its last request; from here on guarded by this
        private String message;
        private boolean isOver;

        private Waiter(Runnable signal) {
            this.signal = signal;
        }

        /** Whether the channel of the key is subscribed; if so, the waiter listens there. */
        boolean listens(String key) {
            Box now = confirmed(key);
            if (now != null) listensAt(now, key);
            return now != null;
        }

        /** Subscribes to the channel of the key, until then ({@code nanoTime}) at the latest. */
        void listen(Address at, String key, long end) {
            if (closed) throw new LinkException("closed", null).neverSent();
            listensAt(boxes.compute(at, (same, old) -> old == null || old.ended && System.nanoTime() - old.restsUntil >= 0 ? new Box(same) : old), key);
            if (!box.isConfirmed(channel)) box.subscribe(channel, end);
        }

        private void listensAt(Box next, String key) {
            close();
            channel = next.channel(key);
            box = next;
        }

        /** The server at which it listens, to which the request has to go. */
        Address at() {
            return box.at;
        }

        /** The arguments of TELL for the next request; messages for earlier requests are ignored from now on. */
        String[] tell() {
            close();
            String next = Long.toHexString(IDS.incrementAndGet());
            synchronized (this) {
                id = next;
                message = null;
                isOver = false;
            }
            box.add(next, this);
            return new String[] {"TELL", channel, next};
        }

        private void ends(String of, String said) {
            synchronized (this) {
                if (!of.equals(id)) return;
                message = said;
                isOver = true;
            }
            signal.run();
        }

        /** Whether the message has come, or never will. */
        synchronized boolean isOver() {
            return isOver;
        }

        /** The message without its id; null if it is lost. */
        synchronized String message() {
            return message;
        }

        /** Forgets the last request. */
        @Override
        public void close() {
            String last;
            synchronized (this) {
                last = id;
                id = "";
            }
            Box of = box;
            if (of != null) of.waiters.remove(last);
        }
    }

    /** {@code signal} runs when a message has come or is lost, in any thread, and must return at once. */
    Waiter waiter(Runnable signal) {
        return new Waiter(signal);
    }

    /** Whether a message follows this reply. */
    static boolean isWaiting(Object reply) {
        return Topology.text(reply).equals("WAITING");
    }

    /** The content of a message, as a reply: a number, null, or a token with its owner. An error is thrown. */
    static Object reply(String message) {
        String[] words = message.split(" ", 3);
        return switch (words[0]) {
            case "token" -> Long.valueOf(words[1]);
            case "renewed" -> 1L;
            case "holder" -> Arrays.asList(Long.valueOf(words[1]), words.length < 3 ? null : words[2]);
            case "error" -> throw new ServerException(message.substring("error ".length()));
            default -> null;
        };
    }

    private static <T> T within(CompletableFuture<T> future, long end) {
        if (!Driver.await(future, end - System.nanoTime()))
            throw new LinkException("no subscription in time", new TimeoutException());
        try {
            return future.join();
        } catch (CompletionException failed) {
            String why = failed.getCause().getMessage();
            if (!(failed.getCause() instanceof ServerException refused)) throw new LinkException("no subscription: " + why, failed.getCause());
            boolean isForbidden = refused.code().equals("NOPERM");
            throw isForbidden ? new ServerException(why + " (to wait, a user needs +ssubscribe and &rlock:tell:*)") : refused;
        }
    }

    @Override
    public void close() {
        closed = true;
        boxes.values().forEach(Box::close);
    }
}
