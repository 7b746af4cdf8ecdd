package rlock;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import rlock.Driver.LinkException;

/**
 * For drivers: opens one connection to each server at a time. The client may take as long as it needs to connect, while
 * each caller that needs the connection has its own time limit.
 *
 * @param <C> a connection of the client
 */
public final class Dials<C> {
    private final Map<Object, Dial<C>> dials = new HashMap<>(); // guarded by this, as is what a dial has
    private final Function<Throwable, RuntimeException> translated;
    private final Consumer<C> closing;

    private static final class Dial<C> {
        final CompletableFuture<C> made = new CompletableFuture<>();
        int waiting;
        boolean isTaken;
    }

    /**
     * {@code translated}: the exception that a {@link Driver} throws for that failure; {@code closing} closes a
     * connection that nobody takes.
     */
    public Dials(Function<Throwable, RuntimeException> translated, Consumer<C> closing) {
        this.translated = translated;
        this.closing = closing;
    }

    /** A connection to {@code server}, within this time. */
    public C connect(Object server, long timeoutMillis, Supplier<? extends CompletionStage<C>> connecting) {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        while (true) {
            Dial<C> dial = join(server, connecting);
            C made = null;
            try {
                if (!Driver.await(dial.made, end - System.nanoTime()))
                    throw new LinkException("no connection to " + server + " in time", new TimeoutException());
                made = dial.made.join();
            } catch (CompletionException failed) {
                throw (RuntimeException) failed.getCause();
            } finally {
                made = leave(dial, made);
            }
            if (made != null) return made;
        }
    }

    private Dial<C> join(Object server, Supplier<? extends CompletionStage<C>> connecting) {
        Dial<C> dial;
        synchronized (this) {
            dial = dials.get(server);
            if (dial != null) {
                dial.waiting++;
                return dial;
            }
            dial = new Dial<>();
            dial.waiting++;
            dials.put(server, dial);
        }
        begin(server, dial, connecting);
        return dial;
    }

    private void begin(Object server, Dial<C> dial, Supplier<? extends CompletionStage<C>> connecting) {
        try {
            connecting.get().whenComplete((made, failed) -> ends(server, dial, made, failed));
        } catch (RuntimeException failed) {
            ends(server, dial, null, failed);
        }
    }

    /** Ends a wait for the connection. A connection that nobody waits for any more is closed. */
    private synchronized C leave(Dial<C> dial, C made) {
        dial.waiting--;
        boolean isMine = made != null && !dial.isTaken;
        dial.isTaken |= isMine;
        if (dial.made.isDone() && !dial.isTaken && dial.waiting == 0) close(dial);
        return isMine ? made : null;
    }

    private synchronized void ends(Object server, Dial<C> dial, C made, Throwable failed) {
        dials.remove(server, dial);
        if (failed == null) dial.made.complete(made);
        else dial.made.completeExceptionally(translated.apply(failed instanceof CompletionException ? failed.getCause() : failed));
        if (dial.waiting == 0) close(dial);
    }

    private void close(Dial<C> dial) {
        dial.made.thenAccept(closing);
    }
}
