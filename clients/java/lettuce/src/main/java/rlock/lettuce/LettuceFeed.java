package rlock.lettuce;

import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisException;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import rlock.Driver;

/** A connection of Lettuce that receives messages. */
final class LettuceFeed implements Driver.Feed {
    private final LettuceDriver driver;
    private final StatefulRedisPubSubConnection<String, String> connection;
    private final Map<String, CompletableFuture<Void>> asked = new ConcurrentHashMap<>();
    private final AtomicBoolean closed = new AtomicBoolean();

    LettuceFeed(LettuceDriver driver, StatefulRedisPubSubConnection<String, String> connection, Driver.Ear ear) {
        this.driver = driver;
        this.connection = connection;
        connection.addListener(new RedisPubSubAdapter<>() {
            @Override
            public void smessage(String channel, String message) {
                ear.heard(message);
            }

            // Lettuce itself would also end the request, but with whatever the server next says about any channel.
            @Override
            public void ssubscribed(String channel, long count) {
                CompletableFuture<Void> confirmed = asked.remove(channel);
                if (confirmed != null) confirmed.complete(null);
            }

            @Override
            public void sunsubscribed(String channel, long count) {
                ear.left(channel);
            }
        });
        connection.addListener(new RedisConnectionStateListener() {
            @Override
            public void onRedisDisconnected(RedisChannelHandler<?, ?> gone) {
                ear.ended();
            }
        });
        if (!connection.isOpen()) ear.ended();
    }

    @Override
    public CompletableFuture<Void> subscribe(String channel) {
        CompletableFuture<Void> confirmed = asked.computeIfAbsent(channel, name -> new CompletableFuture<>());
        try {
            connection.async().ssubscribe(channel).exceptionally(failed -> fails(channel, confirmed, failed));
        } catch (RedisException broken) {
            fails(channel, confirmed, broken);
        }
        return confirmed;
    }

    private Void fails(String channel, CompletableFuture<Void> confirmed, Throwable failed) {
        asked.remove(channel, confirmed);
        confirmed.completeExceptionally(LettuceDriver.translated(failed));
        return null;
    }

    @Override
    public void close() {
        // Lettuce logs a warning for a second close.
        if (closed.compareAndSet(false, true)) driver.close(connection);
    }
}
