package rlock;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import rlock.Driver.Address;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/**
 * The locks of one server, of one primary behind Sentinels, or of one Cluster. Create one per process, by
 * {@code JedisLocks} or {@code LettuceLocks}; it is thread-safe.
 */
public final class Locks implements AutoCloseable {
    private static final long HEARTBEAT_MILLIS = 250;
    private static final long RELEASE_PATIENCE_MILLIS = 10_000;

    final Links links;
    final Turns turns;
    private final Driver driver;
    private final Topology topology;
    private final String prefix;
    private final long leaseMillis;
    private final ScheduledThreadPoolExecutor timer;
    private final ExecutorService threads;
    private final Map<Grant, Boolean> grants = new ConcurrentHashMap<>();
    private final AtomicLong refreshed = new AtomicLong(System.nanoTime());
    private final AtomicBoolean refreshing = new AtomicBoolean();
    private volatile Service service; // null until a server has said who it is
    private volatile boolean closed;

    private Locks(Builder builder) {
        driver = builder.driver;
        topology = builder.topology;
        prefix = builder.prefix;
        leaseMillis = builder.leaseMillis;
        timer = new ScheduledThreadPoolExecutor(1, daemons("rlock-timer"));
        timer.setRemoveOnCancelPolicy(true);
        // Always due soon, so that a new hold is not the timer's first task and wakes no thread.
        timer.scheduleAtFixedRate(() -> {}, HEARTBEAT_MILLIS, HEARTBEAT_MILLIS, TimeUnit.MILLISECONDS);
        ThreadFactory daemons = daemons("rlock");
        threads = new ThreadPoolExecutor(0, Integer.MAX_VALUE, 10, TimeUnit.SECONDS, new SynchronousQueue<>(), daemons);
        links = new Links(driver, topology, builder.waiting, builder.timeoutMillis, daemons, this::met);
        turns = new Turns(driver, prefix + Owners.PROCESS, threads);
    }

