package rlock.jedis;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.exceptions.JedisException;
import rlock.Driver;

/** A connection of Jedis that listens. */
final class JedisFeed extends JedisPubSub implements Driver.Feed {
    private final OwnConnection connection;
    private final BiConsumer<String, String> heard;
    private final Map<String, CompletableFuture<Void>> asked = new ConcurrentHashMap<>();

    JedisFeed(
            OwnConnection connection,
            long timeoutMillis,
            String channel,
            BiConsumer<String, String> heard,
            Runnable ended,
            ExecutorService readers) {
        this.connection = connection;
        this.heard = heard;
        connection.setTimeoutInfinite();
        CompletableFuture<Void> first = asked.computeIfAbsent(channel, name -> new CompletableFuture<>());
        readers.execute(() -> {
            try {
                proceed(connection, channel);
            } catch (JedisException broken) {
                first.completeExceptionally(JedisLink.translated(broken));
            } finally {
                close();
                ended.run();
                var over = new Driver.LinkException("the connection ended", null);
                asked.values().forEach(waiting -> waiting.completeExceptionally(over));
            }
        });
        try {
            // From the first confirmation on other threads may add channels.
            first.orTimeout(timeoutMillis, TimeUnit.MILLISECONDS).join();
        } catch (CompletionException failed) {
            close();
            if (failed.getCause() instanceof Driver.ServerException refused) throw refused;
            throw new Driver.LinkException("cannot listen at " + connection, failed.getCause());
        }
    }

    // Jedis writes what two threads send at once into each other.
    @Override
    public synchronized CompletableFuture<Void> add(String channel) {
        CompletableFuture<Void> confirmed = asked.computeIfAbsent(channel, name -> new CompletableFuture<>());
        try {
            subscribe(channel);
        } catch (JedisException broken) {
            confirmed.completeExceptionally(JedisLink.translated(broken));
        }
        return confirmed;
    }

    @Override
    public synchronized void remove(String channel) {
        asked.remove(channel);
        try {
            unsubscribe(channel);
        } catch (JedisException broken) {
            // Then it hears nothing any more.
        }
    }

    @Override
    public void onSubscribe(String channel, int count) {
        CompletableFuture<Void> waiting = asked.get(channel);
        if (waiting != null) waiting.complete(null);
    }

    @Override
    public void onMessage(String channel, String key) {
        heard.accept(channel, key);
    }

    @Override
    public void close() {
        connection.closeNow();
    }
}
