package rlock;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import rlock.Driver.Address;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/**
 * The locks of one server, of one primary behind Sentinels, or of one Cluster. Create one per process, by
 * {@code JedisLocks} or {@code LettuceLocks}; it is thread-safe.
 */
public final class Locks implements AutoCloseable {
    private static final long HEARTBEAT_MILLIS = 250;
    private static final int ANSWERING = 16;
    /** How often a drain looks whether anybody holds. */
    private static final long LOOK_MILLIS = 10;

    final Links links;
    private final Driver driver;
    private final Topology topology;
    private final String prefix;
    private final long leaseMillis;
    private final ScheduledThreadPoolExecutor timer;
    private final Daemons daemons = new Daemons("rlock");
    private final ExecutorService threads;
    private final Map<Tenure, Boolean> tenures = new ConcurrentHashMap<>();
    final Set<Election.Observer> observers = ConcurrentHashMap.newKeySet();
    final Notices notices;
    private final Set<AsyncAcquisition> asyncs = ConcurrentHashMap.newKeySet();
    private final ThreadPoolExecutor answers; // to futures
    private volatile Service service; // null until the identity of a server is known
    private volatile boolean closed;

    private Locks(Builder builder) {
        driver = builder.driver;
        topology = builder.topology;
        prefix = builder.prefix;
        leaseMillis = builder.leaseMillis;
        timer = new ScheduledThreadPoolExecutor(1, new Daemons("rlock-timer"));
        timer.setRemoveOnCancelPolicy(true);
        // A task that is always due soon, so that a new hold is never the timer's first task, which would wake a
        // thread.
        timer.scheduleAtFixedRate(() -> {}, HEARTBEAT_MILLIS, HEARTBEAT_MILLIS, TimeUnit.MILLISECONDS);
        threads = new ThreadPoolExecutor(0, Integer.MAX_VALUE, 10, TimeUnit.SECONDS, new SynchronousQueue<>(), daemons);
        notices = new Notices(builder.listener, new Daemons("rlock-listener"));
        answers = new ThreadPoolExecutor(
                ANSWERING, ANSWERING, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), new Daemons("rlock-future"));
        answers.allowCoreThreadTimeOut(true);
        links = new Links(this, driver, topology, builder.timeoutMillis, builder.outageMillis, daemons);
    }

    /** The exclusive lock of a key. Objects for the same key are the same lock, and share their levels. */
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

    /**
     * A permit of a key: at most {@code limit} owners hold one at a time. All users of a key must pass the same limit.
     */
    public KeyLock permits(String key, int limit) {
        if (limit < 1) throw new IllegalArgumentException("a limit is at least 1, not " + limit);
        return new KeyLock(this, key, Options.of(Mode.READ, leaseMillis).withLimit(limit));
    }

    /** The write locks of several keys, acquired in one step. Equal keys are one lock. */
    public AllLocks all(String... keys) {
        return all(Arrays.stream(keys).map(this::lock).toArray(KeyLock[]::new));
    }

    /**
     * Several locks, acquired in one step, each in its own mode: {@code all(lock("a"), readLock("b"), permits("c", 20))}.
     *
     * @throws IllegalArgumentException before anything is sent: one key in two modes, keys of several slots of a Cluster, no
     *     lock or more than 128, or a lock with options, which belong to the result
     */
    public AllLocks all(KeyLock... each) {
        var parts = Group.merged(Arrays.stream(each).map(KeyLock::part).toList(), topology);
        return new AllLocks(this, parts, Options.of(Mode.WRITE, leaseMillis));
    }

    /**
     * One of many keys: the write lock of the first that is free, and a permit of {@code pool}, for which callers wait in
     * line.
     *
     * @throws IllegalArgumentException if there is no key, or {@code pool} is one of them
     */
    public AnyLock any(String pool, String... keys) {
        List<String> each = Arrays.stream(keys).distinct().toList();
        if (each.isEmpty() || each.contains(pool))
            throw new IllegalArgumentException("at least one key, and a name for all of them that is none of them");
        return new AnyLock(permits(pool, each.size()).detached(), each.stream().map(key -> lock(key).detached()).toList());
    }

    /** Something that is to run once in each interval, on all machines together. */
    public Once once(String key, Duration every) {
        return new Once(lock(key).detached(), every.toMillis(), false);
    }

    /** An election: the leader holds the key's lock, in a session. Followers see {@code name}, for example an address. */
    public Election election(String key, String name) {
        return new Election(this, key, name);
    }

    /** The same with the name of this host and process. */
    public Election election(String key) {
        return election(key, Owners.PROCESS.substring(0, Owners.PROCESS.length() - 1));
    }

    /**
     * This thread's name as an owner, {@code host/pid/NAME-…} with the thread's name: the same for all its locks at
     * this server or Cluster. The first call asks a server for its identity.
     */
    public String threadOwner() {
        try {
            return prefix + Owners.ofThread(service("", links.timeoutMillis));
        } catch (ServerException refused) {
            throw LockException.of(refused);
        } catch (LinkException broken) {
            throw new LockException.Unavailable(broken.getMessage(), broken);
        }
    }

    /** A name that nobody else has. */
    public String newOwner() {
        return prefix + Owners.fresh();
    }

    /**
     * Acquires the lock of {@code key}, waits a moment for it as another owner, and releases it. A program that calls
     * it at its start finds out there whether the server, the password, TLS, the module or a permission would keep it
     * from its locks.
     *
     * @throws LockException if something would
     */
    public void check(String key) throws InterruptedException {
        KeyLock lock = lock(key).detached();
        Optional<Hold> first = lock.tryAcquire();
        try {
            lock.acquire(Duration.ofSeconds(1)).ifPresent(Hold::release); // long enough for a message
        } catch (LockException.Unavailable slow) { // a program that starts may be slower than that
            lock.acquire(Duration.ofMillis(Machine.PATIENCE)).ifPresent(Hold::release);
        } finally {
            first.ifPresent(Hold::release);
        }
    }

    /**
     * Sends any command to the primary of a key, on the package's own connections: {@code RLOCK.INFO}, a fenced write by
     * {@code EVAL}. It may be sent twice if a connection breaks: see {@link #callOnce}.
     *
     * @return a Long, a String or byte[], a List of these, or null; a map is a List of its keys and values in turn
     * @throws LockException.Unavailable if no server answered, or none decides for now, as with {@code -LOADING}
     * @throws LockException if the server refused it
     * @throws IllegalStateException if this is closed
     */
    public Object call(String key, String... words) {
        return call(key, true, words);
    }

    /**
     * The same for a command that must not be executed twice, like {@code INCR}: it is sent once. If the connection
     * breaks then, it is unknown whether it was executed.
     *
     * @throws LockException.Unavailable if no reply came: it may have been executed, or not
     * @throws LockException if the server refused it
     * @throws IllegalStateException if this is closed
     */
    public Object callOnce(String key, String... words) {
        return call(key, false, words);
    }

    private Object call(String key, boolean isRepeatable, String... words) {
        for (boolean again = !isRepeatable; ; again = true) {
            refuseClosed();
            try {
                return links.call(Links.Use.COMMAND, key, links.timeoutMillis, words);
            } catch (ServerException error) {
                throw LockException.of(error);
            } catch (LinkException broken) {
                // An idle connection may have ended long ago.
                if (again || broken.isNeverSent() || Links.isSilent(broken))
                    throw new LockException.Unavailable(broken.getMessage(), broken);
            }
        }
    }

    /** The current counters; no server is asked. */
    public Counters counters() {
        return notices.counters(tenures.size());
    }

    /**
     * Acquires nothing from now on, ends waits with an {@link IllegalStateException}, and waits until what is held has been
     * released; then closes this. An interrupt ends that wait as well.
     *
     * @return the keys that are still held when the time is up: their holds are lost at once, and others are kept out until
     *     the leases end
     */
    public List<String> drain(Duration timeout) {
        long end = Machine.after(Clock.now(), Acquirable.millis(timeout));
        links.drain();
        boolean isInterrupted = false;
        while (!closed && !isInterrupted && Clock.now() < end && !(links.jobs.isEmpty() && tenures.isEmpty())) {
            try {
                TimeUnit.MILLISECONDS.sleep(LOOK_MILLIS);
            } catch (InterruptedException interrupt) {
                isInterrupted = true;
            }
        }
        List<String> left = tenures.keySet().stream().flatMap(each -> each.seat().members().stream())
                .map(seat -> seat.name.key()).sorted().toList();
        close();
        if (isInterrupted) Thread.currentThread().interrupt();
        return left;
    }

    /** Stops renewing, and closes all connections: sessions end at once, other holds with their leases. */
    @Override
    public void close() {
        synchronized (this) {
            if (closed) return;
            closed = true;
        }
        Service.leave(service);
        tenures.keySet().forEach(Tenure::lose);
        observers.forEach(Election.Observer::close);
        asyncs.forEach(AsyncAcquisition::close);
        links.close();
        timer.shutdownNow();
        threads.shutdown();
        answers.shutdown();
        notices.close();
        try {
            // Waits for callbacks of the application, and for the undoing of abandoned waits; but a callback does not
            // wait for itself.
            if (!daemons.haveCaller() && !threads.awaitTermination(2, TimeUnit.SECONDS)) threads.shutdownNow();
        } catch (InterruptedException interrupt) {
            threads.shutdownNow();
            Thread.currentThread().interrupt();
        }
        driver.close();
    }

    // --- for the rest of the package

    Seat.Name name(String key, String owner, Mode mode) {
        return new Seat.Name(service(key, links.timeoutMillis), key, owner, mode);
    }

    /** Asks the servers for their identity, if it is not known. */
    Service service(String key, long limitMillis) {
        if (service == null) links.meet(key, limitMillis);
        return service;
    }

    long leaseMillis() {
        return leaseMillis;
    }

    String prefix() {
        return prefix;
    }

    boolean isIdentified() {
        return service != null;
    }

    boolean isClosed() {
        return closed;
    }

    void refuseClosed() {
        if (closed) throw closed();
    }

    void refuseDraining() {
        if (links.isDraining()) throw closed();
    }

    /** The identity of a server is known. */
    synchronized void met(String runId) {
        if (closed) return;
        Set<String> ids = Stream.concat(topology.ids().stream(), Stream.of(runId))
                .filter(id -> !id.isEmpty()).map(id -> id + "/" + driver.database()).collect(Collectors.toSet());
        service = Service.of(ids, service);
    }

    Future<?> after(long millis, Runnable work) {
        try {
            return timer.schedule(work, Math.max(0, millis), TimeUnit.MILLISECONDS);
        } catch (RejectedExecutionException closing) {
            return null;
        }
    }

    void background(Runnable work) {
        threads.execute(work);
    }

    /** Runs the work in the background; at once while this is being closed. */
    void tell(Runnable work) {
        try {
            threads.execute(work);
        } catch (RejectedExecutionException closing) {
            work.run();
        }
    }

    /** Completes a future, in a thread where the application's callbacks delay no lock. */
    void answer(Runnable work) {
        try {
            answers.execute(work);
        } catch (RejectedExecutionException closing) {
            work.run();
        }
    }

    /** Registers it, so that it ends when this is closed. */
    void begins(AsyncAcquisition async) {
        asyncs.add(async);
        if (closed) async.close();
    }

    void ends(AsyncAcquisition async) {
        asyncs.remove(async);
    }

    /** Registers a hold, which is lost at once if this was closed meanwhile. */
    void remember(Tenure tenure) {
        tenures.put(tenure, true);
        if (closed) tenure.lose();
    }

    static IllegalStateException closed() {
        return new IllegalStateException("this Locks is closed");
    }

    void forget(Tenure tenure) {
        tenures.remove(tenure);
    }

    /** How to reach the servers, and a few settings. */
    public static final class Builder {
        private final Driver driver;
        private final Topology topology;
        private long timeoutMillis = Machine.REPLY;
        private long leaseMillis = 30_000;
        private long outageMillis = Machine.FOREVER;
        private String prefix = "";
        private LockListener listener;

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

        /** How long a reply may take, in addition to the wait; 2 s is the default and the maximum. */
        public Builder timeout(Duration limit) {
            timeoutMillis = Math.max(1, Math.min(Machine.REPLY, limit.toMillis()));
            return this;
        }

        /** A wait gives up after this time without a server; by default, it waits until its own time is up. */
        public Builder outage(Duration most) {
            outageMillis = Acquirable.millis(most);
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

        /** Sets the listener of waits, holds and losses; there is only one. */
        public Builder listener(LockListener heard) {
            listener = heard;
            return this;
        }

        /** Creates the {@code Locks}; nothing is sent yet. */
        public Locks open() {
            return new Locks(this);
        }
    }
}
