package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.ByteArrayOutputStream;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;
import rlock.LockLostException;

/** What {@code java.util.concurrent.locks} promises, and whether it is true here. */
@Timeout(60)
class LockTest {
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    private static boolean elsewhere(Supplier<Boolean> work) {
        return CompletableFuture.supplyAsync(work, task -> new Thread(task).start()).join();
    }

    private static String key(Over over, String name) {
        return over + ":" + name;
    }

    @ParameterizedTest
    @EnumSource
    void aLockBelongsToItsThreadWhateverTheObject(Over over) {
        try (var session = over.open(server.port)) {
            String key = key(over, "thread");
            KeyLock one = session.locks().lock(key);
            KeyLock two = session.locks().lock(key);
            one.lock();
            long token = one.token();
            assertTrue(two.tryLock());
            assertEquals(token, two.token());
            assertEquals(2, one.getHoldCount());
            one.unlock();
            assertTrue(two.isHeldByCurrentThread(), "one object released the level of the other");
            assertFalse(elsewhere(one::tryLock));
            assertFalse(elsewhere(one::isHeldByCurrentThread));
            assertTrue(elsewhere(() -> isRefused(one::unlock)), "released by a stranger");
            two.unlock();
            assertThrows(IllegalMonitorStateException.class, two::unlock);
            assertTrue(server.isFree(key));
        }
    }

    @ParameterizedTest
    @EnumSource
    void anOwnersNameIsAskedForOncePerCall(Over over) {
        try (var session = over.open(server.port)) {
            var asked = new AtomicInteger();
            KeyLock lock = session.locks().lock(key(over, "asked")).owner(() -> asked.incrementAndGet() <= 2 ? "ann" : "bob");
            lock.lock();
            lock.unlock();
            assertEquals(2, asked.get());
            assertTrue(server.isFree(lock.key()));
        }
    }

    private static boolean isRefused(Runnable unlock) {
        try {
            unlock.run();
            return false;
        } catch (IllegalMonitorStateException notHeld) {
            return true;
        }
    }

    @ParameterizedTest
    @EnumSource
    void readersShareAndAWriterDowngrades(Over over) throws InterruptedException {
        try (var session = over.open(server.port)) {
            var lock = session.locks().readWriteLock(key(over, "modes"));
            lock.writeLock().lock();
            long token = lock.writeLock().token();
            lock.readLock().lock();
            assertFalse(elsewhere(lock.readLock()::tryLock));
            lock.writeLock().unlock();
            assertTrue(lock.readLock().token() > token);
            assertTrue(elsewhere(() -> {
                boolean got = lock.readLock().tryLock();
                if (got) lock.readLock().unlock();
                return got;
            }));
            assertThrows(LockException.Deadlock.class, lock.writeLock()::lock);
            assertFalse(lock.writeLock().tryLock(), "who does not wait waits for nobody");
            assertTrue(lock.writeLock().upgrading().tryLock(1, TimeUnit.SECONDS));
            lock.writeLock().unlock();
            lock.readLock().unlock();
            assertTrue(server.isFree(key(over, "modes")));
        }
    }

    @ParameterizedTest
    @EnumSource
    void anInterruptEndsAWaitThatHearsOfItAndNoOther(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(key(over, "interrupt"));
            lock.lock();
            var seen = new AtomicReference<Throwable>();
            Thread interruptible = new Thread(() -> {
                try {
                    lock.lockInterruptibly();
                } catch (InterruptedException interrupt) {
                    seen.set(interrupt);
                }
            });
            var flag = new AtomicReference<Boolean>();
            Thread patient = new Thread(() -> {
                lock.lock();
                flag.set(Thread.currentThread().isInterrupted());
                lock.unlock();
            });
            interruptible.start();
            Server.until(() -> server.waiters(lock.key()) == 1);
            patient.start();
            Server.until(() -> server.waiters(lock.key()) == 2);
            interruptible.interrupt();
            patient.interrupt();
            interruptible.join(5_000);
            assertInstanceOf(InterruptedException.class, seen.get());
            Server.until(() -> server.waiters(lock.key()) == 1);
            assertTrue(patient.isAlive());
            lock.unlock();
            patient.join(5_000);
            assertEquals(true, flag.get(), "the interrupt was forgotten");
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
            Server.until(() -> server.isFree(lock.key()));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aThreadThatIsInterruptedCallsLocksAndUnlocks(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(key(over, "interrupted"));
            String count = key(over, "count");
            String slow = "for i = 1, 3000000 do end return redis.call('INCR', KEYS[1])"; // so that the reply is awaited
            var seen = new CompletableFuture<Object>();
            virtual(() -> {
                try {
                    Thread.currentThread().interrupt();
                    lock.lock();
                    Object said = session.locks().call(count, "EVAL", slow, "1", count);
                    lock.unlock();
                    seen.complete(Thread.currentThread().isInterrupted() ? said : "the interrupt was forgotten");
                } catch (RuntimeException failed) {
                    seen.completeExceptionally(failed);
                }
            });
            assertEquals(1L, seen.get(5, TimeUnit.SECONDS));
            assertTrue(server.isFree(lock.key()));
        }
    }

