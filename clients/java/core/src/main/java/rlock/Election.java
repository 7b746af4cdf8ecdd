package rlock;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import rlock.Driver.ServerException;

/** An election: the leader holds the lock of the key, in a session. Immutable and thread-safe, made by {@link Locks#election}. */
public final class Election {
    private static final System.Logger LOG = System.getLogger("rlock");
    /** How long a leader whose network is silent still counts as the leader. */
    private static final Duration LEASE = Duration.ofSeconds(10);

    private final Locks locks;
    private final String key;
    private final String name;

    Election(Locks locks, String key, String name) {
        this.locks = locks;
        this.key = Owners.checked("key", key);
        this.name = Owners.checked("name", name);
    }

    /** A leader: the token and the owner's name of its hold, and the name that the election was given. */
    public record Leader(long token, String owner, String name) {}

    /** Waits to lead, without a limit, and ignores interrupts. */
    public Hold campaign() {
        return term().acquire();
    }

    /**
     * Waits to lead, at most this long, or until interrupted; empty if it does not lead by then. The hold is lost as
     * soon as its connection ends. Each campaign is its own owner: a process that leads does not lead twice.
     */
    public Optional<Hold> campaign(Duration wait) throws InterruptedException {
        return term().acquire(wait);
    }

    private KeyLock term() {
        String unique = Owners.fresh();
        return locks.lock(key).lease(LEASE).session().owner(locks.prefix() + name + unique.substring(unique.lastIndexOf('/')));
    }

    /** The current leader; empty if there is none. */
    public Optional<Leader> leader() {
        Object reply = locks.call(key, "RLOCK.AWAIT", key, "0");
        if (!(reply instanceof List<?> pair) || pair.get(1) == null) return Optional.empty();
        return leader((Long) pair.get(0), Topology.text(pair.get(1)));
    }

    private Optional<Leader> leader(long token, String owner) {
        if (token == 0) return Optional.empty();
        String given = owner.startsWith(locks.prefix()) ? owner.substring(locks.prefix().length()) : owner;
        int end = given.lastIndexOf('/');
        return Optional.of(new Leader(token, owner, end < 0 ? given : given.substring(0, end)));
    }

    /**
     * Reports the current leader, and then each new one, until the result is closed. {@code heard} runs in a thread of
     * the package, once at a time. If it is slow, it gets only the latest change.
     */
    public Observer observe(Consumer<Optional<Leader>> heard) {
        locks.refuseClosed();
        var observer = new Observer(heard);
        locks.observers.add(observer);
        observer.watch.ask();
        return observer;
    }

    /** Observes an election until it is closed. */
    public final class Observer implements AutoCloseable {
        private final Consumer<Optional<Leader>> heard;
        private final Watch watch = new Watch(
                locks.links, key, -1, Machine.LOOKS, (token, owner) -> leads(leader(token, owner)), this::refused);
        private Optional<Leader> latest; // the leader that the observer has not got yet, or null; from here on guarded by this
        private CompletableFuture<Void> telling = CompletableFuture.completedFuture(null);
        private boolean closed;

        private Observer(Consumer<Optional<Leader>> heard) {
            this.heard = heard;
        }

        private synchronized void leads(Optional<Leader> leader) {
            latest = leader;
            telling = telling.thenRunAsync(this::tell, locks::tell);
        }

        private void tell() {
            Optional<Leader> leader;
            synchronized (this) {
                leader = closed ? null : latest;
                latest = null;
            }
            try {
                if (leader != null) heard.accept(leader);
            } catch (Throwable theirs) {
                // Whatever the observer throws, even an Error, later leaders are still reported.
                LOG.log(System.Logger.Level.WARNING, key + ": an observer failed", theirs);
            }
        }

        private void refused(ServerException error) {
            LOG.log(System.Logger.Level.WARNING, key + ": who leads is not known: " + error.getMessage());
        }

        /** Ends it. A call of the observer that is in progress continues. */
        @Override
        public void close() {
            synchronized (this) {
                closed = true;
            }
            locks.observers.remove(this);
            watch.close();
        }
    }
}
