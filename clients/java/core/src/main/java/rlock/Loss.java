package rlock;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * The signal that a hold is lost. All callers get the same object, because some ask very often. So only this package
 * can complete it, and one caller's timeout or cancellation does not affect others.
 */
final class Loss extends CompletableFuture<Void> {
    /** The hold is lost. */
    void happens() {
        super.complete(null);
    }

    // A future that depends on it belongs to the caller.
    @Override
    public <U> CompletableFuture<U> newIncompleteFuture() {
        return new CompletableFuture<>();
    }

    @Override
    public boolean complete(Void value) {
        return false;
    }

    @Override
    public boolean completeExceptionally(Throwable failure) {
        return false;
    }

    @Override
    public boolean cancel(boolean mayInterrupt) {
        return false;
    }

    @Override
    public void obtrudeValue(Void value) {
        throw new UnsupportedOperationException("only the package says that a hold is lost");
    }

    @Override
    public void obtrudeException(Throwable failure) {
        throw new UnsupportedOperationException("only the package says that a hold is lost");
    }

    @Override
    public CompletableFuture<Void> orTimeout(long timeout, TimeUnit unit) {
        return copy().orTimeout(timeout, unit);
    }

    @Override
    public CompletableFuture<Void> completeOnTimeout(Void value, long timeout, TimeUnit unit) {
        return copy().completeOnTimeout(value, timeout, unit);
    }

    @Override
    public CompletableFuture<Void> completeAsync(Supplier<? extends Void> supplier, Executor executor) {
        return copy().completeAsync(supplier, executor);
    }

    @Override
    public CompletableFuture<Void> completeAsync(Supplier<? extends Void> supplier) {
        return copy().completeAsync(supplier);
    }
}
