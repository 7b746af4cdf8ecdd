package rlock;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/** Who leads: whoever holds the lock of the key, in a session. Immutable and thread-safe, made by {@link Locks#election}. */
public final class Election {
    private static final System.Logger LOG = System.getLogger("rlock");
    /** So long a leader is believed whose network says nothing. */
    private static final Duration LEASE = Duration.ofSeconds(10);

    private final Locks locks;
    private final String key;
    private final String name;

    Election(Locks locks, String key, String name) {
        this.locks = locks;
        this.key = Owners.checked("key", key);
        this.name = Owners.checked("name", name);
    }

    /** Who leads: the token and the owner's name of the hold, and the name that the election was given. */
    public record Leader(long token, String owner, String name) {}

    /** Waits to lead, forever, and ignores interrupts. */
    public Hold campaign() {
        return term().acquire();
    }

    /**
     * Waits to lead, at most this long, or until interrupted; empty if it was not in time. The hold is lost as soon as its
     * connection ends. Each campaign is its own owner: a process that leads does not lead twice.
     */
    public Optional<Hold> campaign(Duration wait) throws InterruptedException {
        return term().acquire(wait);
    }

    private KeyLock term() {
        String unique = Owners.fresh();
        return locks.lock(key).lease(LEASE).session().owner(locks.prefix() + name + unique.substring(unique.lastIndexOf('/')));
    }

    /** Who leads now; empty if nobody does. */
    public Optional<Leader> leader() {
        return leader(locks.call(key, "RLOCK.AWAIT", key, "0"));
    }

    private Optional<Leader> leader(Object reply) {
        if (!(reply instanceof List<?> pair) || pair.get(1) == null) return Optional.empty();
        String owner = Topology.text(pair.get(1));
        String given = owner.startsWith(locks.prefix()) ? owner.substring(locks.prefix().length()) : owner;
        int end = given.lastIndexOf('/');
        return Optional.of(new Leader((Long) pair.get(0), owner, end < 0 ? given : given.substring(0, end)));
    }

    /**
     * Tells who leads, at first and whenever that changes, until the result is closed. It has a thread, in which {@code
     * heard} runs, and a connection. Who is slow hears the latest change only.
     */
    public Observer observe(Consumer<Optional<Leader>> heard) {
        locks.refuseClosed();
        var observer = new Observer(heard);
        locks.observers.add(observer);
        locks.background(observer::run);
        return observer;
    }

    /** Observes an election until it is closed. */
    public final class Observer implements AutoCloseable {
        private final Consumer<Optional<Leader>> heard;
        private Link link; // guarded by this
        private long token = -1; // what was told last
        private boolean closed; // guarded by this

        private Observer(Consumer<Optional<Leader>> heard) {
            this.heard = heard;
        }

        private void run() {
            long pause = Machine.FIRST_PAUSE;
            while (!isClosed()) {
                try {
                    Object reply = ask();
                    pause = Machine.FIRST_PAUSE;
                    if (reply == null && token >= 0) continue;
                    Optional<Leader> leads = leader(reply);
                    token = leads.map(Leader::token).orElse(0L);
                    if (!isClosed()) tell(leads);
                } catch (ServerException | LinkException failed) {
                    leave();
                    if (isClosed()) return;
                    pause = rest(failed, pause);
                }
            }
        }

        private Object ask() {
            Link own = link();
            if (token < 0) return own.call(locks.links.timeoutMillis, "RLOCK.AWAIT", key, "0");
            return own.call(Machine.LOOKS + Machine.REPLY, "RLOCK.AWAIT", key, String.valueOf(token), "BLOCK", String.valueOf(Machine.LOOKS));
        }

        private Link link() {
            synchronized (this) {
                if (link != null) return link;
            }
            long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(locks.links.timeoutMillis);
            Link opened = locks.links.open(locks.links.primary(key, end), end);
            synchronized (this) {
                link = opened;
                if (closed) leave();
            }
            return opened;
        }

        private long rest(RuntimeException failed, long pause) {
            boolean passes = true;
            if (failed instanceof ServerException error) {
                passes = Machine.passes(error.code());
                if (error.code().equals("MOVED")) locks.links.redirected(error, key, locks.links.topology.primary(key));
            }
            locks.links.refresh();
            // It may be allowed again.
            if (!passes) LOG.log(System.Logger.Level.WARNING, key + ": who leads is not known: " + failed.getMessage());
            try {
                TimeUnit.MILLISECONDS.sleep(passes ? pause : Machine.LOOKS);
            } catch (InterruptedException closing) {
                close();
            }
            return Math.min(2 * pause, Machine.LONGEST_PAUSE);
        }

        private void tell(Optional<Leader> leads) {
            try {
                heard.accept(leads);
            } catch (Throwable theirs) {
                // Whatever it is, also an Error, this thread has more to tell.
                LOG.log(System.Logger.Level.WARNING, key + ": an observer failed", theirs);
            }
        }

        private synchronized void leave() {
            if (link != null) link.close();
            link = null;
        }

        private synchronized boolean isClosed() {
            return closed;
        }

        /** Ends it. What is being told at the moment goes on. */
        @Override
        public synchronized void close() {
            closed = true;
            locks.observers.remove(this);
            leave();
        }
    }
}
