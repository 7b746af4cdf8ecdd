package rlock;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Locks by Lettuce, whose one connection is shared by all threads and must not block. Copy this file. QUEUE keeps a
 * place in the line; rlock.turn:OWNER says when to ask again. The message is a hint: who hears nothing asks again
 * before the place ends. Needs {@code notify-keyspace-events KEd}. Lettuce sends again by itself what a broken
 * connection left without a reply; DEPTH makes that harmless. A ticket waits for nobody and so is in no cycle: the
 * only -DEADLOCK is for WRITE on top of one's own READ.
 */
public final class LettuceLocks implements AutoCloseable {
    /** The hold was over before it was released: others may have worked at the same time. */
    public static final class LockLostException extends IllegalStateException {
        LockLostException(String key) { super(key + " was lost before it was released"); }
    }

    private enum Command implements ProtocolKeyword {
        ACQUIRE, RELEASE, RENEW, CANCEL;

        @Override public byte[] getBytes() { return ("RLOCK." + name()).getBytes(); }
    }

    /** How long a place lasts unless asked for again: a client that dies is passed over after that. */
    private static final long PLACE_MS = 3_000;

    private final String process = UUID.randomUUID().toString();
    private final AtomicLong owners = new AtomicLong();
    private final Map<String, CompletableFuture<Void>> turns = new ConcurrentHashMap<>();
    private final ScheduledExecutorService clock = Executors.newSingleThreadScheduledExecutor();
    private final RedisAsyncCommands<String, String> redis;
    private final StatefulRedisPubSubConnection<String, String> ears;

    /** Subscribes, once for all locks: it must listen before it asks, or it could miss its turn. */
    public LettuceLocks(RedisClient client, RedisURI uri) {
        redis = client.connect(uri).async();
        ears = client.connectPubSub(uri);
        ears.addListener(new RedisPubSubAdapter<>() {
            @Override public void message(String pattern, String channel, String key) {
                CompletableFuture<Void> turn = turns.get(channel.substring(channel.indexOf("turn:") + 5));
                if (turn != null) turn.complete(null);
            }
        });
        ears.sync().psubscribe("__keyevent@" + uri.getDatabase() + "__:rlock.turn:" + process + ":*");
    }

    /** A hold; empty when the wait was over before. With waitMs 0 it asks once. */
    public CompletableFuture<Optional<Hold>> acquire(String key, String mode, long waitMs, long leaseMs) {
        String owner = process + ":" + owners.incrementAndGet();
        return ask(new String[] {key, owner, mode}, System.nanoTime() + waitMs * 1_000_000, leaseMs)
            .whenComplete((hold, error) -> turns.remove(owner));
    }

    private CompletableFuture<Optional<Hold>> ask(String[] lock, long end, long leaseMs) {
        long leftMs = (end - System.nanoTime()) / 1_000_000, sent = System.nanoTime();
        CompletableFuture<Void> turn = new CompletableFuture<>();
        turns.put(lock[1], turn);
        CommandArgs<String, String> words = words(lock).add("LEASE").add(leaseMs).add("DEPTH").add(1);
        if (leftMs > 0) words.add("QUEUE").add(PLACE_MS);
        return send(Command.ACQUIRE, words).thenCompose(token -> {
            if (token != null) return CompletableFuture.completedFuture(Optional.of(new Hold(lock, leaseMs, token, sent)));
            // Without a word the place would keep others waiting until it ends.
            if (leftMs <= 0) return send(Command.CANCEL, words(lock[0], lock[1])).thenApply(withdrawn -> Optional.empty());
            return turn.completeOnTimeout(null, Math.min(leftMs, PLACE_MS / 3), TimeUnit.MILLISECONDS)
                .thenCompose(hint -> ask(lock, end, leaseMs));
        });
    }

    /** A lock that is held, renewed every third of its lease until it is released. */
    public final class Hold {
        /** Greater than every token before it: whatever is written to should refuse a smaller one. */
        public final long token;
        /** Fails when the hold is lost, or no renewal got through for a lease. */
        public final CompletableFuture<Void> lost = new CompletableFuture<>();
        private final String[] lock;
        private final long leaseMs;
        private final ScheduledFuture<?> renewal;
        private volatile long sureUntil;

        private Hold(String[] lock, long leaseMs, long token, long sent) {
            this.lock = lock;
            this.leaseMs = leaseMs;
            this.token = token;
            sureUntil = sent + leaseMs * 1_000_000;
            renewal = clock.scheduleAtFixedRate(this::renew, leaseMs / 3, leaseMs / 3, TimeUnit.MILLISECONDS);
        }

        /** Fails with LockLostException when the hold was over before. */
        public CompletableFuture<Void> release() {
            renewal.cancel(false);
            // "Down to depth 0", sent again or too late, changes nothing and is no error.
            return send(Command.RELEASE, words(lock).add("DEPTH").add(0)).thenCompose(depth -> {
                lost.complete(null);
                return lost;
            });
        }

        private void renew() {
            long sent = System.nanoTime();
            if (sent - sureUntil >= 0) lose();
            send(Command.RENEW, words(lock).add("LEASE").add(leaseMs).add("TOKEN").add(token)).whenComplete((one, error) -> {
                if (error == null) sureUntil = sent + leaseMs * 1_000_000;
                else if (error instanceof RedisCommandExecutionException && error.getMessage().startsWith("NOTHELD")) lose();
            });
        }

        private void lose() {
            renewal.cancel(false);
            lost.completeExceptionally(new LockLostException(lock[0]));
        }
    }

    private CompletableFuture<Long> send(Command command, CommandArgs<String, String> words) {
        return redis.dispatch(command, new IntegerOutput<>(StringCodec.UTF8), words).toCompletableFuture();
    }

    private static CommandArgs<String, String> words(String... lock) {
        return new CommandArgs<>(StringCodec.UTF8).addKey(lock[0]).addValues(Arrays.copyOfRange(lock, 1, lock.length));
    }

    @Override public void close() {
        clock.shutdownNow();
        ears.close();
        redis.getStatefulConnection().close();
    }
}
