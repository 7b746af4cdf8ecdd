package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;
import rlock.LockException;
import rlock.redisson.RlockRedisson;

/** {@code rlock-redisson}: canceled futures, IDs that belong elsewhere, and locks that were ended by force. */
@Timeout(60)
class RedissonBreakagesTest {
    private static Server server;
    private static RedissonClient redisson;

    @BeforeAll
    static void start() {
        server = new Server();
        redisson = client();
    }

    @AfterAll
    static void stop() {
        if (redisson != null) redisson.shutdown();
        if (server != null) server.close();
    }

    private static RedissonClient client() {
        return client(server.port);
    }

    private static RedissonClient client(int port) {
        var config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
        return RlockRedisson.create(config);
    }

    @Test
    void anAsyncWaitForSeveralThatIsCancelledLeavesNothing() {
        RLock several = redisson.getMultiLock(redisson.getLock("m:1"), redisson.getLock("m:2"));
        RLock one = redisson.getLock("m:1");
        for (var of : List.<Supplier<CompletableFuture<?>>>of(
                () -> several.lockAsync(4711).toCompletableFuture(),
                () -> several.lockAsync(30, TimeUnit.SECONDS, 4711).toCompletableFuture(),
                () -> several.tryLockAsync(30, 30, TimeUnit.SECONDS, 4711).toCompletableFuture())) {
            one.lock();
            var waiting = of.get();
            Server.until(() -> server.waiters("m:1") == 1);
            waiting.cancel(true);
            Server.until(() -> server.waiters("m:1") == 0);
            one.unlock();
            assertTrue(server.isFree("m:1") && server.isFree("m:2"));
        }
    }

    @Test
    void anAsyncWaitForATokenThatIsCancelledLeavesNothing() {
        RFencedLock lock = redisson.getFencedLock("token");
        for (var of : List.<Supplier<CompletableFuture<Long>>>of(
                () -> lock.lockAndGetTokenAsync().toCompletableFuture(),
                () -> lock.lockAndGetTokenAsync(30, TimeUnit.SECONDS).toCompletableFuture(),
                () -> lock.tryLockAndGetTokenAsync(30, TimeUnit.SECONDS).toCompletableFuture(),
                () -> lock.tryLockAndGetTokenAsync(30, 30, TimeUnit.SECONDS).toCompletableFuture())) {
            server.say("RLOCK.ACQUIRE", "token", "somebody");
            assertNull(lock.tryLockAndGetTokenAsync().toCompletableFuture().join());
            var waiting = of.get();
            Server.until(() -> server.waiters("token") == 1);
            waiting.cancel(true);
            Server.until(() -> server.waiters("token") == 0);
            server.say("RLOCK.RELEASE", "token", "somebody");
            assertTrue(server.isFree("token"));
            assertEquals(of.get().join(), lock.getToken());
            lock.unlock();
        }
    }

    @Test
    void anAsyncWaitForAPermitThatIsCancelledLeavesNothing() {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("p:cancelled");
        permits.trySetPermits(1);
        String one = permits.tryAcquire();
        var waiting = permits.acquireAsync();
        Server.until(() -> server.waiters("p:cancelled") == 1);
        waiting.cancel(true);
        Server.until(() -> server.waiters("p:cancelled") == 0);
        permits.release(one);
        assertEquals(1, permits.availablePermits());
    }

    @Test
    void thoseWhoWaitForAPermitMayFillTheCommonPool() {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("p:pool");
        permits.trySetPermits(1);
        permits.updateLeaseTime(permits.tryAcquire(), 1, TimeUnit.SECONDS);
        Supplier<CompletableFuture<Void>> task = () -> CompletableFuture.supplyAsync(() -> {
            try {
                return permits.acquire();
            } catch (InterruptedException never) {
                throw new AssertionError(never);
            }
        }).thenAccept(permits::release);
        // A thread of the pool may run tasks that it submitted itself.
        CompletableFuture.supplyAsync(() -> Stream.generate(task).limit(20).toArray(CompletableFuture[]::new))
                .thenCompose(CompletableFuture::allOf).orTimeout(30, TimeUnit.SECONDS).join();
        assertEquals(1, permits.availablePermits());
    }

