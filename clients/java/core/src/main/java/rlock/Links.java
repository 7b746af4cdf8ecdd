package rlock;

import java.util.Arrays;
import java.util.Deque;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import rlock.Driver.Address;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/**
 * The package's own connections. Commands, releases, renewals and waits never stand behind each other: a few connections
 * for each {@link Use} per server, a bounded set for waits, and one for each session.
 */
final class Links implements AutoCloseable {
    /** What a connection is used for. */
    enum Use {
        COMMAND,
        /** Never sent twice unnoticed: the second time {@code -NOTHELD} is no news. */
        RELEASE,
        RENEWAL,
        /** Replicas are to acknowledge it first: no other renewal waits behind it. */
        ACKED_RENEWAL,
        /** What nobody waits for: whether a wait still has its place, and what abandoned attempts left to undo. */
        ASIDE
    }

    private static final int PER_USE = 8;
    private static final int IDLE = 16;
    private static final int REDIRECTS = 5;
    private static final Address NOWHERE = new Address("", 0);

    final Topology topology;
    /** The places for blocked waits. */
    final Semaphore waits;

    final long timeoutMillis;
    private final Driver driver;
    private final Consumer<String> met;
    private final Map<Address, Server> servers = new ConcurrentHashMap<>();
    private final ThreadFactory threads;
    private final AtomicLong located = new AtomicLong(System.nanoTime());
    private final Set<Link> waiting = ConcurrentHashMap.newKeySet();
    private volatile boolean closed;

    private final class Server {
        final Deque<Link> idle = new ConcurrentLinkedDeque<>();
        final AtomicInteger size = new AtomicInteger();
        final Semaphore[] places = new Semaphore[Use.values().length];
        final ThreadPoolExecutor[] workers = new ThreadPoolExecutor[Use.values().length];
        volatile boolean isKnown; // which server it is has been asked, and no connection broke since

        Server() {
            Arrays.setAll(places, use -> new Semaphore(PER_USE, true));
            Arrays.setAll(workers, use -> new ThreadPoolExecutor(
                    PER_USE, PER_USE, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), threads));
            for (ThreadPoolExecutor each : workers) each.allowCoreThreadTimeOut(true);
        }

