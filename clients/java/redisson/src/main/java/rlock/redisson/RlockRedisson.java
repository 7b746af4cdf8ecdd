package rlock.redisson;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import rlock.Locks;

/**
 * Redisson clients whose locks are RLOCK's: {@code RedissonClient redisson = RlockRedisson.create(config)}. Everything
 * that is not a lock or a permit with a lease remains Redisson's own, and so do the locks of {@code reactive()}, {@code
 * rxJava()}, batches, transactions and maps.
 */
public final class RlockRedisson {
    private RlockRedisson() {}

    /**
     * Replaces {@code Redisson.create(config)}. The client's {@code shutdown} closes the locks as well.
     *
     * @throws IllegalArgumentException if the configuration has something that the locks' connections do not support:
     *     then make the {@link Locks} yourself, and use {@link #over}
     */
    public static RedissonClient create(Config config) {
        return create(config, Readers.QUEUE);
    }

    /** The same, with a choice whether readers join the other readers of the client. */
    public static RedissonClient create(Config config, Readers readers) {
        Locks locks = Servers.locks(config);
        try {
            return client(Redisson.create(config), locks, true, readers);
        } catch (RuntimeException failed) {
            locks.close();
            throw failed;
        }
    }

    /** A client with these locks. Its {@code shutdown} is that of {@code redisson}; you close the locks yourself. */
    public static RedissonClient over(RedissonClient redisson, Locks locks) {
        return over(redisson, locks, Readers.QUEUE);
    }

    /** The same, with a choice whether readers join the other readers of the client. */
    public static RedissonClient over(RedissonClient redisson, Locks locks, Readers readers) {
        return client(redisson, locks, false, readers);
    }

    /**
     * Redisson's own client, behind a client from {@link #create} or {@link #over}, for code that casts it to {@link
     * Redisson}: for example Redisson's connections for Spring Data. Its locks exclude none of RLOCK's.
     *
     * @throws IllegalArgumentException if the client is not from one of these
     */
    public static RedissonClient plain(RedissonClient client) {
        return Answers.rest(client);
    }

    private static RedissonClient client(RedissonClient redisson, Locks locks, boolean owned, Readers readers) {
        return Answers.of(RedissonClient.class, new Client(redisson, locks, owned, readers), redisson);
    }
}