    // In a virtual thread, if the JVM has them.
    private static void virtual(Runnable work) throws ReflectiveOperationException {
        if (Runtime.version().feature() < 21) new Thread(work).start();
        else Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, work);
    }

    @ParameterizedTest
    @EnumSource
    void aWaitMayBeLongerThanTheServerBlocks(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(key(over, "week"));
            server.say("RLOCK.ACQUIRE", lock.key(), "somebody");
            var longest = new CompletableFuture<Boolean>();
            new Thread(() -> {
                try {
                    boolean isLocked = lock.tryLock(Long.MAX_VALUE, TimeUnit.NANOSECONDS);
                    lock.unlock();
                    longest.complete(isLocked);
                } catch (InterruptedException | RuntimeException failed) {
                    longest.completeExceptionally(failed);
                }
            }).start();
            var longer = lock.acquireAsync(Duration.ofDays(8));
            Server.until(() -> server.waiters(lock.key()) == 2);
            server.say("RLOCK.RELEASE", lock.key(), "somebody");
            longer.get(5, TimeUnit.SECONDS).orElseThrow().release();
            assertTrue(longest.get(5, TimeUnit.SECONDS));
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoWasInterruptedWaitsNoLonger(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(key(over, "stale"));
            server.say("RLOCK.ACQUIRE", lock.key(), "somebody");
            for (int i = 0; i < 30; i++) {
                // Otherwise, the server could still count the wait in its search for deadlocks.
                var left = new CompletableFuture<Long>();
                Thread thread = new Thread(() -> {
                    try {
                        lock.lockInterruptibly();
                    } catch (InterruptedException interrupt) {
                        left.complete(server.waiters(lock.key()));
                    }
                });
                thread.start();
                Server.until(() -> server.waiters(lock.key()) == 1);
                thread.interrupt();
                assertEquals(0, left.get(5, TimeUnit.SECONDS));
            }
            server.say("RLOCK.RELEASE", lock.key(), "somebody");
        }
    }

    @ParameterizedTest
    @EnumSource
    void aThreadThatEndsHoldsNothingForLong(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(key(over, "dead")).lease(Duration.ofMillis(600));
            var lost = new CompletableFuture<CompletableFuture<Void>>();
            Thread thread = new Thread(() -> {
                lock.lock();
                lost.complete(lock.lost());
            });
            thread.start();
            thread.join();
            Server.until(() -> server.isFree(lock.key()));
            lost.join().get(1, TimeUnit.SECONDS);
            // A hold that was returned as an object belongs to whoever has the object.
            var held = new CompletableFuture<Hold>();
            thread = new Thread(() -> held.complete(lock.acquire()));
            thread.start();
            thread.join();
            long before = server.calls("rlock.renew");
            Server.until(() -> server.calls("rlock.renew") > before + 2);
            assertTrue(held.join().isHeld());
            held.join().release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aThreadThatEndsHoldsNothingThoughALevelWasAValue(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(key(over, "levels")).lease(Duration.ofMillis(600));
            runAndEnd(() -> {
                lock.lock();
                lock.acquire().release();
            });
            Server.until(() -> server.isFree(lock.key()));
            runAndEnd(() -> {
                Hold below = lock.acquire();
                lock.lock();
                below.release();
            });
            Server.until(() -> server.isFree(lock.key()));
            // Whoever has the object keeps the hold, whoever locked it first.
            var held = new CompletableFuture<Hold>();
            runAndEnd(() -> {
                lock.lock();
                held.complete(lock.acquire());
                lock.unlock();
            });
            long before = server.calls("rlock.renew");
            Server.until(() -> server.calls("rlock.renew") > before + 2);
            assertTrue(held.join().isHeld());
            held.join().release();
        }
    }

    private static void runAndEnd(Runnable work) throws InterruptedException {
        Thread thread = new Thread(work);
        thread.start();
        thread.join();
    }

    @ParameterizedTest
    @EnumSource
    void aHoldHasATokenADeadlineAndASignal(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(key(over, "hold")).lease(Duration.ofMillis(600));
            CompletableFuture<Void> lost;
            try (Hold hold = lock.acquire()) {
                lost = hold.lost();
                Thread.sleep(1_000);
                assertTrue(hold.isHeld(), "it is renewed");
                assertTrue(hold.remaining().toMillis() <= 600);
                assertEquals(1L, session.locks().call(lock.key(), "RLOCK.CHECK", lock.key(), "" + hold.token()));
                var info = (List<?>) session.locks().call(lock.key(), "RLOCK.INFO", lock.key());
                assertEquals("write", info.get(1) instanceof byte[] bytes ? new String(bytes) : info.get(1));
            }
            assertTrue(server.isFree(lock.key()));
            assertFalse(lost.isDone(), "a release is no loss");

            Hold forced = lock.acquire();
            server.say("RLOCK.FORCE", lock.key());
            forced.lost().get(1, TimeUnit.SECONDS);
            assertFalse(forced.isHeld());
            assertEquals(Duration.ZERO, forced.remaining());
            assertThrows(LockLostException.class, lock::lock, "to enter again what was lost");
            assertThrows(LockLostException.class, forced::release);
            assertThrows(IllegalMonitorStateException.class, forced::release);

            Hold fixed = lock.fixedLease(Duration.ofMillis(300)).acquire();
            fixed.lost().get(300, TimeUnit.MILLISECONDS);
            assertThrows(LockLostException.class, fixed::close);
        }
    }

    @ParameterizedTest
    @EnumSource
    void permitsOfDetachedOwnersAreCounted(Over over) throws Exception {
        assumeTrue(new String(flat(server.say("RLOCK.HELP"))).contains("LIMIT"), "this module has no LIMIT");
        try (var session = over.open(server.port)) {
            KeyLock permits = session.locks().permits(key(over, "permits"), 2).detached();
            Hold one = permits.acquire();
            Hold two = permits.acquire();
            assertEquals(Optional.empty(), permits.tryAcquire());
            one.release();
            Hold three = permits.acquire(Duration.ofSeconds(1)).orElseThrow();
            two.release();
            three.release();
            assertTrue(server.isFree(permits.key()));
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatOnlyAHoldReleasesIsNotAcquiredWithoutOne(Over over) {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(key(over, "detached")).detached();
            assertThrows(UnsupportedOperationException.class, lock::lock);
            assertThrows(UnsupportedOperationException.class, lock::lockInterruptibly);
            assertThrows(UnsupportedOperationException.class, lock::tryLock);
            assertThrows(UnsupportedOperationException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
            assertTrue(server.isFree(lock.key()));
        }
    }

    private static byte[] flat(Object reply) {
        var all = new ByteArrayOutputStream();
        for (Object line : (List<?>) reply) all.writeBytes((byte[]) line);
        return all.toByteArray();
    }

    @ParameterizedTest
    @EnumSource
    void aServerWithoutTheModuleIsSaidToBeOne(Over over) {
        try (var bare = new Server(false); var session = over.open(bare.port)) {
            var refused = assertThrows(LockException.class, session.locks().lock("order")::lock);
            assertTrue(refused.getMessage().startsWith("the server has not loaded the RLOCK module: ERR unknown"), refused.getMessage());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aSessionEndsWithItsLocks(Over over) throws Exception {
        String key = key(over, "session");
        try (var session = over.open(server.port)) {
            Hold hold = session.locks().lock(key).session().lease(Duration.ofSeconds(5)).acquire();
            assertTrue(hold.isHeld());
            session.locks().close();
            Server.until(() -> server.isFree(key));
            hold.lost().get(1, TimeUnit.SECONDS);
        }
    }

    @ParameterizedTest
    @EnumSource
    void theDocumentedRightsOfAnApplicationAreEnough(Over over) throws Exception {
        server.say("ACL", "SETUSER", "app", "on", ">secret", "resetkeys", "~app:*", "resetchannels", "&rlock:tell:*",
                "-@all", "+@connection", "-@dangerous", "+ssubscribe", "+wait", "+rlock.acquire", "+rlock.release",
                "+rlock.renew", "+rlock.cancel", "+rlock.holds", "+rlock.check", "+rlock.info");
        try (var session = over.as(server.port, "app", "secret", "app:")) {
            KeyLock lock = session.locks().lock("app:" + over);
            lock.lock();
            var next = lock.acquireAsync(Duration.ofSeconds(10));
            Server.until(() -> server.waiters(lock.key()) == 1);
            long start = System.nanoTime();
            lock.unlock();
            next.get(5, TimeUnit.SECONDS).orElseThrow().release();
            assertTrue(System.nanoTime() - start < TimeUnit.SECONDS.toNanos(1), "it heard of its grant");
            assertThrows(LockException.NoPermission.class, session.locks().lock("other")::lock);
        }
    }
}
