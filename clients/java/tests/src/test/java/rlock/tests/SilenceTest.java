package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;
import rlock.LockLostException;

/** Single connections that are silent or late, while others work. */
@Timeout(120)
class SilenceTest {
    private Server server;
    private Proxy proxy;

    @BeforeEach
    void start() {
        server = new Server();
        proxy = new Proxy(server.port);
    }

    @AfterEach
    void stop() {
        if (proxy != null) proxy.close();
        if (server != null) server.close();
    }

    @ParameterizedTest
    @EnumSource
    void aWaitWhoseSubscriptionDiedSilentlyAsksAgain(Over over) {
        try (var session = over.open(proxy.port)) {
            server.say("RLOCK.ACQUIRE", "order", "somebody");
            var waiting = CompletableFuture.supplyAsync(() -> session.locks().lock("order").acquire(), task -> new Thread(task).start());
            Server.until(() -> server.waiters("order") == 1);
            proxy.loseSilently(request -> request.contains("SSUBSCRIBE"));
            Server.until(() -> server.listeners() == 0);
            server.say("RLOCK.RELEASE", "order", "somebody");
            assertTrue(waiting.orTimeout(10, TimeUnit.SECONDS).join().isHeld());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aWaitHearsOfItsGrantThoughItAskedAgainInVain(Over over) throws Exception {
        try (var session = over.open(proxy.port)) {
            server.say("RLOCK.ACQUIRE", "order", "somebody");
            var waiting = session.locks().lock("order").acquireAsync(KeyLock.FOREVER);
            Server.until(() -> server.waiters("order") == 1);
            proxy.keep(request -> request.contains("RLOCK.ACQUIRE") && proxy.silent() == 0);
            Server.until(() -> proxy.silent() == 1);
            server.say("RLOCK.RELEASE", "order", "somebody");
            // It ignores the message for the previous request, but accepts the reply to the next one.
            waiting.get(3, TimeUnit.SECONDS).orElseThrow().release();
        }
    }

    @ParameterizedTest
    @EnumSource
    void lateRenewalsOfManyHoldsTakeFewThreads(Over over) {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().readLock("order").detached().lease(Duration.ofSeconds(6));
            List<Hold> holds = Stream.generate(lock::acquire).limit(300).toList();
            server.signal("STOP");
            var most = new AtomicInteger();
            Server.until(() -> {
                most.accumulateAndGet(threads(), Math::max);
                return holds.get(0).remaining().toMillis() < 3_000;
            });
            server.signal("CONT");
            Server.until(() -> holds.stream().allMatch(hold -> hold.remaining().toMillis() > 3_000));
            holds.forEach(Hold::release);
            assertTrue(most.get() < 50, most + " threads for 300 holds");
        }
    }

    /** Lost by its deadline: the server keeps it until it notices that its connection is closed. */
    @ParameterizedTest
    @EnumSource
    void aLostSessionIsUndoneBeforeItsOwnerAsksAgain(Over over) throws Exception {
        try (var session = over.open(proxy.port)) {
            KeyLock lock = session.locks().lock("order").owner("ann").lease(Duration.ofSeconds(1));
            Hold hold = lock.session().acquire();
            proxy.hideCloses();
            proxy.keep(request -> true);
            Server.until(() -> !hold.isHeld());
            assertThrows(LockLostException.class, hold::release);
            proxy.heal();
            Hold next = lock.acquireAsync(Duration.ofSeconds(20)).get(20, TimeUnit.SECONDS).orElseThrow();
            assertNotEquals(hold.token(), next.token(), "it has entered what its connection ends");
            next.release();
        }
    }

    private static int threads() {
        return (int) Thread.getAllStackTraces().keySet().stream().filter(thread -> thread.getName().startsWith("rlock")).count();
    }

    @ParameterizedTest
    @EnumSource
    void aWaitEndsInTimeThoughNoConnectionSaysAnything(Over over) throws Exception {
        try (var first = over.open(proxy.port); var used = over.open(proxy.port)) {
            used.locks().lock("order").acquire().release();
            proxy.keep(request -> true);
            for (var session : List.of(first, used)) {
                // On first use, there is much to load.
                assertThrows(LockException.Unavailable.class, () -> session.locks().lock("order").tryLock(1, TimeUnit.MILLISECONDS));
                long start = System.nanoTime();
                assertThrows(LockException.Unavailable.class, () -> session.locks().lock("order").tryLock(100, TimeUnit.MILLISECONDS));
                long took = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
                assertTrue(took >= 100 && took < 1_000, took + " ms");
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void aWaitIsNeverShortThoughNoServerHasEverAnswered(Over over) {
        server.kill();
        try (var session = over.open(server.port)) {
            waitInVain(session.locks().lock("order"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aWaitIsNeverShortThoughAnEarlierOneIsBeingUndone(Over over) {
        try (var session = over.open(proxy.port)) {
            KeyLock lock = session.locks().lock("order").owner("one");
            lock.acquire().release();
            proxy.keep(request -> request.contains("RLOCK"));
            assertThrows(LockException.Unavailable.class, () -> lock.tryLock(5, TimeUnit.MILLISECONDS));
            waitInVain(lock);
        }
    }

    private static void waitInVain(KeyLock lock) {
        for (int i = 0; i < 100; i++) {
            long start = System.nanoTime();
            if (i % 2 == 0) assertThrows(LockException.Unavailable.class, () -> lock.tryLock(5, TimeUnit.MILLISECONDS));
            else assertThrows(CompletionException.class, () -> lock.acquireAsync(Duration.ofMillis(5)).join());
            long took = TimeUnit.NANOSECONDS.toMicros(System.nanoTime() - start);
            assertTrue(took >= 5_000, took + " µs, " + i);
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatConnectsTooLateIsClosed(Over over) {
        try (var session = over.open(server.port, builder -> builder.timeout(Duration.ofMillis(300)))) {
            server.signal("STOP");
            assertThrows(LockException.Unavailable.class, () -> session.locks().lock("order").tryLock(1, TimeUnit.SECONDS));
            server.signal("CONT");
            Server.until(() -> server.connections() == 1); // which asks that
        }
    }

    @ParameterizedTest
    @EnumSource
    void manyWhoNeedAConnectionShareOneAttempt(Over over) {
        proxy.keep(request -> true);
        try (var session = over.open(proxy.port)) {
            for (int i = 0; i < 40; i++)
                assertThrows(LockException.Unavailable.class, () -> session.locks().lock("order").tryLock(1, TimeUnit.MILLISECONDS));
            assertTrue(proxy.accepted.get() <= 5, proxy.accepted + " connections for 40 waits of 50 ms");
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatWasNeverSentIsNotUndone(Over over) {
        try (var session = over.open(server.port)) {
            session.locks().lock("order").acquire().release();
            server.kill();
            // Ends the connections that are still open: an attempt that writes to one of them has sent something.
            assertThrows(LockException.Unavailable.class, () -> session.locks().call("order", "PING"));
            for (int i = 0; i < 100; i++)
                assertThrows(LockException.Unavailable.class, () -> session.locks().lock("order").detached().acquire(Duration.ofMillis(1)));
            assertTrue(threads() < 50, threads() + " threads after 100 attempts");
            server.start();
            session.locks().lock("order").acquire().release();
        }
        // What has yet to be undone is undone before its locks are closed.
        assertEquals(1, server.calls("rlock.release"));
        assertEquals(0, server.calls("rlock.cancel"));
    }

    @ParameterizedTest
    @EnumSource
    void manyWaitsShareOneSubscriptionThoughTheFirstOneFailed(Over over) {
        try (var session = over.open(proxy.port)) {
            KeyLock lock = session.locks().lock("order").detached();
            server.say("RLOCK.ACQUIRE", "order", "somebody");
            proxy.leaveUnanswered(request -> request.contains("SUBSCRIBE") && proxy.silent() < 2);
            List<CompletableFuture<Void>> waits = Stream.generate(() -> CompletableFuture.runAsync(
                    () -> lock.acquire().release(), task -> new Thread(task).start())).limit(100).toList();
            Server.until(() -> proxy.silent() == 2);
            Server.until(() -> server.waiters("order") == 100 && server.listeners() > 0);
            server.say("RLOCK.RELEASE", "order", "somebody");
            waits.forEach(CompletableFuture::join);
            assertEquals(1, server.listeners());
        }
    }

    @ParameterizedTest
    @EnumSource
    void manyWaitsConnectToAServerThatIsGoneAFewTimesPerSecond(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock("order").detached();
            server.say("RLOCK.ACQUIRE", "order", "somebody");
            for (int i = 0; i < 100; i++) {
                lock.acquireAsync(KeyLock.FOREVER);
                TimeUnit.MILLISECONDS.sleep(5); // each asks at another time
            }
            Server.until(() -> server.waiters("order") == 100);
            server.kill();
            var connections = new AtomicInteger();
            try (var gone = new ServerSocket(server.port)) {
                Thread refusing = new Thread(() -> {
                    try {
                        while (true) {
                            gone.accept().close();
                            connections.incrementAndGet();
                        }
                    } catch (IOException ended) {
                        // With the test.
                    }
                });
                refusing.start();
                long start = System.nanoTime();
                Server.until(() -> System.nanoTime() - start > TimeUnit.SECONDS.toNanos(3));
                double most = 10 * (System.nanoTime() - start) / 1e9;
                assertTrue(connections.get() < most, connections + " connections");
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatWaitsEndsWithItsLocksAndNothingIsGrantedAfterwards(Over over) {
        try (var session = over.open(server.port)) {
            server.say("RLOCK.ACQUIRE", "order", "somebody");
            List<CompletableFuture<Hold>> waits = Stream.generate(() -> CompletableFuture.supplyAsync(
                    () -> session.locks().lock("order").acquire(), task -> new Thread(task).start())).limit(3).toList();
            Server.until(() -> server.waiters("order") == 3);
            session.locks().close();
            server.say("RLOCK.RELEASE", "order", "somebody");
            for (var each : waits) {
                var failed = assertThrows(CompletionException.class, () -> each.orTimeout(5, TimeUnit.SECONDS).join());
                assertInstanceOf(IllegalStateException.class, failed.getCause());
            }
            assertThrows(IllegalStateException.class, session.locks().lock("other")::tryLock);
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatUndoesAnAbandonedAttemptEndsNoLaterHold(Over over) {
        try (var session = over.open(proxy.port, builder -> builder.timeout(Duration.ofMillis(300)))) {
            KeyLock lock = session.locks().lock("order");
            lock.acquire().release();
            proxy.leaveUnanswered(request -> request.contains("RLOCK.ACQUIRE"));
            proxy.keep(request -> request.contains("RLOCK.RELEASE"));
            assertThrows(LockException.Unavailable.class, lock::tryAcquire);
            var next = assertThrows(LockException.Unavailable.class, lock::tryAcquire, "the attempt before is being undone");
            assertNotNull(next.getCause(), "nobody knows why");
            proxy.heal();
            Server.until(() -> server.isFree("order"));
            Hold hold = lock.acquire();
            long before = server.calls("rlock.release");
            proxy.deliver();
            Server.until(() -> server.calls("rlock.release") > before);
            assertEquals(1, server.holds("order", hold.owner()), "ended by what undid the attempt before");
            hold.release();
        }
    }
}
