package rlock;

import java.util.Arrays;
import java.util.Deque;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.LongFunction;
import rlock.Driver.Address;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/**
 * The package's own connections. Commands, releases and renewals never wait for each other: a few connections for each
 * {@link Use} per server, one for each session, and the {@link Inbox}.
 */
final class Links implements AutoCloseable {
    /** What a connection is used for. */
    enum Use {
        COMMAND,
        RELEASE,
        RENEWAL,
        /** Work that no caller waits for: observing locks, and undoing what abandoned attempts left behind. */
        ASIDE
    }

    private static final int PER_USE = 8;
    private static final int IDLE = 16;
    private static final int REDIRECTS = 5;
    private static final Address NOWHERE = new Address("", 0);

    final Topology topology;
    final long timeoutMillis;
    final long outageMillis;
    private final Driver driver;
    private final Map<Address, Server> servers = new ConcurrentHashMap<>();
    private final ThreadFactory threads;
    final Worries worries = new Worries();
    /** All jobs in progress for an owner. */
    final Set<Job> jobs = ConcurrentHashMap.newKeySet();
    final Inbox inbox = new Inbox(this);
    private final Locks locks;
    private final AtomicLong refreshed = new AtomicLong(System.nanoTime() - TimeUnit.SECONDS.toNanos(1));
    private CompletableFuture<Void> refreshing = CompletableFuture.completedFuture(null); // guarded by this
    private volatile long roundTripNanos;
    private volatile boolean draining;
    private volatile boolean closing;
    private volatile boolean closed;

    private final class Server {
        final Address at;
        final Deque<Link> idle = new ConcurrentLinkedDeque<>();
        final AtomicInteger size = new AtomicInteger();
        final Semaphore[] places = new Semaphore[Use.values().length];
        final ThreadPoolExecutor[] workers = new ThreadPoolExecutor[Use.values().length];
        final Semaphore dials = new Semaphore(1, true);
        volatile long restsUntil = System.nanoTime(); // after a failure nobody connects for a moment
        volatile String trouble = "";
        volatile boolean isKnown; // which server it is has been asked, and no connection broke since

        Server(Address at) {
            this.at = at;
            Arrays.setAll(places, use -> new Semaphore(PER_USE, true));
            Arrays.setAll(workers, use -> new ThreadPoolExecutor(
                    PER_USE, PER_USE, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), threads));
            for (ThreadPoolExecutor each : workers) each.allowCoreThreadTimeOut(true);
        }

        /** An idle connection, or null. */
        Link poll() {
            Link link = idle.pollFirst();
            if (link != null) size.decrementAndGet();
            return link;
        }

        /** Returns a connection that has answered. */
        void give(Link link) {
            if (closed || size.get() >= IDLE) {
                link.close();
                return;
            }
            size.incrementAndGet();
            idle.addFirst(link);
            if (closed) drop();
        }

        /** Closes the idle connections, after one of them was broken. */
        void drop() {
            isKnown = false;
            for (Link link; (link = poll()) != null; ) link.close();
        }

