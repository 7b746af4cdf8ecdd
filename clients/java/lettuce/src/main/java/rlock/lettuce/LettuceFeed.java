package rlock.lettuce;

import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisException;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiConsumer;
import rlock.Driver;

/** A connection of Lettuce that listens. */
final class LettuceFeed implements Driver.Feed {
    private final StatefulRedisPubSubConnection<String, String> connection;
    private final AtomicBoolean closed = new AtomicBoolean();

    private final LettuceDriver driver;

    LettuceFeed(
            LettuceDriver driver,
            StatefulRedisPubSubConnection<String, String> connection,
            long timeoutMillis,
            String channel,
            BiConsumer<String, String> heard,
            Runnable ended) {
        this.driver = driver;
        this.connection = connection;
        connection.addListener(new RedisPubSubAdapter<>() {
            @Override
            public void message(String from, String key) {
                heard.accept(from, key);
            }
        });
        connection.addListener(new RedisConnectionStateListener() {
            @Override
            public void onRedisDisconnected(RedisChannelHandler<?, ?> gone) {
                ended.run();
            }
        });
        try {
            add(channel).orTimeout(timeoutMillis, TimeUnit.MILLISECONDS).join();
        } catch (CompletionException failed) {
            close();
            if (failed.getCause() instanceof Driver.ServerException refused) throw refused;
            throw new Driver.LinkException("cannot listen", failed.getCause());
        }
    }

    @Override
    public CompletableFuture<Void> add(String channel) {
        var confirmed = new CompletableFuture<Void>();
        try {
            connection.async().subscribe(channel).whenComplete((done, failed) -> {
                if (failed == null) confirmed.complete(null);
                else confirmed.completeExceptionally(LettuceDriver.translated(failed));
            });
        } catch (RedisException broken) {
            confirmed.completeExceptionally(LettuceDriver.translated(broken));
        }
        return confirmed;
    }

    @Override
    public void remove(String channel) {
        try {
            connection.async().unsubscribe(channel);
        } catch (RedisException broken) {
            // Then it hears nothing any more.
        }
    }

    @Override
    public void close() {
        // Lettuce warns of the second time.
        if (closed.compareAndSet(false, true)) driver.close(connection);
    }
}
