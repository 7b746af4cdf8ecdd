package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.AllLocks;
import rlock.Election.Leader;
import rlock.Hold;
import rlock.Holds;
import rlock.KeyLock;
import rlock.LockLostException;
import rlock.Locks;

/** Several locks as a {@code Lock}, and elections. The conformance script tests the rest. */
@Timeout(60)
class SeveralTest {
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    private static boolean elsewhere(BooleanSupplier work) {
        return CompletableFuture.supplyAsync(work::getAsBoolean, task -> new Thread(task).start()).join();
    }

    @ParameterizedTest
    @EnumSource
    void theyBelongToTheirThreadWhateverTheObject(Over over) {
        try (var session = over.open(server.port)) {
            String[] keys = {over + "b", over + "a"};
            AllLocks all = session.locks().all(keys);
            assertEquals(List.of(over + "a", over + "b"), all.keys());
            assertFalse(all.isHeldByCurrentThread());
            all.lock();
            assertTrue(session.locks().all(keys).isHeldByCurrentThread());
            assertFalse(elsewhere(all::isHeldByCurrentThread));
            assertFalse(elsewhere(all::tryLock));
            assertTrue(all.tryLock(), "not reentrant");
            assertEquals(2, session.locks().lock(keys[0]).getHoldCount());
            session.locks().all(keys).unlock();
            assertTrue(all.isHeldByCurrentThread());
            assertFalse(server.isFree(keys[0]));
            session.locks().all(keys).unlock();
            assertThrows(IllegalMonitorStateException.class, all::unlock);
            assertTrue(server.isFree(keys[0]) && server.isFree(keys[1]));
        }
    }

