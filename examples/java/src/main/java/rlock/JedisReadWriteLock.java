package rlock;

import java.util.UUID;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.stream.Stream;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/**
 * A reentrant ReadWriteLock by Jedis. Copy this file. The owner is the thread; a watchdog renews what is held. A wait
 * takes a connection of the pool for itself; give the client a blockingSocketTimeoutMillis above the longest wait.
 */
public final class JedisReadWriteLock implements ReadWriteLock {
    /** The wait would never end. Let go of what you hold, then begin again. */
    public static final class DeadlockException extends RuntimeException {
        DeadlockException(JedisDataException cause) { super(cause); }
    }

    /** The hold was over before it was released: others may have worked at the same time. */
    public static final class LockLostException extends IllegalMonitorStateException {
        LockLostException(String key) { super(key + " was lost before it was released"); }
    }

    private enum Command implements ProtocolCommand {
        ACQUIRE, RELEASE, RENEW;

        @Override public byte[] getRaw() { return ("RLOCK." + name()).getBytes(); }
    }

    private static final String PROCESS = UUID.randomUUID().toString();
    private final ScheduledExecutorService watchdog;
    private final UnifiedJedis jedis;
    private final String key;
    private final long leaseMs; // of each hold, renewed every third of it
    private final ModeLock readLock = new ModeLock("READ"), writeLock = new ModeLock("WRITE");

    /** {@code watchdog} renews, for all locks: one thread, or more where many are held at once. */
    public JedisReadWriteLock(UnifiedJedis jedis, ScheduledExecutorService watchdog, String key, long leaseMs) {
        this.jedis = jedis;
        this.watchdog = watchdog;
        this.key = key;
        this.leaseMs = leaseMs;
    }

    @Override public ModeLock readLock() { return readLock; }
    @Override public ModeLock writeLock() { return writeLock; }
    /** One half of the lock, for all threads. */
    public final class ModeLock implements Lock {
        private final String mode;
        private final ThreadLocal<Hold> holds = new ThreadLocal<>();
        private ModeLock(String mode) { this.mode = mode; }
        @Override public void lock() { acquire("BLOCK", "0"); }
        @Override public boolean tryLock() { return acquire(); }

        @Override public boolean tryLock(long time, TimeUnit unit) {
            // BLOCK 0 would wait for ever, and tryLock(0, …) waits not at all.
            return time <= 0 ? acquire() : acquire("BLOCK", String.valueOf(Math.max(1, unit.toMillis(time))));
        }

        /** One level down. LockLostException: the hold was over before, which is then the caller's to repair. */
        @Override public void unlock() {
            Hold hold = holds.get();
            if (hold == null) throw new IllegalMonitorStateException(key + " is not held by this thread");
            boolean wasSure = hold.isSure();
            if (--hold.depth == 0) {
                holds.remove();
                hold.renewal.cancel(false);
            }
            // "Down to this depth", sent again or too late, changes nothing and is no error.
            send(Command.RELEASE, key, hold.owner, mode, "DEPTH", String.valueOf(hold.depth));
            if (!wasSure) throw new LockLostException(key);
        }

        /** The fencing token of this thread's hold; whatever is written to should refuse a smaller one. */
        public long token() { return holds.get().token; }

        /** Whether this thread's hold is sure: told by the watchdog, and by the clock if no renewal gets through. */
        public boolean isHeld() { return holds.get() != null && holds.get().isSure(); }

        private boolean acquire(String... wait) {
            Hold hold = holds.get();
            if (hold != null && !hold.isSure()) throw new LockLostException(key);
            String owner = PROCESS + ":" + Thread.currentThread().getId();
            String depth = hold == null ? "1" : String.valueOf(hold.depth + 1);
            String[] words = {key, owner, mode, "LEASE", String.valueOf(leaseMs), "DEPTH", depth};
            try {
                Object token = send(Command.ACQUIRE, Stream.of(words, wait).flatMap(Stream::of).toArray(String[]::new));
                if (token == null) return false;
                if (hold == null) holds.set(hold = new Hold(owner, mode, (Long) token));
                hold.depth++;
                return true;
            } catch (JedisDataException error) {
                throw error.getMessage().startsWith("DEADLOCK") ? new DeadlockException(error) : error;
            }
        }

        /** A socket that waits hears of no interrupt. */
        @Override public void lockInterruptibly() { throw new UnsupportedOperationException("use tryLock with a time"); }
        @Override public Condition newCondition() { throw new UnsupportedOperationException(); }
    }

    private final class Hold {
        final String owner, mode;
        final long token;
        final ScheduledFuture<?> renewal;
        int depth;
        private volatile long sureUntil = System.nanoTime() + leaseMs * 1_000_000;

        Hold(String owner, String mode, long token) {
            this.owner = owner;
            this.mode = mode;
            this.token = token;
            renewal = watchdog.scheduleAtFixedRate(this::renew, leaseMs / 3, leaseMs / 3, TimeUnit.MILLISECONDS);
        }

        boolean isSure() { return System.nanoTime() - sureUntil < 0; }

        private void renew() {
            long sent = System.nanoTime();
            try {
                send(Command.RENEW, key, owner, mode, "LEASE", String.valueOf(leaseMs), "TOKEN", String.valueOf(token));
                sureUntil = sent + leaseMs * 1_000_000;
            } catch (JedisException error) {
                // Anything else: the next turn tries again, and the clock runs.
                if (error.getMessage().startsWith("NOTHELD")) sureUntil = sent;
            }
        }
    }

    /** Jedis throws when a connection breaks. All that is sent here may arrive twice, so it is sent once more. */
    private Object send(Command command, String... words) {
        try {
            return sendOnce(command, words);
        } catch (JedisConnectionException broken) {
            return sendOnce(command, words);
        }
    }

    private Object sendOnce(Command command, String... words) {
        return command == Command.ACQUIRE ? jedis.sendBlockingCommand(command, words) : jedis.sendCommand(command, words);
    }
}
