package rlock.shedlock;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import rlock.Hold;
import rlock.LockException;
import rlock.LockLostException;
import rlock.Locks;

/**
 * ShedLock's locks: {@code lockAtMostFor} is the lease. Until {@code lockAtLeastFor} has passed, an unlocked lock
 * remains as a shared hold that keeps all other tasks out. Extending moves the deadline later, never earlier.
 */
public final class RlockLockProvider implements ExtensibleLockProvider {
    private static final Logger LOG = System.getLogger(RlockLockProvider.class.getName());
    private final Locks locks;
    private final String prefix;

    /** With keys that begin with {@code shedlock:}. */
    public RlockLockProvider(Locks locks) {
        this(locks, "shedlock:");
    }

    /** With {@code prefix} and the name of the task as the key. */
    public RlockLockProvider(Locks locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        return locks.lock(prefix + configuration.getName())
                .detached()
                .fixedLease(atLeastOneMilli(configuration.getLockAtMostFor()))
                .tryAcquire()
                .map(hold -> new Held(locks, configuration, hold));
    }

    private static Duration atLeastOneMilli(Duration lease) {
        return lease.toMillis() < 1 ? Duration.ofMillis(1) : lease;
    }

    private static final class Held extends AbstractSimpleLock {
        private final Locks locks;
        private final Hold hold;

        Held(Locks locks, LockConfiguration configuration, Hold hold) {
            super(configuration);
            this.locks = locks;
            this.hold = hold;
        }

        // ShedLock unlocks while an exception of the task propagates, which an exception here would replace.
        @Override
        protected void doUnlock() {
            try {
                Duration rest = Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil());
                if (rest.toMillis() > 0) stay(rest);
                hold.release();
            } catch (LockLostException over) {
                LOG.log(Level.WARNING, "{0} ran longer than lockAtMostFor: another one may have run at the same time",
                        lockConfiguration.getName());
            } catch (LockException | IllegalStateException unknown) { // or these locks are closed
                LOG.log(Level.WARNING, lockConfiguration.getName() + " is not known to be unlocked: its lock ends after lockAtMostFor", unknown);
            }
        }

        // READ in addition to one's own WRITE is granted at once; it remains when WRITE ends, and ends with its own
        // lease.
        private void stay(Duration rest) {
            try {
                locks.call(hold.key(), "RLOCK.ACQUIRE", hold.key(), hold.owner(),
                        "READ", "LEASE", String.valueOf(rest.toMillis()), "DEPTH", "1");
            } catch (LockException | IllegalStateException failed) { // or these locks are closed
                LOG.log(Level.WARNING, lockConfiguration.getName() + " is unlocked before lockAtLeastFor is over", failed);
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration longer) {
            try {
                hold.renew(atLeastOneMilli(longer.getLockAtMostFor()));
                return Optional.of(new Held(locks, longer, hold));
            } catch (LockLostException over) {
                return Optional.empty();
            }
        }
    }
}