    @Test
    void aPermitOfAnotherSemaphoreIsNotReleased() {
        RPermitExpirableSemaphore here = redisson.getPermitExpirableSemaphore("p:here");
        RPermitExpirableSemaphore there = redisson.getPermitExpirableSemaphore("p:there");
        there.trySetPermits(1);
        String id = there.tryAcquire();
        assertFalse(here.tryRelease(id));
        assertFalse(here.updateLeaseTime(id, 50, TimeUnit.MILLISECONDS));
        assertEquals(0, there.availablePermits());
        assertTrue(there.tryRelease(id));
    }

    @Test
    void whoWantsMorePermitsThanThereAreTakesNone() throws InterruptedException {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("p:more");
        permits.trySetPermits(2);
        var waiting = permits.tryAcquireAsync(3, 20, -1, TimeUnit.SECONDS).toCompletableFuture();
        for (int i = 0; i < 10; i++) {
            String one = permits.tryAcquire(100, TimeUnit.MILLISECONDS);
            assertNotNull(one, "somebody who waits for more has them");
            permits.release(one);
        }
        permits.addPermits(1);
        permits.release(waiting.join());
        assertEquals(3, permits.availablePermits());
    }

    @Test
    void aNumberOfPermitsThatNobodyCanWantIsAnsweredAsInRedisson() throws InterruptedException {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("p:none");
        permits.trySetPermits(1);
        for (int fewer : List.of(-1, Integer.MIN_VALUE)) {
            assertThrows(IllegalArgumentException.class, () -> permits.acquire(fewer));
            assertThrows(IllegalArgumentException.class, () -> permits.tryAcquire(fewer));
        }
        assertEquals(List.of(), permits.acquire(0));
        assertEquals(List.of(), permits.tryAcquire(0));
        assertEquals(1, permits.availablePermits());
    }

    @Test
    void whoCollectsPermitsGetsThemThoughTheTurnToCollectWasLost() throws InterruptedException {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("p:turn");
        permits.trySetPermits(2);
        String one = permits.tryAcquire();
        var waiting = permits.tryAcquireAsync(2, 20, -1, TimeUnit.SECONDS).toCompletableFuture();
        Server.until(() -> server.waiters("p:turn") == 1);
        assertEquals(1L, server.say("RLOCK.FORCE", "{p:turn}:several"));
        permits.release(one);
        permits.release(waiting.join());
        assertEquals(2, permits.availablePermits());
    }

    @Test
    void theOthersAreReleasedThoughOneCannotBe() {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("p:refused");
        permits.trySetPermits(1);
        String one = permits.tryAcquire();
        assertThrows(RedisException.class, () -> permits.tryRelease(List.of("", one)), "no owner has that name");
        assertEquals(1, permits.availablePermits());
    }

    @Test
    void whoReachesTheQueueWithAnOldNumberOfPermitsWaitsWithTheNewOne() throws InterruptedException {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("p:number");
        permits.trySetPermits(1);
        String one = permits.tryAcquire();
        var waiting = permits.acquireAsync().toCompletableFuture();
        Server.until(() -> server.waiters("p:number") == 1);
        // As another process would set it that saw no waiter.
        server.say("SET", "{p:number}:permits", "2");
        String two = waiting.orTimeout(10, TimeUnit.SECONDS).join();
        // The smaller number counts for new requests; existing holds remain.
        var third = permits.tryAcquireAsync(20, TimeUnit.SECONDS).toCompletableFuture();
        Server.until(() -> server.waiters("p:number") == 1);
        permits.setPermits(1);
        permits.release(one);
        assertNull(permits.tryAcquire(100, TimeUnit.MILLISECONDS));
        permits.release(two);
        permits.release(third.join());
        assertEquals(1, permits.availablePermits());
    }

