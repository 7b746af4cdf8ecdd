package rlock.redisson;

import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import org.redisson.RedissonMultiLock;
import org.redisson.api.LockOptions;
import org.redisson.api.RFencedLock;
import org.redisson.api.RKeys;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.api.options.CommonOptions;
import org.redisson.api.options.CommonParams;
import org.redisson.api.options.KeysOptions;
import org.redisson.config.NameMapper;
import org.redisson.misc.Hash;
import rlock.KeyLock;
import rlock.Locks;

/** The part of {@link RedissonClient} that concerns locks. An owner is a client and a thread, as in Redisson. */
@SuppressWarnings("unused") // called by Answers
final class Client {
    /** How many locks the server grants in one step. */
    private static final int MOST = 128;

    final RedissonClient redisson;
    final Locks locks;
    private final boolean owned;
    private final String id;
    private final NameMapper names;
    private final Duration lease;
    private final boolean readersJoin;
    final Reads reads = new Reads(this);

    Client(RedissonClient redisson, Locks locks, boolean owned, Readers readers) {
        this.redisson = redisson;
        this.locks = locks;
        this.owned = owned;
        this.readersJoin = readers == Readers.JOIN;
        this.id = redisson.getId();
        this.names = Servers.names(redisson.getConfig());
        this.lease = Duration.ofMillis(redisson.getConfig().getLockWatchdogTimeout());
    }

    boolean readersJoin() {
        return readersJoin;
    }

    String id() {
        return id;
    }

    /** The name of an owner. */
    String owner(long thread) {
        return id + ":" + thread;
    }

    String key(String name) {
        return names.map(name);
    }

    String name(String key) {
        return names.unmap(key);
    }

    /** The key of something that belongs to another key, in the same slot. */
    static String key(String key, String suffix) {
        return key.contains("{") ? key + ":" + suffix : "{" + key + "}:" + suffix;
    }

    private RLock lock(KeyLock lock) {
        return Answers.lock(lockOf(lock, true));
    }

    private OneLock lockOf(KeyLock lock, boolean isReentrant) {
        return new OneLock(this, lock.lease(lease), isReentrant);
    }

    Duration lease() {
        return lease;
    }

    private static String nameOf(CommonOptions options) {
        return ((CommonParams) options).getName();
    }

    // --- the methods of the interface

    public RLock getLock(String name) {
        return lock(locks.lock(key(name)));
    }

    public RLock getLock(CommonOptions options) {
        return getLock(nameOf(options));
    }

    /** Every lock is fair. */
    public RLock getFairLock(String name) {
        return getLock(name);
    }

    public RLock getFairLock(CommonOptions options) {
        return getLock(options);
    }

    /** The same as a lock: there is no subscription to save. */
    public RLock getSpinLock(String name) {
        return getLock(name);
    }

    public RLock getSpinLock(String name, LockOptions.BackOff backOff) {
        return getLock(name);
    }

    public RLock getNonReentrantLock(String name) {
        return Answers.lock(lockOf(locks.lock(key(name)), false));
    }

    public RLock getNonReentrantLock(CommonOptions options) {
        return getNonReentrantLock(nameOf(options));
    }

    public RLock getNonReentrantFairLock(String name) {
        return getNonReentrantLock(name);
    }

    public RLock getNonReentrantFairLock(CommonOptions options) {
        return getNonReentrantLock(options);
    }

    /** Every lock has tokens. */
    public RFencedLock getFencedLock(String name) {
        return Answers.lock(lockOf(locks.lock(key(name)), true));
    }

    public RFencedLock getFencedLock(CommonOptions options) {
        return getFencedLock(nameOf(options));
    }

    public RReadWriteLock getReadWriteLock(String name) {
        RLock read = lock(locks.readLock(key(name)));
        RLock write = getLock(name);
        return new RReadWriteLock() {
            @Override
            public RLock readLock() {
                return read;
            }

            @Override
            public RLock writeLock() {
                return write;
            }
        };
    }

    public RReadWriteLock getReadWriteLock(CommonOptions options) {
        return getReadWriteLock(nameOf(options));
    }

    /** Redisson's, except for the types of locks. */
    public RKeys getKeys() {
        RKeys keys = redisson.getKeys();
        return Answers.of(RKeys.class, new KeyTypes(keys, locks), keys);
    }

    public RKeys getKeys(KeysOptions options) {
        RKeys keys = redisson.getKeys(options);
        return Answers.of(RKeys.class, new KeyTypes(keys, locks), keys);
    }

    /**
     * Acquired in one step, if all of them are locks of this client. For locks of several clients, or more locks than
     * the server grants in one step, it is Redisson's own.
     */
    public RLock getMultiLock(RLock... each) {
        if (each.length > MOST) return new RedissonMultiLock(each);
        boolean areOurs = Arrays.stream(each).allMatch(lock -> Answers.handlerOf(lock) != null && Answers.handlerOf(lock).client.locks == locks);
        if (!areOurs) return new RedissonMultiLock(each);
        return several(Arrays.stream(each).map(lock -> Answers.handlerOf(lock).plain()).toArray(KeyLock[]::new));
    }

    /** One lock for each value of the group. */
    public RLock getMultiLock(String group, Collection<Object> values) {
        KeyLock[] each = values.stream().map(value -> locks.lock(key(key(group), text(value)))).toArray(KeyLock[]::new);
        return each.length > MOST ? new RedissonMultiLock(Arrays.stream(each).map(this::lock).toArray(RLock[]::new)) : several(each);
    }

    private RLock several(KeyLock... each) {
        return Answers.of(RLock.class, new MultiLock(this, locks.all(each).lease(lease), each), null);
    }

    private String text(Object value) {
        if (value instanceof CharSequence || value instanceof Number) return value.toString();
        try {
            var encoded = redisson.getConfig().getCodec().getValueEncoder().encode(value);
            try {
                return Hash.hash128toBase64(encoded);
            } finally {
                encoded.release();
            }
        } catch (java.io.IOException broken) {
            throw new IllegalArgumentException("cannot be encoded: " + value, broken);
        }
    }

    /** A majority of several servers is not supported. */
    public RLock getRedLock(RLock... each) {
        throw new UnsupportedOperationException("RedissonClient.getRedLock is not supported by rlock-redisson: "
                + "use one lock of a server with replicas, and rlock.acks there");
    }

    public RPermitExpirableSemaphore getPermitExpirableSemaphore(String name) {
        return Answers.of(RPermitExpirableSemaphore.class, new Permits(this, name), null);
    }

    public RPermitExpirableSemaphore getPermitExpirableSemaphore(CommonOptions options) {
        return getPermitExpirableSemaphore(nameOf(options));
    }

    public void shutdown() {
        close();
        redisson.shutdown();
    }

    public void shutdown(long quietPeriod, long timeout, TimeUnit unit) {
        close();
        redisson.shutdown(quietPeriod, timeout, unit);
    }

    public CompletionStage<Void> shutdownAsync() {
        close();
        return redisson.shutdownAsync();
    }

    public CompletionStage<Void> shutdownAsync(Duration quietPeriod, Duration timeout) {
        close();
        return redisson.shutdownAsync(quietPeriod, timeout);
    }

    private void close() {
        if (owned) locks.close();
    }
}