    @ParameterizedTest
    @EnumSource
    void oneOfThemIsReleasedWithTheOthersOnly(Over over) {
        try (var session = over.open(server.port)) {
            Locks locks = session.locks();
            AllLocks all = locks.all(over + "c", over + "d", over + "e");
            KeyLock one = locks.lock(over + "c");
            all.lock();
            assertThrows(IllegalMonitorStateException.class, one::unlock);
            assertThrows(IllegalMonitorStateException.class, locks.all(over + "c", over + "d")::unlock);
            one.lock();
            one.unlock();
            assertTrue(all.isHeldByCurrentThread());
            all.unlock();
            assertTrue(server.isFree(over + "c"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLevelAboveEndsWithThem(Over over) {
        try (var session = over.open(server.port)) {
            Holds holds = session.locks().all(over + "f", over + "g").acquire();
            Hold above = session.locks().lock(over + "f").acquire();
            holds.release();
            assertTrue(server.isFree(over + "f"));
            assertFalse(above.isHeld());
            above.lost().orTimeout(5, TimeUnit.SECONDS).join();
            assertThrows(LockLostException.class, above::release);
            session.locks().lock(over + "f").acquire().release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatIsHeldAlreadyAndFailsReleasesTheOthers(Over over) {
        try (var session = over.open(server.port)) {
            Locks locks = session.locks();
            Hold outer = locks.lock(over + "i").fixedLease(Duration.ofSeconds(20)).acquire();
            locks.call(over + "i", "RLOCK.FORCE", over + "i");
            assertThrows(LockLostException.class, locks.all(over + "h", over + "i", over + "j")::tryLock);
            assertTrue(server.isFree(over + "h") && server.isFree(over + "j"));
            assertThrows(LockLostException.class, outer::release);
            try (Holds holds = locks.all(over + "h", over + "i").acquire()) {
                assertEquals(2, holds.tokens().size());
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatIsLeftOfLostOnesIsReleasedBeforeTheyAreLockedAgain(Over over) {
        try (var proxy = new Proxy(server.port); var session = over.open(proxy.port)) {
            Holds holds = session.locks().all(over + "s", over + "t").acquire();
            server.say("RLOCK.FORCE", over + "s");
            assertThrows(LockLostException.class, () -> holds.renew(Duration.ofSeconds(40)));
            proxy.keep(request -> request.contains("MRELEASE"));
            assertThrows(LockLostException.class, holds::release);
            Server.until(() -> proxy.silent() > 0);
            proxy.heal();
            Hold next = session.locks().lock(over + "t").acquire();
            long before = server.calls("rlock.mrelease");
            proxy.deliver();
            Server.until(() -> server.calls("rlock.mrelease") > before);
            assertEquals(1, server.holds(over + "t", next.owner()), "ended by the release of what was lost");
            next.release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatCannotBeLockedTogetherIsRefused(Over over) {
        try (var session = over.open(server.port)) {
            Locks locks = session.locks();
            assertThrows(IllegalArgumentException.class, () -> locks.all(locks.lock("k"), locks.readLock("k")));
            assertThrows(IllegalArgumentException.class, () -> locks.all(locks.permits("k", 1), locks.permits("k", 2)));
            assertThrows(IllegalArgumentException.class, () -> locks.all(locks.lock("k").session(), locks.lock("l")));
            assertThrows(IllegalArgumentException.class, () -> locks.all(new String[0]));
            assertThrows(IllegalArgumentException.class, () -> locks.all(java.util.stream.IntStream.range(0, 129)
                    .mapToObj(number -> "k" + number).toArray(String[]::new)));
            assertThrows(UnsupportedOperationException.class, locks.all("k").detached()::lock);
        }
    }

    @ParameterizedTest
    @EnumSource
    void eachDetachedAcquisitionIsItsOwnOwner(Over over) throws InterruptedException {
        try (var session = over.open(server.port)) {
            AllLocks all = session.locks().all(session.locks().lock(over + "l"), session.locks().permits(over + "m", 2)).detached();
            try (Holds holds = all.acquire()) {
                assertEquals(Optional.empty(), all.tryAcquire());
                assertEquals(Optional.empty(), all.acquire(Duration.ofMillis(800)));
                assertTrue(holds.isHeld());
            }
            assertTrue(server.isFree(over + "l"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoWaitsForThemIsGrantedThemInItsTurn(Over over) {
        try (var session = over.open(server.port)) {
            AllLocks all = session.locks().all(over + "n", over + "o");
            all.lock();
            var waiting = CompletableFuture.runAsync(() -> {
                all.lock();
                all.unlock();
            }, task -> new Thread(task).start());
            Server.until(() -> server.waiters(over + "n") == 1);
            all.unlock();
            waiting.orTimeout(10, TimeUnit.SECONDS).join();
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoHoldsTheFirstOfThemKeepsItsPlace(Over over) throws InterruptedException {
        try (var session = over.open(server.port)) {
            Locks locks = session.locks();
            Hold inTheWay = locks.lock(over + "v").detached().acquire();
            var granted = new LinkedBlockingQueue<String>();
            var first = CompletableFuture.runAsync(() -> {
                locks.lock(over + "u").lock();
                locks.all(over + "u", over + "v").lock();
                granted.add("first");
                locks.all(over + "u", over + "v").unlock();
                locks.lock(over + "u").unlock();
            }, task -> new Thread(task).start());
            Server.until(() -> server.waiters(over + "v") == 1);
            var second = CompletableFuture.runAsync(() -> {
                try (Hold hold = locks.lock(over + "v").detached().acquire()) {
                    granted.add("second");
                }
            }, task -> new Thread(task).start());
            Server.until(() -> server.waiters(over + "v") == 2);
            Thread.sleep(3_500); // in which it looks for its place three times
            inTheWay.release();
            CompletableFuture.allOf(first, second).orTimeout(10, TimeUnit.SECONDS).join();
            assertEquals(List.of("first", "second"), List.copyOf(granted));
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoHoldsTheFirstOfThemHearsOfItsTurn(Over over) throws InterruptedException {
        try (var session = over.open(server.port)) {
            Locks locks = session.locks();
            AllLocks all = locks.all(over + "w", over + "x");
            locks.lock(over + "w").lock();
            long most = 0;
            for (int i = 0; i < 3; i++) {
                Hold inTheWay = locks.lock(over + "x").detached().acquire();
                CompletableFuture.delayedExecutor(300, TimeUnit.MILLISECONDS).execute(inTheWay::release);
                long start = System.nanoTime();
                all.lock();
                most = Math.max(most, TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start));
                all.unlock();
            }
            assertTrue(most < 900, "it asked without having heard of it, after " + most + " ms");
            locks.lock(over + "w").unlock();
        }
    }

    @ParameterizedTest
    @EnumSource
    void anObserverThatFailsOrIsClosedHearsNoMoreThanItShould(Over over) throws InterruptedException {
        try (var session = over.open(server.port)) {
            var election = session.locks().election(over + "p", "10.0.0.1:8443");
            var heard = new LinkedBlockingQueue<Optional<Leader>>();
            var failures = new AtomicInteger();
            var observer = election.observe(heard::add);
            election.observe(leads -> {
                if (failures.incrementAndGet() == 1) throw new AssertionError("an observer's own error");
                throw new IllegalStateException("an observer's own failure");
            });
            assertEquals(Optional.empty(), heard.poll(15, TimeUnit.SECONDS));
            // A slow observer gets only the latest change, so each change is awaited.
            Server.until(() -> failures.get() == 1);
            try (Hold hold = election.campaign()) {
                Leader leader = heard.poll(15, TimeUnit.SECONDS).orElseThrow();
                assertEquals("10.0.0.1:8443", leader.name());
                assertEquals(hold.token(), leader.token());
                assertEquals(hold.owner(), leader.owner());
                assertEquals(Optional.of(leader), election.leader());
                assertEquals(Optional.empty(), election.campaign(Duration.ZERO), "it leads twice");
                observer.close();
                Server.until(() -> failures.get() == 2);
            }
            Server.until(() -> failures.get() == 3);
            election.campaign().release();
            assertEquals(Optional.empty(), election.leader());
            assertTrue(heard.isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aSessionInDoubtIsNotHeldForCertain(Over over) {
        try (var proxy = new Proxy(server.port); var session = over.open(proxy.port)) {
            AllLocks all = session.locks().all(over + "q", over + "r").session();
            KeyLock one = session.locks().lock(over + "q");
            all.lock();
            assertTrue(all.isHeldByCurrentThread());
            proxy.keep(request -> request.contains("RENEW"));
            server.say("CLIENT", "KILL", "TYPE", "normal");
            Server.until(() -> !one.isHeldByCurrentThread());
            assertFalse(all.isHeldByCurrentThread(), "the server may have granted them to others");
        }
    }
}