    private static ThreadFactory daemons(String name) {
        var count = new AtomicInteger();
        return work -> {
            Thread thread = new Thread(work, name + "-" + count.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        };
    }

    /** The exclusive lock of a key. Objects for the same key are the same lock, and count together. */
    public KeyLock lock(String key) {
        return new KeyLock(this, key, Options.of(Mode.WRITE, leaseMillis));
    }

    /** The shared half of a key's lock. */
    public KeyLock readLock(String key) {
        return new KeyLock(this, key, Options.of(Mode.READ, leaseMillis));
    }

    /** Both halves of a key's lock. */
    public KeyReadWriteLock readWriteLock(String key) {
        return new KeyReadWriteLock(readLock(key), lock(key));
    }

    /** A permit of a key: at most {@code limit} owners hold one at a time. All users of a key pass the same limit. */
    public KeyLock permits(String key, int limit) {
        if (limit < 1) throw new IllegalArgumentException("a limit is at least 1, not " + limit);
        return new KeyLock(this, key, Options.of(Mode.READ, leaseMillis).withLimit(limit));
    }

    /**
     * This thread's name as an owner, {@code host/pid/thread-…}: the same for all its locks at this server or cluster. The
     * first time, a server is asked who it is.
     */
    public String threadOwner() {
        try {
            return prefix + Owners.ofThread(service("", links.timeoutMillis));
        } catch (LinkException broken) {
            throw new LockException.Unavailable(broken.getMessage(), broken);
        }
    }

    /** A name that nobody else has. */
    public String newOwner() {
        return prefix + Owners.fresh();
    }

    /**
     * Sends any command to the primary of a key, on the package's own connections: {@code RLOCK.INFO}, a fenced write by
     * {@code EVAL}. It may be sent twice if a connection breaks.
     *
     * @return a Long, a String or byte[], a List of these, or null; a map is a List of its keys and values in turn
     */
    public Object call(String key, String... words) {
        try {
            return links.call(Links.Use.COMMAND, key, words);
        } catch (ServerException error) {
            throw LockException.of(error);
        } catch (LinkException broken) {
            throw new LockException.Unavailable(broken.getMessage(), broken);
        }
    }

    /** Stops renewing, and closes all connections: sessions end at once, other holds with their leases. */
    @Override
    public void close() {
        synchronized (this) {
            if (closed) return;
            closed = true;
        }
        Service.leave(service);
        grants.keySet().forEach(Grant::lose);
        turns.close();
        links.close();
        timer.shutdownNow();
        threads.shutdown();
        try {
            // What was told to the application, and what abandoned waits left to do.
            if (!threads.awaitTermination(2, TimeUnit.SECONDS)) threads.shutdownNow();
        } catch (InterruptedException interrupt) {
            threads.shutdownNow();
            Thread.currentThread().interrupt();
        }
        driver.close();
    }

    // --- for the rest of the package

    Holding.Name name(String key, String owner, Mode mode) {
        return new Holding.Name(service(key, links.timeoutMillis), key, owner, mode);
    }

    /** Asks who the servers are, if that is not known. */
    Service service(String key, long limitMillis) {
        if (service == null) links.meet(key, limitMillis);
        return service;
    }

    boolean isIdentified() {
        return service != null;
    }

    private synchronized void met(String runId) {
        if (closed) throw closed();
        Set<String> ids = Stream.concat(topology.ids().stream(), Stream.of(runId))
                .filter(id -> !id.isEmpty()).map(id -> id + "/" + driver.database()).collect(Collectors.toSet());
        service = Service.of(ids, service);
    }

    Future<?> after(long nanos, Runnable work) {
        try {
            return timer.schedule(work, nanos, TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException closing) {
            return null;
        }
    }

    void background(Runnable work) {
        threads.execute(work);
    }

    /** Also while this is being closed, then at once. */
    void tell(Runnable work) {
        try {
            threads.execute(work);
        } catch (RejectedExecutionException closing) {
            work.run();
        }
    }

    <T> Future<T> submit(Callable<T> work) {
        return threads.submit(work);
    }

    /** For background work: false when this is being closed. */
    boolean pause(long millis) {
        try {
            Thread.sleep(millis);
            return !closed;
        } catch (InterruptedException closing) {
            return false;
        }
    }

    /** Finds out who is the primary now; many who ask at once ask once. */
    void refresh() {
        long last = refreshed.get();
        long now = System.nanoTime();
        if (now - last < TimeUnit.MILLISECONDS.toNanos(100) || !refreshing.compareAndSet(false, true)) return;
        try {
            topology.refresh();
        } catch (LinkException | ServerException nobody) {
            // What was known stays; the next one asks again.
        } finally {
            refreshed.set(System.nanoTime());
            refreshing.set(false);
        }
    }

    /** Fails, and it is lost, when this was closed meanwhile. */
    void remember(Grant grant) {
        grants.put(grant, true);
        if (!closed) return;
        grant.lose();
        throw closed();
    }

    static IllegalStateException closed() {
        return new IllegalStateException("this Locks is closed");
    }

    void forget(Grant grant) {
        grants.remove(grant);
    }

    void renew(Grant grant, long millis) {
        if (grant.isLost()) throw new LockLostException("the hold was lost before it was renewed");
        try {
            grant.renew(millis);
        } catch (LinkException broken) {
            throw new LockException.Unavailable(broken.getMessage(), broken);
        }
    }

    /** A connection that the hold is tied to from now on. */
    Link tie(Holding.Name name, Options options, int depth, long token) {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(links.timeoutMillis);
        Link link = links.open(topology.primary(name.key()), end);
        try {
            String[] words = options.acquire(name.key(), name.owner(), depth, "SESSION");
            Object reply = link.call(options.patience(links.timeoutMillis), words);
            if (reply instanceof Long same && same == token) return link;
            if (reply != null)
                link.call(links.timeoutMillis, "RLOCK.RELEASE", name.key(), name.owner(), name.mode().name(),
                        "TOKEN", reply.toString(), "DEPTH", "0");
            throw new LockLostException(name.key() + " was lost before it was tied to a connection");
        } catch (RuntimeException failed) {
            link.close();
            throw failed;
        }
    }

    /** Releases one level. */
    void release(Holding holding, Grant grant) {
        holding.turn.acquireUninterruptibly();
        try {
            if (holding.grant != grant || holding.depth == 0)
                throw new IllegalMonitorStateException(holding.name.key() + " is not held by " + holding.name.owner());
            int left = holding.depth - 1;
            boolean wasLost = grant.isLost();
            if (left == 0) {
                grant.end();
                holding.grant = null;
            }
            holding.depth = left;
            release(holding.name, grant, left, wasLost);
        } finally {
            if (holding.depth == 0) grant.closeSession();
            holding.turn.release();
            holding.enter();
            holding.leave();
        }
    }

    private void release(Holding.Name name, Grant grant, int left, boolean wasLost) {
        String[] words = {"RLOCK.RELEASE", name.key(), name.owner(), name.mode().name(),
            "TOKEN", String.valueOf(grant.token), "DEPTH", String.valueOf(left)};
        if (wasLost) {
            // The server may think otherwise for a moment longer.
            if (!closed && left == 0) background(() -> quietly(name.key(), words));
            throw new LockLostException(name.key() + " was lost before it was released");
        }
        long end = System.nanoTime() + Math.min(grant.leftNanos(), TimeUnit.MILLISECONDS.toNanos(RELEASE_PATIENCE_MILLIS));
        long pause = 10;
        for (boolean again = false; ; again = true) {
            RuntimeException failure;
            try {
                links.call(Links.Use.RELEASE, name.key(), words);
                return;
            } catch (ServerException error) {
                if (error.code().equals("NOTHELD")) {
                    // Sent again: the first one may have been carried out, and the deadline is not reached.
                    if (again && left == 0 && grant.leftNanos() > 0) return;
                    grant.lose();
                    throw new LockLostException(error.getMessage());
                }
                if (!Acquisition.isPassing(error.code())) throw LockException.of(error);
                failure = error;
            } catch (LinkException broken) {
                failure = broken;
            }
            if (System.nanoTime() - end > 0) {
                if (!closed) background(() -> untilItsEnd(name.key(), grant, words));
                throw LockException.Unavailable.because(
                        name.key() + " is not known to be released: " + failure.getMessage(), failure);
            }
            refresh();
            if (!pauseUninterrupted(pause)) throw new LockException.Unavailable("closed", failure);
            pause = Math.min(2 * pause, 250);
        }
    }

    private boolean pauseUninterrupted(long millis) {
        boolean interrupted = Thread.interrupted();
        boolean go = pause(millis);
        if (interrupted || !go && !closed) Thread.currentThread().interrupt();
        return go || !closed;
    }

    private void untilItsEnd(String key, Grant grant, String[] words) {
        while (!quietly(key, words) && grant.leftNanos() > 0) {
            refresh();
            if (!pause(250)) return;
        }
    }

    private boolean quietly(String key, String[] words) {
        try {
            links.call(Links.Use.COMMAND, key, words);
            return true;
        } catch (ServerException error) {
            return !Acquisition.isPassing(error.code());
        } catch (LinkException | IllegalStateException broken) {
            return false;
        }
    }

    /** How to reach the servers, and the few things that can be set. */
    public static final class Builder {
        private final Driver driver;
        private final Topology topology;
        private int waiting = 16;
        private long timeoutMillis = 2_000;
        private long leaseMillis = 30_000;
        private String prefix = "";

        private Builder(Driver driver, Function<Driver, Topology> topology) {
            this.driver = driver;
            this.topology = topology.apply(driver);
        }

        /** For a single server. Used by the client modules. */
        public static Builder standalone(Driver driver, Address server) {
            return new Builder(driver, same -> new Topology.Standalone(server));
        }

        /** For the primary that Sentinels watch under the name {@code service}. */
        public static Builder sentinel(Driver driver, String service, List<Address> sentinels) {
            return new Builder(driver, same -> new Topology.Sentinels(same, service, sentinels));
        }

        /** For a Cluster, with some of its servers. */
        public static Builder cluster(Driver driver, List<Address> seeds) {
            return new Builder(driver, same -> new Topology.Cluster(same, seeds));
        }

        /**
         * How many connections may wait at a time; the default is 16. Further waits are by ticket: in the same queue,
         * but served a little later. With 0 all waits are by ticket.
         */
        public Builder waiting(int connections) {
            waiting = connections;
            return this;
        }

        /** How long a reply may take, beside the wait; the default is 2 s. */
        public Builder timeout(Duration limit) {
            timeoutMillis = limit.toMillis();
            return this;
        }

        /** The lease of locks without one; the default is 30 s. */
        public Builder lease(Duration lease) {
            leaseMillis = lease.toMillis();
            return this;
        }

        /** The prefix of all owners' names, for ACL rules. */
        public Builder ownerPrefix(String text) {
            prefix = text;
            return this;
        }

        /** Creates the {@code Locks}; nothing is sent yet. */
        public Locks open() {
            return new Locks(this);
        }
    }
}
