package rlock.jedis;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import redis.clients.jedis.exceptions.JedisException;
import rlock.Driver.LinkException;

/**
 * Connects in a thread of the driver's, to each server one connection at a time: Jedis looks a name up for as long as that
 * takes, and who needs the connection has a patience of its own.
 */
final class Dials {
    private final Map<Object, Dial> dials = new HashMap<>(); // guarded by this, as is what a dial has
    private final Executor background;

    private static final class Dial {
        final CompletableFuture<OwnConnection> made = new CompletableFuture<>();
        int waiting;
        boolean isTaken;
    }

    Dials(Executor background) {
        this.background = background;
    }

    /** A connection to {@code server}, after this time at the latest. */
    OwnConnection connect(Object server, long timeoutMillis, Supplier<OwnConnection> connecting) {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        boolean isInterrupted = false;
        try {
            while (true) {
                Dial dial = join(server, connecting);
                OwnConnection made = null;
                try {
                    made = dial.made.get(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException later) {
                    isInterrupted = true;
                } catch (TimeoutException silent) {
                    throw new LinkException("no connection to " + server + " in time", silent);
                } catch (ExecutionException failed) {
                    throw (RuntimeException) failed.getCause();
                } finally {
                    made = leave(dial, made);
                }
                if (made != null) return made;
            }
        } finally {
            if (isInterrupted) Thread.currentThread().interrupt();
        }
    }

    private synchronized Dial join(Object server, Supplier<OwnConnection> connecting) {
        Dial dial = dials.get(server);
        if (dial == null) {
            Dial begun = dial = new Dial();
            try {
                background.execute(() -> dial(server, begun, connecting));
            } catch (RejectedExecutionException closed) {
                throw new LinkException("the driver is closed", closed);
            }
            dials.put(server, dial);
        }
        dial.waiting++;
        return dial;
    }

    /** The connection, if it is for whoever leaves; what is for nobody is closed. */
    private synchronized OwnConnection leave(Dial dial, OwnConnection made) {
        dial.waiting--;
        boolean isMine = made != null && !dial.isTaken;
        dial.isTaken |= isMine;
        if (dial.made.isDone() && !dial.isTaken && dial.waiting == 0) close(dial);
        return isMine ? made : null;
    }

    private void dial(Object server, Dial dial, Supplier<OwnConnection> connecting) {
        OwnConnection made = null;
        RuntimeException failed = null;
        try {
            made = connecting.get();
        } catch (JedisException refused) {
            failed = JedisLink.translated(refused);
        } catch (Throwable other) {
            failed = new LinkException(other.toString(), other);
        }
        synchronized (this) {
            dials.remove(server, dial);
            if (failed == null) dial.made.complete(made);
            else dial.made.completeExceptionally(failed);
            if (dial.waiting == 0) close(dial);
        }
    }

    private static void close(Dial dial) {
        dial.made.thenAccept(OwnConnection::closeNow);
    }
}