        void close() {
            for (ThreadPoolExecutor each : workers) each.shutdown();
        }
    }

    Links(Locks locks, Driver driver, Topology topology, long timeoutMillis, long outageMillis, ThreadFactory threads) {
        this.locks = locks;
        this.driver = driver;
        this.topology = topology;
        this.timeoutMillis = timeoutMillis;
        this.outageMillis = outageMillis;
        this.threads = threads;
    }

    /** How long a request may take that has to end by then, in ms. */
    long limit(long by) {
        return Math.max(1, Math.min(by - Clock.now(), timeoutMillis));
    }

    /** The same time as a {@code nanoTime}. */
    static long endOf(long by) {
        long millis = Math.min(by - Clock.now(), TimeUnit.DAYS.toMillis(1));
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
    }

    private void took(long nanos) {
        // A single fast reply replaces all slower ones: otherwise, waits after a pause of the server would end too
        // early.
        roundTripNanos = Math.min(nanos, roundTripNanos + (nanos - roundTripNanos) / 8);
    }

    /** About how long a round trip takes, in ms. */
    long roundTrip() {
        return TimeUnit.NANOSECONDS.toMillis(roundTripNanos);
    }

    /** The primary of the key, found until then ({@code nanoTime}) at the latest. */
    Address primary(String key, long end) {
        Address at = topology.primary(key);
        if (at != null) return at;
        try {
            CompletableFuture<Void> asked = refresh();
            if (!Driver.await(asked, end - System.nanoTime()))
                throw new LinkException("nobody says in time who is the primary", new TimeoutException()).neverSent();
            asked.join();
        } catch (CompletionException failed) {
            if (failed.getCause() instanceof ServerException refused) throw refused;
            throw new LinkException(failed.getCause().getMessage(), failed.getCause()).neverSent();
        }
        at = topology.primary(key);
        if (at == null) throw new LinkException("no server serves " + key, null).neverSent();
        return at;
    }

    /** Searches for the primary in the background; simultaneous calls share one search. */
    synchronized CompletableFuture<Void> refresh() {
        long now = System.nanoTime();
        boolean isRecent = now - refreshed.get() < TimeUnit.MILLISECONDS.toNanos(Machine.DIALS);
        if (!refreshing.isDone() || isRecent || closed) return refreshing;
        refreshed.set(now);
        try {
            refreshing = CompletableFuture.runAsync(() -> {
                topology.refresh();
                refreshed.set(System.nanoTime());
            }, locks::background);
        } catch (RejectedExecutionException closing) {
            // In that case, nobody needs it any more.
        }
        return refreshing;
    }

    /** Sends a command to the primary of the key, once, except after redirections. */
    Object call(Use use, String key, long limitMillis, String... words) {
        return call(use, null, key, limitMillis, words);
    }

    /**
     * The same, but to the server where the waiter listens, if it does. No redirection to another primary is followed,
     * because the waiter has to listen there first. If no message comes from the target of an {@code -ASK}, the request
     * is sent again.
     */
    Object call(Use use, Inbox.Waiter waiter, String key, long limitMillis, String... words) {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limitMillis);
        Address at = waiter == null ? primary(key, end) : waiter.at();
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
                if (moved && waiter != null) throw error;
            }
        }
    }

    /** Where the next request has to go, after a server's redirection; null if that is the primary. */
    Address redirected(ServerException error, String key, Address from) {
        if (error.code().equals("ASK")) return target(error, from);
        if (error.code().equals("MOVED")) topology.moved(key, target(error, from));
        return null;
    }

    /**
     * The target of {@code MOVED 866 host:port} or {@code ASK …}; without a host, the host of the server that sent it.
     */
    static Address target(ServerException error, Address at) {
        String line = error.getMessage();
        Address to = Address.of(line.substring(line.lastIndexOf(' ') + 1));
        return to.host().isEmpty() ? new Address(at.host(), to.port()) : to;
    }

    private Object callAt(Use use, Address at, boolean asking, long end, String... words) {
        Server server = server(at);
        Semaphore place = server.places[use.ordinal()];
        acquire(place, end, "all connections are waiting for a reply");
        try {
            Link link = take(server, end);
            try {
                if (asking) link.call(millisUntil(end), "ASKING");
                long sent = System.nanoTime();
                Object reply = link.call(millisUntil(end), words);
                took(System.nanoTime() - sent);
                server.give(link);
                return reply;
            } catch (ServerException error) {
                server.give(link);
                throw error;
            } catch (LinkException broken) {
                link.close();
                server.drop();
                throw broken;
            }
        } finally {
            place.release();
        }
    }

    private static long millisUntil(long end) {
        return Math.max(1, TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime()));
    }

    /** Whether nothing came in time: the server or the network is silent. */
    static boolean isSilent(LinkException broken) {
        return broken.getCause() instanceof java.net.SocketTimeoutException
                || broken.getCause() instanceof java.util.concurrent.TimeoutException;
    }

    private static void acquire(Semaphore place, long end, String otherwise) {
        if (place.tryAcquire()) return;
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    if (place.tryAcquire(end - System.nanoTime(), TimeUnit.NANOSECONDS)) return;
                    throw new LinkException(otherwise, null).neverSent();
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    /** A connection for exclusive use: an idle one or a new one. It is returned by {@link #give}, or closed. */
    Link take(Address at, long end) {
        return take(server(at), end);
    }

    private Link take(Server server, long end) {
        Link link = server.poll();
        return link == null ? open(server, end) : link;
    }

    /** A new connection, until then ({@code nanoTime}) at the latest. */
    Link open(Address at, long end) {
        return open(server(at), end);
    }

    private Link open(Server server, long end) {
        Link link = dial(server, end, limit -> driver.connect(server.at, limit));
        if (server.isKnown) return link;
        try {
            locks.met(runId(link, server.at, end));
            server.isKnown = true;
            return link;
        } catch (LinkException failed) {
            link.close();
            throw failed.neverSent();
        } catch (RuntimeException failed) {
            link.close();
            throw failed;
        }
    }

    /**
     * If the channel is in the wrong slot, another request uses the right one: turns that error into a temporary one.
     */
    RuntimeException tagged(RuntimeException failure) {
        if (!(failure instanceof ServerException error)) return failure;
        boolean isOfTell = error.code().equals("CROSSSLOT") && error.getMessage().contains("TELL");
        if (!isOfTell && !error.code().equals("MOVED")) return error;
        topology.isTagged = true;
        return isOfTell ? new ServerException("TRYAGAIN " + error.getMessage()) : error;
    }

    /** Makes the waiter listen at the primary of the key, until then ({@code nanoTime}) at the latest. */
    void listen(Inbox.Waiter waiter, String key, long end) {
        lookAround();
        Address at = primary(key, end);
        try {
            waiter.listen(at, key, end);
        } catch (ServerException refused) {
            redirected(refused, key, at);
            throw tagged(refused);
        }
    }

    /** A new connection that receives messages. */
    Driver.Feed listen(Address at, Driver.Ear ear) {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        return dial(server(at), end, limit -> driver.listen(at, limit, ear));
    }

    // All callers together connect to a server one at a time, and not at all for a moment after a failure.
    private <C> C dial(Server server, long end, LongFunction<C> connecting) {
        acquire(server.dials, end, "no connection to " + server.at + " in time");
        try {
            if (closed) throw new LinkException("closed", null).neverSent();
            if (System.nanoTime() - server.restsUntil < 0) throw new LinkException(server.trouble, null).neverSent();
            return connect(Math.min(timeoutMillis, millisUntil(end)), connecting);
        } catch (LinkException failed) {
            // If there was hardly any time, the failure says nothing about the server.
            if (!failed.isNeverSent() && (!isSilent(failed) || end - System.nanoTime() > 0)) {
                server.trouble = failed.getMessage();
                server.restsUntil = restsUntil();
            }
            throw failed.neverSent();
        } finally {
            server.dials.release();
        }
    }

    /** The time ({@code nanoTime}) until which nobody connects to a server that could not be reached. */
    static long restsUntil() {
        long rest = Machine.DIALS / 2 + ThreadLocalRandom.current().nextLong(Machine.DIALS);
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(rest);
    }

    // A server that has reached its limit of connections counts as not reached: it may have room in a moment.
    private static <C> C connect(long limitMillis, LongFunction<C> connecting) {
        try {
            return connecting.apply(limitMillis);
        } catch (ServerException refused) {
            if (!refused.getMessage().startsWith("ERR max number of clients")) throw refused;
            throw new LinkException(refused.getMessage(), refused);
        }
    }

    // Without permission for INFO, a server is identified by its address. During a failover, the primary is a replica
    // for a while, and waits continue; but if nothing was ever locked here, the address is probably that of a replica.
    private String runId(Link link, Address at, long end) {
        String info;
        try {
            info = Topology.text(link.call(millisUntil(end), "INFO", "server", "replication"));
        } catch (ServerException forbidden) {
            return "";
        }
        if (topology.isFixed() && !locks.isIdentified() && info.contains("role:slave"))
            throw new ServerException("ERR " + at + " is a replica of " + field(info, "master_host") + ":" + field(info, "master_port")
                    + ": locks need the address of the primary, or Sentinels");
        return field(info, "run_id");
    }

    private static String field(String info, String name) {
        return info.replaceAll("(?s).*\\b" + name + ":([^\r\n]+).*", "$1");
    }

    /** Makes sure that the identity of the key's primary is known. */
    void meet(String key, long limitMillis) {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limitMillis);
        Address at = primary(key, end);
        give(at, take(at, end));
    }

    /** Returns a connection that has answered. */
    void give(Address at, Link link) {
        server(at).give(link);
    }

    /** Closes the idle connections to the primary of the key, after one of them was broken. */
    void dropIdle(String key) {
        Address at = topology.primary(key);
        if (at != null) server(at).drop();
    }

    private Server server(Address at) {
        return servers.computeIfAbsent(at, Server::new);
    }

    /**
     * Checks every few seconds which server is the primary: a primary that hangs does not announce that another one
     * replaced it.
     */
    void lookAround() {
        if (System.nanoTime() - refreshed.get() > TimeUnit.SECONDS.toNanos(3)) refresh();
    }

    /** Runs the work after that time, in the timer's thread; null if this is closed. */
    Future<?> later(long millis, Runnable work) {
        return locks.after(millis, work);
    }

    /** Nothing new is acquired any more: waits end. */
    void drain() {
        draining = true;
        jobs.forEach(Job::signal);
    }

    boolean isDraining() {
        return draining;
    }

    /** Whether it is closing: waits end, and what they left is undone. */
    boolean isClosing() {
        return closing;
    }

    /** Runs the work in a thread of its own, or at once if this is closed. */
    void aside(Runnable work) {
        locks.tell(work);
    }

    /** Runs the work in one of the few threads for this use of the key's server. */
    void inTurn(Use use, String key, Runnable work) {
        Address at = topology.primary(key);
        if (at == null) at = NOWHERE;
        server(at).workers[use.ordinal()].execute(work);
        if (closed) server(at).close();
    }

    @Override
    public void close() {
        closing = true;
        drain();
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Machine.CLOSES + Machine.LATE);
        while (!jobs.isEmpty() && System.nanoTime() - end < 0) LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(2));
        closed = true;
        inbox.close();
        servers.values().forEach(Server::drop);
        servers.values().forEach(Server::close);
        jobs.forEach(Job::abandon);
    }
}
