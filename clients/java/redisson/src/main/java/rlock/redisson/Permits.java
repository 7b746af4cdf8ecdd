package rlock.redisson;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.redisson.client.RedisException;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;
import rlock.LockLostException;
import rlock.Mode;

/**
 * {@code RPermitExpirableSemaphore}: a permit is a READ hold whose owner is the permit's ID, with a LIMIT that is
 * stored in a key of its own. A permit without a lease time is renewed as long as this client lives.
 */
@SuppressWarnings("unused") // called by Answers
final class Permits implements Answers.Undoing {
    private record Kept(Hold hold, boolean isRenewed) {}

    /** The holds of this process; another process may release one of these permits. */
    private static final Map<String, Kept> KEPT = new ConcurrentHashMap<>();
    private static final Duration LONG = Duration.ofDays(1);
    /** How long a wait relies on the number of permits that it has read. */
    private static final long CHECKS_MILLIS = 1_000;

    private final Client client;
    private final String name;
    private final String key;
    private final String number; // the key of how many there are

    Permits(Client client, String name) {
        this.client = client;
        this.name = name;
        this.key = client.key(name);
        this.number = Client.key(key, "permits");
    }

    // --- how many

    public int getPermits() {
        Object count = client.locks.call(number, "GET", number);
        return count == null ? 0 : Integer.parseInt(Keys.text(count));
    }

    public int acquiredPermits() {
        return ((Long) Keys.field(client.locks.call(key, "RLOCK.INFO", key, "HOLDERS", "0", "WAITERS", "0"), "holder-count")).intValue();
    }

    public int availablePermits() {
        return getPermits() - acquiredPermits();
    }

    public boolean trySetPermits(int permits) {
        boolean isSet = once("SET", number, String.valueOf(permits), "NX") != null;
        if (isSet) changed();
        return isSet;
    }

    public void setPermits(int permits) {
        client.locks.call(number, "SET", number, String.valueOf(permits));
        changed();
    }

    public void addPermits(int permits) {
        once("INCRBY", number, String.valueOf(permits));
        changed();
    }

    // An idle connection may have ended long ago: a command that may be sent twice finds that out.
    private Object once(String... words) {
        getPermits();
        return client.locks.callOnce(number, words);
    }

    // Waiters ask again, with the new number, in the order in which they waited.
    private void changed() {
        Object info = client.locks.call(key, "RLOCK.INFO", key, "HOLDERS", "0", "WAITERS", "10000");
        for (Object waiter : (List<?>) Keys.field(info, "waiters"))
            client.locks.call(key, "RLOCK.CANCEL", key, Keys.text(Keys.field(waiter, "owner")));
    }

    // --- acquiring

    public String acquire() throws InterruptedException {
        return acquire(1).get(0);
    }

    public List<String> acquire(int permits) throws InterruptedException {
        return acquire(permits, -1, TimeUnit.MILLISECONDS);
    }

    public String acquire(long lease, TimeUnit unit) throws InterruptedException {
        return acquire(1, lease, unit).get(0);
    }

    public List<String> acquire(int permits, long lease, TimeUnit unit) throws InterruptedException {
        List<String> ids;
        do ids = tryAcquire(permits, LONG.toMillis(), unit.toMillis(lease), TimeUnit.MILLISECONDS);
        while (ids.size() < permits);
        return ids;
    }

    public String tryAcquire() {
        return first(tryAcquire(1));
    }

    public List<String> tryAcquire(int permits) {
        try {
            return tryAcquire(permits, 0, -1, TimeUnit.MILLISECONDS);
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            return new ArrayList<>();
        }
    }

    public String tryAcquire(long wait, TimeUnit unit) throws InterruptedException {
        return tryAcquire(wait, -1, unit);
    }

    public String tryAcquire(long wait, long lease, TimeUnit unit) throws InterruptedException {
        return first(tryAcquire(1, wait, lease, unit));
    }

    private static String first(List<String> ids) {
        return ids.isEmpty() ? null : ids.get(0);
    }