        void close() {
            for (ThreadPoolExecutor each : workers) each.shutdown();
        }
    }

    /** {@code met} is told what each server says of itself, before anything else is sent there. */
    Links(Driver driver, Topology topology, int waiting, long timeoutMillis, ThreadFactory threads, Consumer<String> met) {
        this.driver = driver;
        this.topology = topology;
        this.waits = new Semaphore(waiting, true);
        this.timeoutMillis = timeoutMillis;
        this.threads = threads;
        this.met = met;
    }

    /** Sends a command to the primary of the key, and once more where the connection was an old one. */
    Object call(Use use, String key, String... words) {
        return call(use, key, timeoutMillis, words);
    }

    Object call(Use use, String key, long limitMillis, String... words) {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limitMillis);
        Address at = topology.primary(key);
        boolean asking = false;
        for (int i = 0; ; i++) {
            try {
                return callAt(use, at, asking, end, words);
            } catch (ServerException error) {
                boolean moved = error.code().equals("MOVED");
                asking = error.code().equals("ASK");
                if (i == REDIRECTS || !moved && !asking) throw error;
                at = target(error, at);
                if (moved) topology.moved(key, at);
            }
        }
    }

    /** Where {@code MOVED 866 host:port} or {@code ASK …} points; without a host, to that of who said it. */
    static Address target(ServerException error, Address at) {
        String line = error.getMessage();
        Address to = Address.of(line.substring(line.lastIndexOf(' ') + 1));
        return to.host().isEmpty() ? new Address(at.host(), to.port()) : to;
    }

    private Object callAt(Use use, Address at, boolean asking, long end, String... words) {
        Semaphore place = server(at).places[use.ordinal()];
        acquire(place, end);
        boolean mayBeSent = false;
        try {
            while (true) {
                Link old = idle(at);
                Link link = old == null ? open(at, end) : old;
                mayBeSent = true;
                try {
                    if (asking) link.call(millisUntil(end), "ASKING");
                    Object reply = link.call(millisUntil(end), words);
                    give(at, link);
                    return reply;
                } catch (ServerException error) {
                    give(at, link);
                    throw error;
                } catch (LinkException broken) {
                    link.close();
                    drop(at);
                    // A connection that was idle may have ended long ago.
                    if (old == null || use == Use.RELEASE || isSilent(broken)) throw broken;
                }
            }
        } catch (LinkException broken) {
            throw mayBeSent ? broken : broken.neverSent();
        } finally {
            place.release();
        }
    }

    private static long millisUntil(long end) {
        return Math.max(1, TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime()));
    }

    /** Nothing came in time: the server, or the way to it, is silent. */
    static boolean isSilent(LinkException broken) {
        return broken.getCause() instanceof java.net.SocketTimeoutException
                || broken.getCause() instanceof java.util.concurrent.TimeoutException;
    }

    private void acquire(Semaphore place, long end) {
        if (place.tryAcquire()) return;
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    if (place.tryAcquire(end - System.nanoTime(), TimeUnit.NANOSECONDS)) return;
                    throw new LinkException("all connections are waiting for a reply", null);
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    /** A connection for one use alone: an idle one or a new one. It comes back by {@link #give}, or is closed. */
    Link take(Address at, long end) {
        Link link = idle(at);
        return link == null ? open(at, end) : link;
    }

    /** A new connection, by then ({@code nanoTime}) at the latest. */
    Link open(Address at, long end) {
        if (closed) throw Locks.closed();
        Link link;
        try {
            link = driver.connect(at, Math.min(timeoutMillis, millisUntil(end)));
        } catch (LinkException failed) {
            throw failed.neverSent();
        }
        Server server = server(at);
        if (server.isKnown) return link;
        try {
            met.accept(runId(link, end));
            server.isKnown = true;
            return link;
        } catch (RuntimeException failed) {
            link.close();
            throw failed;
        }
    }

    // Without the right to INFO a server is known by its address alone.
    private String runId(Link link, long end) {
        try {
            return Topology.text(link.call(millisUntil(end), "INFO", "server")).replaceAll("(?s).*run_id:(\\w+).*", "$1");
        } catch (ServerException forbidden) {
            return "";
        }
    }

    /** Makes sure that the primary of the key has said who it is. */
    void meet(String key, long limitMillis) {
        Address at = topology.primary(key);
        give(at, take(at, System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limitMillis)));
    }

    private Link idle(Address at) {
        Server server = server(at);
        Link link = server.idle.pollFirst();
        if (link != null) server.size.decrementAndGet();
        return link;
    }

    /** Gives back a connection that has answered. */
    void give(Address at, Link link) {
        Server server = server(at);
        if (closed || server.size.get() >= IDLE) {
            link.close();
            return;
        }
        server.size.incrementAndGet();
        server.idle.addFirst(link);
        if (closed) drop(at);
    }

    /** Closes the idle connections to a server: one of them was broken. */
    void drop(Address at) {
        server(at).isKnown = false;
        for (Link link; (link = idle(at)) != null; ) link.close();
    }

    void dropIdle(String key) {
        try {
            drop(topology.primary(key));
        } catch (LinkException unknown) {
            // Then there is none to drop.
        }
    }

    private Server server(Address at) {
        return servers.computeIfAbsent(at, each -> new Server());
    }

    /** Finds out every few seconds who is the primary: one that hangs tells nobody that another one took its place. */
    void lookAround() {
        long last = located.get();
        long now = System.nanoTime();
        if (now - last > TimeUnit.SECONDS.toNanos(3) && located.compareAndSet(last, now)) topology.refresh();
    }

    /** A connection is about to wait for as long as it takes: closing ends it. {@link #waited} follows. */
    void waits(Link link) {
        waiting.add(link);
        if (closed) link.close();
    }

    void waited(Link link) {
        waiting.remove(link);
    }

    /** In one of the few threads for this use of the key's server. */
    void inTurn(Use use, String key, Runnable work) {
        Address at;
        try {
            at = topology.primary(key);
        } catch (LinkException nobody) {
            at = NOWHERE;
        }
        server(at).workers[use.ordinal()].execute(work);
        if (closed) server(at).close();
    }

    @Override
    public void close() {
        closed = true;
        waiting.forEach(Link::close);
        servers.keySet().forEach(this::drop);
        servers.values().forEach(Server::close);
    }
}
