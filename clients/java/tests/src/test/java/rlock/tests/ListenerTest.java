package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;
import rlock.LockInfo;
import rlock.LockListener;
import rlock.LockListener.Held;
import rlock.LockListener.Result;
import rlock.LockListener.Waited;
import rlock.LockLostException;
import rlock.Mode;

/** What is reported about locks: events, counters, and what the server knows. */
@Timeout(60)
class ListenerTest {
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    private static final class Heard implements LockListener {
        final List<Waited> waits = new CopyOnWriteArrayList<>();
        final List<Held> held = new CopyOnWriteArrayList<>();
        final List<Held> lost = new CopyOnWriteArrayList<>();

        @Override
        public Object context() {
            return Thread.currentThread();
        }

        @Override
        public void waited(Waited wait) {
            waits.add(wait);
        }

        @Override
        public void held(Held hold) {
            held.add(hold);
        }

        @Override
        public void lost(Held hold) {
            lost.add(hold);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aListenerHearsWaitsHoldsAndLosses(Over over) throws Exception {
        var heard = new Heard();
        try (var session = over.open(server.port, builder -> builder.listener(heard))) {
            KeyLock lock = session.locks().lock(over + ":heard").lease(Duration.ofMillis(600));
            lock.lock();
            assertEquals(1, session.locks().counters().held());
            assertFalse(lock.detached().tryAcquire().isPresent());
            assertEquals(Result.NOT_ACQUIRED, heardOf(heard, 2).result());
            Thread.sleep(50);
            lock.unlock();
            Server.until(() -> heard.held.size() == 1);
            Held held = heard.held.get(0);
            assertEquals(lock.key(), held.key());
            assertEquals(Mode.WRITE, held.mode());
            assertTrue(held.time().toMillis() >= 50, held.toString());
            Waited first = heard.waits.get(0);
            assertEquals(Result.GRANTED, first.result());
            assertSame(Thread.currentThread(), first.context());

            server.say("RLOCK.ACQUIRE", lock.key(), "somebody", "LEASE", "600000");
            var async = lock.acquireAsync(Duration.ofMillis(800));
            assertTrue(async.get(5, TimeUnit.SECONDS).isEmpty());
            Waited third = heardOf(heard, 3);
            assertEquals(Result.NOT_ACQUIRED, third.result());
            assertTrue(third.time().toMillis() >= 800, third.toString());
            assertSame(Thread.currentThread(), third.context());
            var cancelled = lock.acquireAsync(Duration.ofSeconds(80));
            Server.until(() -> server.waiters(lock.key()) == 1);
            assertEquals(1, session.locks().counters().waiting());
            cancelled.cancel(false);
            assertEquals(Result.CANCELLED, heardOf(heard, 4).result());
            server.say("RLOCK.RELEASE", lock.key(), "somebody");

            Hold hold = lock.acquire();
            server.say("RLOCK.FORCE", lock.key());
            hold.lost().get(5, TimeUnit.SECONDS);
            assertEquals(1, session.locks().counters().lost());
            assertEquals(0, session.locks().counters().held());
            Server.until(() -> heard.lost.size() == 1);
            assertThrows(LockLostException.class, hold::release);
            lock.acquire(); // nobody asks whether it is lost: so says a renewal
            server.say("RLOCK.FORCE", lock.key());
            Server.until(() -> heard.lost.size() == 2);
            server.say("SET", "a string", "x");
            assertThrows(LockException.class, session.locks().lock("a string")::lock);
            assertEquals(Result.FAILED, heardOf(heard, 7).result());
            assertEquals(1, heard.held.size(), "a loss is no release");
            var counters = session.locks().counters();
            assertEquals(0, counters.waiting());
            assertTrue(counters.failedRenewals() >= 1);
        }
    }

    @ParameterizedTest
    @EnumSource
    void theLossOfSeveralNamesThemAll(Over over) throws Exception {
        String one = over + ":lost:one", two = over + ":lost:two";
        try (var session = over.open(server.port)) {
            var held = session.locks().all(one, two).lease(Duration.ofMillis(600)).acquire();
            server.say("RLOCK.FORCE", two);
            held.lost().get(5, TimeUnit.SECONDS);
            var lost = assertThrows(LockLostException.class, held::release);
            assertEquals(one + ", " + two + " was lost before it was released", lost.getMessage());
        }
    }

    @ParameterizedTest
    @EnumSource
    void severalThatAreHeldAlreadyAreGranted(Over over) {
        var heard = new Heard();
        try (var session = over.open(server.port, builder -> builder.listener(heard))) {
            var all = session.locks().all(over + ":one", over + ":two");
            all.lock();
            all.lock();
            heardOf(heard, 4); // together, and each of them once more
            assertEquals(List.of(), heard.waits.stream().filter(wait -> wait.result() != Result.GRANTED).toList());
            all.unlock();
            all.unlock();
        }
    }

    private static Waited heardOf(Heard heard, int count) {
        Server.until(() -> heard.waits.size() >= count);
        return heard.waits.get(count - 1);
    }

    /** R8: a listener can neither stop nor delay the package. */
    @ParameterizedTest
    @EnumSource
    void aListenerThatHangsOrThrowsDelaysNothing(Over over) throws Exception {
        var never = new CountDownLatch(1);
        var hangs = new LockListener() {
            @Override
            public Object context() {
                throw new StackOverflowError("of the user's");
            }

            @Override
            public void waited(Waited wait) {
                if (wait.key().endsWith("hangs")) await(never);
                throw new AssertionError("of the user's");
            }

            @Override
            public void held(Held hold) {
                throw new IllegalStateException("of the user's");
            }
        };
        long start;
        try (var session = over.open(server.port, builder -> builder.listener(hangs))) {
            KeyLock lock = session.locks().lock(over + ":thrown");
            for (int i = 0; i < 10; i++) lock.acquire().release();
            Hold kept = session.locks().lock(over + ":kept").lease(Duration.ofSeconds(3)).acquire();
            session.locks().lock(over + ":hangs").acquire().release();
            int events = 0;
            while (session.locks().counters().unheard() == 0) {
                lock.acquire().release();
                events += 2;
                assertTrue(events <= 2 * LockListener.BACKLOG, "events are kept without a bound");
            }
            Duration left = kept.remaining();
            Server.until(() -> kept.remaining().compareTo(left) > 0); // it is renewed
            assertEquals(0, session.locks().counters().lost());
            kept.release();
            start = System.nanoTime();
        }
        assertTrue(System.nanoTime() - start < TimeUnit.SECONDS.toNanos(2), "closing waits for the listener");
        never.countDown();
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException interrupt) {
            throw new IllegalStateException(interrupt);
        }
    }

    @ParameterizedTest
    @EnumSource
    void theServerSaysWhoHoldsAndWhoWaits(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            KeyLock lock = session.locks().lock(over + ":info");
            assertFalse(lock.isLocked());
            assertFalse(lock.forceUnlock());
            lock.lock();
            lock.lock();
            var waits = lock.acquireAsync(Duration.ofSeconds(60));
            var shares = session.locks().permits(lock.key(), 3).owner("reader").acquireAsync(KeyLock.FOREVER);
            Server.until(() -> server.waiters(lock.key()) == 2);
            LockInfo info = lock.info();
            assertTrue(lock.isLocked());
            assertEquals(lock.key(), info.key());
            assertEquals(1, info.holderCount());
            LockInfo.Holder holder = info.holders().get(0);
            assertEquals(session.locks().threadOwner(), holder.owner());
            assertEquals(Mode.WRITE, holder.mode());
            assertEquals(2, holder.depth());
            assertEquals(lock.token(), holder.token());
            assertTrue(holder.lease().toMillis() > 20_000 && holder.lease().toMillis() <= 30_000, holder.toString());
            assertFalse(holder.isSession());
            assertEquals(2, info.queueLength());
            LockInfo.Waiter writer = info.queue().stream().filter(each -> each.mode() == Mode.WRITE).findFirst().orElseThrow();
            assertEquals(0, writer.limit());
            assertFalse(writer.hasTurn());
            LockInfo.Waiter reader = info.queue().stream().filter(each -> each.mode() == Mode.READ).findFirst().orElseThrow();
            assertEquals("reader", reader.owner());
            assertEquals(3, reader.limit());
            assertTrue(reader.remaining().orElseThrow().toMinutes() < 60, "a wait for ever is asked again in time");
            shares.cancel(false);
            Server.until(() -> server.waiters(lock.key()) == 1);
            assertTrue(lock.forceUnlock());
            waits.get(5, TimeUnit.SECONDS).orElseThrow().release();
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            assertFalse(lock.isLocked());
        }
    }
}
