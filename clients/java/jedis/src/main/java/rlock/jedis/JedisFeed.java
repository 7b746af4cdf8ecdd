package rlock.jedis;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import rlock.Driver;

/** A connection of Jedis that receives messages. */
final class JedisFeed implements Driver.Feed {
    private final OwnConnection connection;
    private final Driver.Ear ear;
    private final Queue<CompletableFuture<Void>> asked = new ConcurrentLinkedQueue<>(); // answered in this order
    private boolean isOver; // guarded by this

    JedisFeed(OwnConnection connection, Driver.Ear ear, ExecutorService readers) {
        this.connection = connection;
        this.ear = ear;
        connection.setTimeoutInfinite();
        try {
            readers.execute(this::read);
        } catch (RejectedExecutionException closed) {
            close();
            throw new Driver.LinkException("the driver is closed", closed);
        }
    }

    private void read() {
        try {
            while (true) {
                try {
                    heard((List<?>) connection.getUnflushedObject());
                } catch (JedisDataException refused) {
                    CompletableFuture<Void> first = asked.poll();
                    if (first != null) first.completeExceptionally(JedisLink.translated(refused));
                }
            }
        } catch (JedisException | ClassCastException broken) {
            close();
            ear.ended();
            synchronized (this) {
                isOver = true;
                asked.forEach(each -> each.completeExceptionally(new Driver.LinkException("the connection ended", broken)));
            }
        }
    }

    private void heard(List<?> words) {
        String channel = text(words.get(1));
        switch (text(words.get(0))) {
            case "smessage" -> ear.heard(text(words.get(2)));
            case "sunsubscribe" -> ear.left(channel);
            case "ssubscribe" -> {
                CompletableFuture<Void> first = asked.poll();
                if (first != null) first.complete(null);
            }
            default -> {} // none of these was asked for
        }
    }

    private static String text(Object word) {
        return new String((byte[]) word, StandardCharsets.UTF_8);
    }

    // If two threads send at once, Jedis interleaves their bytes.
    @Override
    public synchronized CompletableFuture<Void> subscribe(String channel) {
        if (isOver) return CompletableFuture.failedFuture(new Driver.LinkException("the connection ended", null));
        var confirmed = new CompletableFuture<Void>();
        asked.add(confirmed);
        try {
            connection.sendNow(JedisLink.arguments("SSUBSCRIBE", channel));
        } catch (JedisException broken) {
            close();
        }
        return confirmed;
    }

    @Override
    public void close() {
        connection.closeNow();
    }
}
