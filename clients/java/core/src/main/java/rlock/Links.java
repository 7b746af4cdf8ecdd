package rlock;

import java.util.Arrays;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
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
        ACKED_RENEWAL
    }

    private static final int PER_USE = 8;
    private static final int IDLE = 16;
    private static final int REDIRECTS = 5;
    private static final long SILENT_MILLIS = 15_000;

    final Topology topology;
    /** The places for blocked waits. */
    final Semaphore waits;

    final long timeoutMillis;
    private final Driver driver;
    private final Executor background;
    private final Consumer<String> met;
    private final Map<Address, Server> servers = new ConcurrentHashMap<>();
    private volatile long located = System.nanoTime();
    private volatile boolean closed;

    private static final class Server {
        final Deque<Link> idle = new ConcurrentLinkedDeque<>();
        final AtomicInteger size = new AtomicInteger();
        final Semaphore[] places = new Semaphore[Use.values().length];
        final AtomicBoolean looking = new AtomicBoolean();
        volatile long looked = System.nanoTime();
        volatile long heard = System.nanoTime();
        volatile boolean isKnown; // which server it is has been asked, and no connection broke since

        Server() {
            Arrays.setAll(places, use -> new Semaphore(PER_USE, true));
        }
    }

    /** {@code met} is told what each server says of itself, before anything else is sent there. */
    Links(Driver driver, Topology topology, int waiting, long timeoutMillis, Executor background, Consumer<String> met) {
        this.driver = driver;
        this.topology = topology;
        this.waits = new Semaphore(waiting, true);
        this.timeoutMillis = timeoutMillis;
        this.background = background;
        this.met = met;
    }

    /** Sends a command to the primary of the key, and once more where the connection was an old one. */
    Object call(Use use, String key, String... words) {
        return call(use, key, timeoutMillis, words);
    }

    Object call(Use use, String key, long limitMillis, String... words) {
        Address at = topology.primary(key);
        boolean asking = false;
        for (int i = 0; ; i++) {
            try {
                return callAt(use, at, asking, limitMillis, words);
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

    private Object callAt(Use use, Address at, boolean asking, long limitMillis, String... words) {
        Semaphore place = server(at).places[use.ordinal()];
        acquire(place);
        try {
            while (true) {
                Link old = idle(at);
                Link link = old == null ? open(at) : old;
                try {
                    if (asking) link.call(timeoutMillis, "ASKING");
                    Object reply = link.call(limitMillis, words);
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
        } finally {
            place.release();
        }
    }

    /** Nothing came in time: the server, or the way to it, is silent. */
    static boolean isSilent(LinkException broken) {
        return broken.getCause() instanceof java.net.SocketTimeoutException
                || broken.getCause() instanceof java.util.concurrent.TimeoutException;
    }

    private void acquire(Semaphore place) {
        if (place.tryAcquire()) return;
        boolean interrupted = false;
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(2 * timeoutMillis);
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
    Link take(Address at) {
        Link link = idle(at);
        return link == null ? open(at) : link;
    }

    Link open(Address at) {
        if (closed) throw new IllegalStateException("this Locks is closed");
        Link link = driver.connect(at);
        Server server = server(at);
        if (server.isKnown) return link;
        try {
            met.accept(runId(link));
            server.isKnown = true;
            return link;
        } catch (RuntimeException failed) {
            link.close();
            throw failed;
        }
    }

    // Without the right to INFO a server is known by its address alone.
    private String runId(Link link) {
        try {
            return Topology.text(link.call(timeoutMillis, "INFO", "server")).replaceAll("(?s).*run_id:(\\w+).*", "$1");
        } catch (ServerException forbidden) {
            return "";
        }
    }

    /** Makes sure that the primary of the key has said who it is. */
    void meet(String key) {
        Address at = topology.primary(key);
        give(at, take(at));
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
        server.heard = System.nanoTime();
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

    /**
     * Whether to go on waiting at this server for the key. Asks in the background, at most once a second for all who
     * wait there: a primary that hangs closes no connection while another one takes its place.
     */
    boolean stillAt(String key, Address at) {
        Server server = server(at);
        long now = System.nanoTime();
        if (now - server.looked > TimeUnit.SECONDS.toNanos(1) && server.looking.compareAndSet(false, true)) {
            server.looked = now;
            try {
                background.execute(() -> look(at, server));
            } catch (RejectedExecutionException closing) {
                server.looking.set(false);
            }
        }
        if (now - server.heard > TimeUnit.MILLISECONDS.toNanos(SILENT_MILLIS)) return false;
        try {
            return at.equals(topology.primary(key));
        } catch (LinkException unknown) {
            return true;
        }
    }

    private void look(Address at, Server server) {
        try {
            if (System.nanoTime() - located > TimeUnit.SECONDS.toNanos(3)) {
                located = System.nanoTime();
                topology.refresh();
            }
            callAt(Use.COMMAND, at, false, timeoutMillis, "PING");
        } catch (LinkException | ServerException | IllegalStateException silent) {
            // Then it was not heard of, which counts.
        } finally {
            server.looking.set(false);
        }
    }

    /** A wait begins: the server counts as heard of from now on, not from when it was last used. */
    void heard(Address at) {
        server(at).heard = System.nanoTime();
    }

    @Override
    public void close() {
        closed = true;
        servers.keySet().forEach(this::drop);
    }
}