    @Test
    void aWaitForPermitsOutlivesATimeWithoutAPrimary() {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("p:outlives");
        permits.trySetPermits(3);
        var held = permits.tryAcquire(3);
        var waiting = permits.acquireAsync().toCompletableFuture();
        Server.until(() -> server.waiters("p:outlives") == 1);
        server.say("CONFIG", "SET", "replica-serve-stale-data", "no");
        server.say("REPLICAOF", "127.0.0.1", "1"); // from now on it says -MASTERDOWN
        long before = refusedGets();
        Server.until(() -> refusedGets() > before);
        var others = permits.acquireAsync(2).toCompletableFuture();
        Server.until(() -> refusedGets() > before + 5);
        server.say("REPLICAOF", "NO", "ONE");
        permits.release(held);
        permits.release(waiting.orTimeout(20, TimeUnit.SECONDS).join());
        permits.release(others.orTimeout(20, TimeUnit.SECONDS).join());
        assertEquals(3, permits.availablePermits());
    }

    private static long refusedGets() {
        String all = new String((byte[]) server.say("INFO", "commandstats"));
        String gets = all.lines().filter(line -> line.startsWith("cmdstat_get:")).findFirst().orElseThrow();
        return Long.parseLong(gets.substring(gets.indexOf("rejected_calls=") + 15, gets.indexOf(",failed_calls")));
    }

    @Test
    void permitsAreAddedOnceThoughTheConnectionBreaks() {
        try (var proxy = new Proxy(server.port)) {
            RedissonClient beyond = client(proxy.port);
            RPermitExpirableSemaphore permits = beyond.getPermitExpirableSemaphore("p:once");
            assertTrue(permits.trySetPermits(1));
            proxy.cutOff(request -> request.contains("INCRBY"));
            var unknown = assertThrows(RedisException.class, () -> permits.addPermits(1));
            assertInstanceOf(LockException.Unavailable.class, unknown.getCause());
            assertEquals(2, redisson.getPermitExpirableSemaphore("p:once").getPermits());
            proxy.heal();
            // The end of idle connections is no reason to fail.
            server.say("CLIENT", "KILL", "TYPE", "normal");
            permits.addPermits(1);
            assertEquals(3, permits.getPermits());
            beyond.shutdown();
        }
    }

    @Test
    void aWaitForPermitsEndsWhenTheClientIsShutDown() {
        RPermitExpirableSemaphore held = redisson.getPermitExpirableSemaphore("p:closed");
        held.trySetPermits(1);
        String one = held.tryAcquire();
        RedissonClient other = client();
        var waits = java.util.stream.IntStream.of(1, 2).mapToObj(count -> CompletableFuture.runAsync(() -> {
            try {
                other.getPermitExpirableSemaphore("p:closed").acquire(count);
            } catch (InterruptedException never) {
                throw new AssertionError(never);
            }
        }, task -> new Thread(task).start())).toList();
        var nobodysNumber = CompletableFuture.runAsync(() -> {
            try {
                other.getPermitExpirableSemaphore("p:unset").acquire();
            } catch (InterruptedException never) {
                throw new AssertionError(never);
            }
        }, task -> new Thread(task).start());
        Server.until(() -> server.waiters("p:closed") == 1);
        long before = server.calls("get");
        Server.until(() -> server.calls("get") > before + 5);
        other.shutdown();
        for (var each : List.of(waits.get(0), waits.get(1), nobodysNumber)) {
            var ended = assertThrows(CompletionException.class, each.orTimeout(5, TimeUnit.SECONDS)::join);
            assertInstanceOf(IllegalStateException.class, ended.getCause());
        }
        held.release(one);
    }

    @Test
    void whoEndsOneOfSeveralByForceIsTold() {
        RLock one = redisson.getLock("forced:3");
        RLock several = redisson.getMultiLock(one, redisson.getLock("forced:4"));
        several.lock();
        assertTrue(one.forceUnlock());
        assertThrows(IllegalMonitorStateException.class, several::unlock);
        assertTrue(several.tryLock());
        several.unlock();
        assertFalse(several.isLocked());
    }

