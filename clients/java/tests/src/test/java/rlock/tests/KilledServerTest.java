package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;
import rlock.LockLostException;

/** Under load, the server is killed, stopped and restarted: no two hold at once, and nothing remains. */
@Timeout(180)
class KilledServerTest {
    private static final int USERS = 8;
    private static final Duration LEASE = Duration.ofSeconds(8);

    private final AtomicInteger inside = new AtomicInteger();
    private final AtomicInteger together = new AtomicInteger();
    private final AtomicInteger done = new AtomicInteger();
    private final AtomicInteger abandoned = new AtomicInteger();
    private final AtomicInteger lost = new AtomicInteger();
    private final AtomicLong newest = new AtomicLong();
    private volatile boolean over;

    @ParameterizedTest
    @EnumSource
    void nobodyIsBesideAnybodyAndNothingIsLeft(Over client) throws Exception {
        try (var server = new Server("--appendonly", "yes", "--appendfsync", "always");
                var session = client.open(server.port)) {
            KeyLock lock = session.locks().lock("load").lease(LEASE);
            List<CompletableFuture<Void>> users = new ArrayList<>();
            for (int i = 0; i < USERS; i++)
                users.add(CompletableFuture.runAsync(() -> user(lock), task -> new Thread(task).start()));
            for (int i = 0; i < 3; i++) {
                Thread.sleep(700);
                server.kill();
                Thread.sleep(200);
                server.start();
                Thread.sleep(700);
                server.signal("STOP");
                Thread.sleep(500);
                server.signal("CONT");
            }
            int before = done.get();
            Server.until(() -> done.get() > before + USERS);
            over = true;
            CompletableFuture.allOf(users.toArray(CompletableFuture[]::new)).orTimeout(60, TimeUnit.SECONDS).join();
            assertEquals(0, together.get(), "holders at the same time");
            assertEquals(0, lost.get(), "the lease outlives all of this");
            assertTrue(abandoned.get() > 0, "some gave up");
            Server.until(() -> server.isFree("load") && server.waiters("load") == 0);
            session.locks().lock("load").lock();
            session.locks().lock("load").unlock();
        }
    }

    @ParameterizedTest
    @EnumSource
    void nobodyOvertakesARequestThatWasToTieASession(Over client) {
        try (var server = new Server("--appendonly", "yes", "--appendfsync", "always"); var proxy = new Proxy(server.port);
                var session = client.open(proxy.port)) {
            KeyLock lock = session.locks().lock("tied").owner("ann");
            Hold hold = lock.session().acquire();
            // This includes what undoes it, so that the undoing takes as long as this test.
            proxy.keep(request -> request.contains("SESSION") || request.contains("RLOCK.RELEASE"));
            server.kill();
            server.start();
            hold.lost().orTimeout(15, TimeUnit.SECONDS).join();
            var next = CompletableFuture.supplyAsync(() -> {
                assertThrows(LockLostException.class, hold::release);
                return lock.acquire();
            }, task -> new Thread(task).start());
            // It is executed late, after the owner's next request.
            assertThrows(CompletionException.class, next.copy().orTimeout(250, TimeUnit.MILLISECONDS)::join, "it is overtaken");
            proxy.deliver();
            proxy.heal();
            Hold again = next.orTimeout(15, TimeUnit.SECONDS).join();
            assertTrue(again.token() > hold.token());
            again.renew(Duration.ofMinutes(1));
            again.release();
            assertTrue(server.isFree("tied"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatAWaitLeftUndoneEndsQuietlyWithItsLocks(Over client) {
        var complaints = new CopyOnWriteArrayList<Throwable>();
        var before = Thread.getDefaultUncaughtExceptionHandler();
        var others = Thread.getAllStackTraces().keySet(); // of other tests
        Thread.setDefaultUncaughtExceptionHandler((thread, complaint) -> complaints.add(complaint));
        try (var server = new Server(); var session = client.open(server.port)) {
            session.locks().lock("gone").acquire().release();
            server.kill();
            for (int i = 0; i < 5; i++) {
                KeyLock lock = session.locks().lock("gone:" + i).detached();
                assertThrows(LockException.Unavailable.class, () -> lock.acquire(Duration.ofMillis(20)));
            }
            session.locks().close();
            Server.until(() -> Thread.getAllStackTraces().keySet().stream()
                    .noneMatch(thread -> thread.getName().startsWith("rlock-") && !others.contains(thread)));
            assertEquals(List.of(), complaints);
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(before);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aWaitForAServerThatIsNotThereIsLoggedOnce(Over client) {
        var said = new CopyOnWriteArrayList<String>();
        Logger logger = Logger.getLogger("rlock");
        var handler = new Handler() {
            @Override
            public void publish(LogRecord line) {
                said.add(line.getMessage());
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        logger.addHandler(handler);
        try (var server = new Server(); var session = client.open(server.port)) {
            server.kill();
            var waiting = CompletableFuture.supplyAsync(() -> session.locks().lock("logged").acquire(), task -> new Thread(task).start());
            Server.until(() -> !said.isEmpty());
            server.start();
            assertTrue(waiting.join().isHeld());
            assertEquals(1, said.size(), said.toString());
            assertTrue(said.get(0).startsWith("logged: still waiting; last error: "), said.get(0));
            server.kill();
            var crowd = IntStream.range(0, 200).mapToObj(one -> session.locks().lock("crowd").acquireAsync(Duration.ofSeconds(8))).toList();
            Server.until(15, () -> crowd.stream().allMatch(CompletableFuture::isDone));
            assertTrue(said.size() <= 4, said.toString()); // one line in five seconds
        } finally {
            logger.removeHandler(handler);
        }
    }

    private void user(KeyLock lock) {
        while (!over) {
            try {
                if (ThreadLocalRandom.current().nextInt(4) == 0) giveUp(lock);
                else work(lock);
            } catch (InterruptedException never) {
                throw new AssertionError(never);
            }
        }
    }

    private void work(KeyLock lock) throws InterruptedException {
        Hold hold = lock.acquire(Duration.ofSeconds(30)).orElseThrow(() -> new AssertionError("half a minute was not enough"));
        if (inside.incrementAndGet() > 1 && hold.isHeld()) together.incrementAndGet();
        if (newest.getAndSet(hold.token()) >= hold.token()) together.incrementAndGet();
        inside.decrementAndGet();
        try {
            hold.release();
            done.incrementAndGet();
        } catch (LockLostException gone) {
            lost.incrementAndGet();
        } catch (LockException.Unavailable unknown) {
            // It ends with its lease, or is released later.
        }
    }

    private void giveUp(KeyLock lock) throws InterruptedException {
        var wait = lock.acquireAsync(KeyLock.FOREVER);
        Thread.sleep(ThreadLocalRandom.current().nextInt(20));
        if (wait.cancel(true)) abandoned.incrementAndGet();
        else wait.join().ifPresent(hold -> {
            try {
                hold.release();
            } catch (LockException.Unavailable unknown) {
                // As above.
            }
        });
    }
}
