import java.util.UUID;
import java.util.function.Supplier;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.util.SafeEncoder;
import rlock.KeyLock;
import rlock.jedis.JedisLocks;

/** The locks by name: Redisson's locks, and RLOCK's commands sent with Jedis. */
final class Handles {
    private static final int PORT = Integer.parseInt(System.getenv("PEER_PORT"));

    static Supplier<Worker.Handle> of(String lock) {
        String key = System.getenv("PEER_KEY");
        return switch (lock) {
            case "RLock" -> redisson(client().getLock(key));
            case "FairLock" -> redisson(client().getFairLock(key));
            case "write" -> redisson(client().getReadWriteLock(key).writeLock());
            case "read" -> redisson(client().getReadWriteLock(key).readLock());
            case "RLOCK" -> () -> new Native(key, "WRITE", "BLOCK", "0");
            case "SESSION" -> () -> new Native(key, "WRITE", "BLOCK", "0", "SESSION");
            case "package" -> viaPackage(key);
            case "READ" -> () -> new Native(key, "READ", "BLOCK", "0");
            default -> throw new IllegalArgumentException("no lock is called " + lock);
        };
    }

    private static RedissonClient client() {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + PORT);
        return Redisson.create(config);
    }

    /** Threads share the client and the lock object; the owner is the thread. */
    private static Supplier<Worker.Handle> redisson(RLock lock) {
        return () -> new Worker.Handle() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    /** This project's package with Jedis. Threads share it; the owner is the thread. */
    private static Supplier<Worker.Handle> viaPackage(String key) {
        KeyLock lock = JedisLocks.standalone("127.0.0.1", PORT).open().lock(key);
        return () -> new Worker.Handle() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    private enum Command implements ProtocolCommand {
        ACQUIRE,
        RELEASE;

        private final byte[] raw = SafeEncoder.encode("RLOCK." + name());

        @Override
        public byte[] getRaw() {
            return raw;
        }
    }

    private static final class Native implements Worker.Handle {
        private final Jedis connection = new Jedis("127.0.0.1", PORT);
        private final String[] acquire;
        private final String[] release;

        Native(String key, String mode, String... options) {
            String owner = UUID.randomUUID().toString();
            release = new String[] {key, owner, mode};
            acquire = java.util.Arrays.copyOf(release, 3 + options.length);
            System.arraycopy(options, 0, acquire, 3, options.length);
        }

        @Override
        public void acquire() {
            if (connection.sendBlockingCommand(Command.ACQUIRE, acquire) == null) {
                throw new IllegalStateException("BLOCK 0 waits for ever, but the reply was nil");
            }
        }

        @Override
        public void release() {
            connection.sendCommand(Command.RELEASE, release);
        }
    }
}
