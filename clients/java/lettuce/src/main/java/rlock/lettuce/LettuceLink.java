package rlock.lettuce;

import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisException;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import rlock.Driver;

/** One connection of Lettuce. */
final class LettuceLink implements Driver.Link {
    private record Word(String word) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return word.getBytes(StandardCharsets.UTF_8);
        }
    }

    private final StatefulRedisConnection<String, String> connection;
    private final AtomicBoolean closed = new AtomicBoolean();
    private volatile boolean isAnswered;

    private final LettuceDriver driver;

    LettuceLink(LettuceDriver driver, StatefulRedisConnection<String, String> connection) {
        this.driver = driver;
        this.connection = connection;
    }

    @Override
    public Object call(long timeoutMillis, String... words) {
        CompletableFuture<Object> reply = send(words);
        // Ignores interrupts: it is short, and its outcome must be known.
        if (!Driver.await(reply, TimeUnit.MILLISECONDS.toNanos(timeoutMillis)))
            throw new Driver.LinkException("no reply in " + timeoutMillis + " ms", new TimeoutException());
        try {
            return reply.join();
        } catch (CompletionException failed) {
            throw (RuntimeException) failed.getCause();
        }
    }

    private CompletableFuture<Object> send(String... words) {
        var arguments = new CommandArgs<>(StringCodec.UTF8);
        for (int i = 1; i < words.length; i++) arguments.add(words[i]);
        var reply = new CompletableFuture<Object>();
        try {
            connection.async().dispatch(new Word(words[0]), new AnyOutput(), arguments)
                    .whenComplete((value, failed) -> {
                        if (failed != null) {
                            reply.completeExceptionally(isAnswered ? LettuceDriver.translated(failed) : LettuceDriver.first(failed));
                            return;
                        }
                        isAnswered = true;
                        reply.complete(value);
                    });
        } catch (RedisException broken) {
            throw LettuceDriver.translated(broken);
        }
        return reply;
    }

    @Override
    public void whenClosed(Runnable told) {
        var once = new AtomicBoolean();
        Runnable tell = () -> {
            if (once.compareAndSet(false, true)) told.run();
        };
        connection.addListener(new RedisConnectionStateListener() {
            @Override
            public void onRedisDisconnected(RedisChannelHandler<?, ?> ended) {
                tell.run();
            }
        });
        if (!connection.isOpen()) tell.run();
    }

    @Override
    public void close() {
        // Lettuce logs a warning for a second close.
        if (closed.compareAndSet(false, true)) driver.close(connection);
    }
}