    /** All of them, or none. If several callers want several permits, only one at a time collects them. */
    public List<String> tryAcquire(int permits, long wait, long lease, TimeUnit unit) throws InterruptedException {
        if (permits < 0) throw new IllegalArgumentException("Permits amount can't be negative"); // in the words of Redisson
        if (permits == 0) return new ArrayList<>();
        long end = System.nanoTime() + Math.max(0, unit.toNanos(wait));
        if (permits == 1) return collect(1, end, unit.toMillis(lease));
        // A request for more permits than exist takes none from others.
        while (permits(end) < permits) if (!pauses(end)) return new ArrayList<>();
        String guard = Client.key(key, "several");
        Optional<Hold> alone = client.locks.lock(guard).detached().acquire(until(end));
        if (alone.isEmpty()) return new ArrayList<>();
        try {
            return collect(permits, end, unit.toMillis(lease));
        } finally {
            try {
                alone.get().release();
            } catch (RuntimeException failed) {
                // Its lease ends it. The caller gets the collected permits all the same.
            }
        }
    }

    // A wait survives the restart of a server, like a wait for a lock, but not the closing of the locks.
    private int permits(long end) throws InterruptedException {
        while (true) {
            try {
                return getPermits();
            } catch (LockException.Unavailable unknown) {
                if (!pauses(end)) throw unknown;
            }
        }
    }

    /** Whether there is time to ask again. */
    private static boolean pauses(long end) throws InterruptedException {
        Duration left = until(end);
        if (left.isZero()) return false;
        Thread.sleep(Math.min(100, left.toMillis() + 1));
        return true;
    }

    private static Duration until(long end) {
        return Duration.ofNanos(Math.max(0, end - System.nanoTime()));
    }

    private List<String> collect(int permits, long end, long lease) throws InterruptedException {
        List<String> ids = new ArrayList<>();
        try {
            while (ids.size() < permits) {
                String id = one(end, lease);
                if (id == null) {
                    tryRelease(ids);
                    return new ArrayList<>();
                }
                ids.add(id);
            }
            return ids;
        } catch (InterruptedException | RuntimeException failed) {
            try {
                tryRelease(ids);
            } catch (RuntimeException broken) {
                failed.addSuppressed(broken);
            }
            throw failed;
        }
    }

    private String one(long end, long lease) throws InterruptedException {
        while (true) {
            int most = permits(end);
            Duration left = until(end);
            String id = UUID.randomUUID().toString().replace("-", "");
            if (most > 0) {
                KeyLock lock = client.locks.permits(key, most).owner(id);
                lock = lease < 0 ? lock.lease(client.lease()) : lock.fixedLease(Duration.ofMillis(Math.max(1, lease)));
                Optional<Hold> hold = waited(lock, most, left);
                if (hold.isPresent()) {
                    KEPT.put(id, new Kept(hold.get(), lease < 0));
                    hold.get().lost().thenRun(() -> KEPT.remove(id));
                    return id;
                }
            } else {
                // Nobody has set the number of permits yet.
                Thread.sleep(Math.min(100, left.toMillis()));
            }
            if (until(end).isZero()) return null;
        }
    }

    // A change of the number cancels the waits that are in the queue then. This wait may reach the queue just
    // afterward, with the old number, so it reads the number again and keeps its place.
    private Optional<Hold> waited(KeyLock lock, int most, Duration left) throws InterruptedException {
        if (left.isZero()) return lock.tryAcquire();
        CompletableFuture<Optional<Hold>> waiting = lock.acquireAsync(left);
        // In a thread of the common pool, the future's own get would run other tasks meanwhile, which may wait as well.
        var done = new CountDownLatch(1);
        waiting.whenComplete((hold, failed) -> done.countDown());
        try {
            while (!done.await(CHECKS_MILLIS, TimeUnit.MILLISECONDS))
                if (isChanged(most) && waiting.cancel(false)) return Optional.empty();
            return waiting.get();
        } catch (ExecutionException failed) {
            throw (RuntimeException) failed.getCause();
        } catch (InterruptedException | LockException | IllegalStateException ended) {
            waiting.cancel(false);
            waiting.thenAccept(hold -> hold.ifPresent(Hold::release)); // which was granted first
            throw ended;
        }
    }