    @Test
    void severalOfTwoClientsLockWithoutAThread() {
        RedissonClient other = client();
        RLock one = redisson.getLock("two:1");
        RLock two = other.getLock("two:2");
        RLock both = redisson.getMultiLock(one, two);
        assertTrue(both.tryLockAsync(1, 10, TimeUnit.SECONDS, 4711).toCompletableFuture().join());
        assertTrue(one.isHeldByThread(4711) && two.isHeldByThread(4711));
        assertTrue(one.remainTimeToLive() > 5_000 && two.remainTimeToLive() > 5_000);
        both.unlockAsync(4711).toCompletableFuture().join();
        assertFalse(one.isLocked() || two.isLocked());
        other.shutdown();
    }

    @Test
    void whoEndedALockByForceLocksItAgain() {
        RLock lock = redisson.getLock("forced");
        RLock several = redisson.getMultiLock(redisson.getLock("forced:1"), redisson.getLock("forced:2"));
        for (RLock each : List.of(lock, several)) {
            each.lock();
            assertTrue(each.forceUnlock());
            assertTrue(each.tryLock());
            assertEquals(1, each.getHoldCount());
            each.unlock();
            assertFalse(each.isLocked());
        }
    }

    @Test
    void whatWasLostIsInTheWayOfNoLockThatSharesAKeyWithIt() {
        RLock x = redisson.getLock("shared:x");
        RLock y = redisson.getLock("shared:y");
        RLock z = redisson.getLock("shared:z");
        RLock both = redisson.getMultiLock(x, y);
        RLock others = redisson.getMultiLock(y, z);
        for (RLock lost : List.of(both, y)) {
            for (RLock next : List.of(y, both, others)) {
                lost.lock(100, TimeUnit.MILLISECONDS);
                Server.until(() -> !lost.isLocked());
                assertTrue(next.tryLock());
                assertEquals(1, next.getHoldCount());
                next.unlock();
                assertFalse(x.isLocked() || y.isLocked() || z.isLocked());
            }
        }
        // What is held stays.
        x.lock();
        y.lock(100, TimeUnit.MILLISECONDS);
        Server.until(() -> !y.isLocked());
        assertTrue(both.tryLock());
        assertEquals(List.of(2, 1), List.of(x.getHoldCount(), y.getHoldCount()));
        both.unlock();
        assertEquals(1, x.getHoldCount());
        x.unlock();
    }

    @Test
    void whatIsNotReentrantIsGrantedOnceToOneThread() {
        RLock lock = redisson.getNonReentrantLock("once");
        RLock first = redisson.getLock("once");
        first.lock();
        var one = lock.lockAsync(4711).toCompletableFuture();
        var two = lock.lockAsync(4711).toCompletableFuture();
        Server.until(() -> server.waiters("once") == 1);
        first.unlock();
        int granted = 0;
        for (var each : List.of(one, two)) {
            try {
                each.join();
                granted++;
            } catch (CompletionException refused) {
                assertInstanceOf(IllegalMonitorStateException.class, refused.getCause());
            }
        }
        assertEquals(1, granted);
        assertEquals(1, server.holds("once", redisson.getId() + ":4711"));
        var third = assertDoesNotThrow(() -> lock.lockAsync(4711)).toCompletableFuture();
        assertInstanceOf(IllegalMonitorStateException.class, assertThrows(CompletionException.class, third::join).getCause());
        lock.unlockAsync(4711).toCompletableFuture().join();
        // A caller that learns of the grant may unlock, and lock again, at once.
        first.lock();
        var again = lock.lockAsync(4711).toCompletableFuture().thenComposeAsync(done -> lock.unlockAsync(4711).toCompletableFuture())
                .thenCompose(done -> lock.lockAsync(4711).toCompletableFuture());
        Server.until(() -> server.waiters("once") == 1);
        first.unlock();
        again.join();
        lock.unlockAsync(4711).toCompletableFuture().join();
        assertTrue(server.isFree("once"));
    }
}
