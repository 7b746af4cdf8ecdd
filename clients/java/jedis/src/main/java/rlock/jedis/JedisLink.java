package rlock.jedis;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.KeyValue;
import rlock.Driver;

/** One connection of Jedis. */
final class JedisLink implements Driver.Link {
    private final OwnConnection connection;
    private final ExecutorService readers;
    private volatile boolean isAnswered;

    JedisLink(OwnConnection connection, ExecutorService readers) {
        this.connection = connection;
        this.readers = readers;
    }

    @Override
    public Object call(long timeoutMillis, String... words) {
        // If a virtual thread is interrupted, it closes the socket that it reads from.
        boolean interrupted = Thread.interrupted();
        try {
            connection.setSoTimeout((int) Math.min(Integer.MAX_VALUE, Math.max(1, timeoutMillis)));
            Object reply = connection.executeCommand(arguments(words));
            isAnswered = true;
            return flat(reply);
        } catch (JedisException failed) {
            throw failure(failed);
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    @Override
    public void whenClosed(Runnable closed) {
        try {
            connection.setTimeoutInfinite();
            readers.execute(() -> {
                try {
                    while (true) connection.getOne();
                } catch (JedisException ended) {
                    close();
                    closed.run();
                }
            });
        } catch (JedisException | RejectedExecutionException ended) {
            close();
            closed.run();
        }
    }

    @Override
    public void close() {
        connection.closeNow();
    }

    // Returns a map as alternating keys and values, as in RESP2.
    private static Object flat(Object reply) {
        if (!(reply instanceof List<?> list)) return reply;
        var all = new ArrayList<Object>(list.size());
        for (Object each : list) {
            if (each instanceof KeyValue<?, ?> pair) {
                all.add(flat(pair.getKey()));
                all.add(flat(pair.getValue()));
            } else {
                all.add(flat(each));
            }
        }
        return all;
    }

    static CommandArguments arguments(String... words) {
        byte[] name = words[0].getBytes(StandardCharsets.UTF_8);
        var arguments = new CommandArguments(() -> name);
        for (int i = 1; i < words.length; i++) arguments.add(words[i]);
        return arguments;
    }

    // The first reply shows what is at the other end. Later replies may be damaged by a connection that breaks.
    private RuntimeException failure(JedisException failed) {
        return isAnswered ? translated(failed) : first(failed);
    }

    /** A failure of a connection that has not answered yet. */
    static RuntimeException first(JedisException failed) {
        String text = String.valueOf(failed.getMessage());
        return text.startsWith("Unknown reply") ? Driver.foreign(text, failed) : translated(failed);
    }

    static RuntimeException translated(JedisException failed) {
        for (Throwable each = failed; each != null; each = each.getCause())
            if (each instanceof JedisDataException error) return new Driver.ServerException(error.getMessage());
        return Driver.failure(failed.getMessage(), failed.getCause() == null ? failed : failed.getCause());
    }
}