    // While no server answers, the number counts as unchanged.
    private boolean isChanged(int most) {
        try {
            return getPermits() != most;
        } catch (LockException.Unavailable unknown) {
            return false;
        }
    }

    @Override
    public boolean acquires(String method) {
        return method.equals("acquire") || method.equals("tryAcquire");
    }

    @Override
    public void undo(String method, Object result) {
        if (!acquires(method)) return;
        if (result instanceof String id) tryRelease(id);
        if (result instanceof List<?> ids) tryRelease(ids.stream().map(String.class::cast).toList());
    }

    // --- releasing

    // The permit, if it belongs to this semaphore.
    private Kept kept(String id) {
        Kept kept = KEPT.get(id);
        return kept != null && kept.hold.key().equals(key) ? kept : null;
    }

    public boolean tryRelease(String id) {
        Kept kept = kept(id);
        try {
            if (kept != null && KEPT.remove(id, kept)) kept.hold.release();
            else client.locks.call(key, "RLOCK.RELEASE", key, id, Mode.READ.name(), "ALL"); // of another process
            return true;
        } catch (LockLostException expired) {
            return false;
        } catch (LockException refused) {
            if (refused.getMessage().startsWith("NOTHELD")) return false;
            throw refused;
        }
    }

    /** If one fails, the others are released all the same. */
    public int tryRelease(List<String> ids) {
        int released = 0;
        RuntimeException first = null;
        for (String id : ids) {
            try {
                if (tryRelease(id)) released++;
            } catch (RuntimeException failed) {
                if (first == null) first = failed;
                else first.addSuppressed(failed);
            }
        }
        if (first != null) throw first;
        return released;
    }

    public void release(String id) {
        release(List.of(id));
    }

    /** All of them, or none. */
    public void release(List<String> ids) {
        ids.forEach(this::leftMillis);
        if (tryRelease(ids) < ids.size()) throw new RedisException("a permit of " + ids + " expired before it was released");
    }

    // --- leases

    public boolean updateLeaseTime(String id, long lease, TimeUnit unit) {
        long millis = Math.max(1, unit.toMillis(lease));
        try {
            Kept kept = kept(id);
            if (kept == null) {
                client.locks.call(key, "RLOCK.RENEW", key, id, Mode.READ.name(), "LEASE", String.valueOf(millis));
                return true;
            }
            kept.hold.renew(Duration.ofMillis(millis));
            // The server never shortens a lease, so this client releases the permit at that time.
            var ends = new Kept(kept.hold, false);
            KEPT.put(id, ends);
            CompletableFuture.delayedExecutor(millis, TimeUnit.MILLISECONDS, Answers.THREADS).execute(() -> {
                if (KEPT.get(id) == ends) tryRelease(id);
            });
            return true;
        } catch (IllegalMonitorStateException over) { // released, or lost
            return false;
        } catch (LockException refused) {
            if (refused.getMessage().startsWith("NOTHELD")) return false;
            throw refused;
        }
    }

    /** In ms; -1 if it is renewed by this process. */
    public long getLeaseTime(String id) {
        long left = leftMillis(id);
        Kept kept = kept(id);
        return kept != null && kept.isRenewed ? -1 : left;
    }

    private long leftMillis(String id) {
        for (Object holder : Keys.holders(client.locks, key, Mode.READ))
            if (Keys.text(Keys.field(holder, "owner")).equals(id)) return (Long) Keys.field(holder, "ttl-ms");
        throw new RedisException("there is no permit " + id + ": it was released, or has expired");
    }

    // --- RExpirable, of the number of permits

    public boolean expire(Duration after) {
        return client.locks.call(number, "PEXPIRE", number, String.valueOf(after.toMillis())).equals(1L);
    }

    public boolean isExists() {
        return client.locks.call(number, "EXISTS", number).equals(1L);
    }

    /** Also ends all permits. */
    public boolean delete() {
        Keys.force(client.locks, key, Mode.READ);
        return client.locks.call(number, "DEL", number).equals(1L);
    }

    public String getName() {
        return name;
    }

    @Override
    public String toString() {
        return "permits of " + key;
    }
}
