package rlock.redisson;

import java.util.concurrent.CompletableFuture;
import org.redisson.api.RFuture;
import org.redisson.api.RKeys;
import org.redisson.api.RType;
import org.redisson.misc.CompletableFutureWrapper;
import rlock.Locks;

/** {@code RKeys} that report the type of a lock: as in Redisson, that of a map. */
@SuppressWarnings("unused") // called by Answers
final class KeyTypes {
    private final RKeys keys;
    private final Locks locks;

    KeyTypes(RKeys keys, Locks locks) {
        this.keys = keys;
        this.locks = locks;
    }

    public RType getType(String key) {
        return isLock(key) ? RType.MAP : keys.getType(key);
    }

    public RFuture<RType> getTypeAsync(String key) {
        return new CompletableFutureWrapper<>(CompletableFuture.supplyAsync(() -> isLock(key), Answers.THREADS).thenCompose(
                isLock -> isLock ? CompletableFuture.completedFuture(RType.MAP) : keys.getTypeAsync(key)));
    }

    private boolean isLock(String key) {
        return Keys.text(locks.call(key, "TYPE", key)).startsWith("rlock");
    }
}
