package rlock;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import rlock.Driver.Address;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/** Cases that a real server cannot be made to produce at the right moment. */
@Timeout(60)
class DriverTest {
    /** There is no server. */
    private interface Alone extends Driver {
        @Override
        default Link connect(Address at, long timeoutMillis) {
            throw new LinkException("no server", null);
        }

        @Override
        default Link connectSentinel(Address at, long timeoutMillis) {
            throw new LinkException("no Sentinel", null);
        }

        @Override
        default Feed listen(Address at, long timeoutMillis, Ear ear) {
            throw new LinkException("nothing to hear", null);
        }

        @Override
        default int database() {
            return 0;
        }

        @Override
        default void close() {}
    }

    /**
     * The first request of this command breaks; the reply to the second one is an error, which is read after its time
     * limit.
     */
    private record Late(String command, AtomicInteger count) implements Alone {
        @Override
        public Link connect(Address at, long timeoutMillis) {
            return new Link() {
                @Override
                public Object call(long timeoutMillis, String... words) {
                    if (words[0].equals("INFO")) return "run_id:late\r\n";
                    if (words[0].equals("RLOCK.INFO")) return List.of("holders", List.of());
                    if (!words[0].equals(command)) return 1L;
                    if (count.incrementAndGet() == 1) throw new LinkException("broken", null);
                    suspended(timeoutMillis);
                    throw new ServerException("ERR refused");
                }

                @Override
                public void whenClosed(Runnable closed) {}

                @Override
                public void close() {}
            };
        }

        // Acts like a process that resumes after a request's time limit, when the reply has arrived.
        private static void suspended(long millis) {
            try {
                TimeUnit.MILLISECONDS.sleep(millis + 5);
            } catch (InterruptedException interrupt) {
                throw new IllegalStateException(interrupt);
            }
        }
    }

    private static Locks over(String command) {
        return Locks.Builder.standalone(new Late(command, new AtomicInteger()), new Address("late", 1)).open();
    }

    @Test
    void whatAServerRefusesIsSaidThoughItIsReadLate() {
        try (Locks locks = over("RLOCK.ACQUIRE")) {
            KeyLock lock = locks.lock("order");
            var refused = assertThrows(LockException.class, () -> lock.tryLock(2, TimeUnit.SECONDS));
            assertEquals("ERR refused", refused.getMessage());
        }
        try (Locks locks = over("RLOCK.RELEASE")) {
            Hold hold = locks.lock("order").fixedLease(Duration.ofMillis(500)).acquire();
            var refused = assertThrows(LockException.class, hold::release);
            assertEquals("ERR refused", refused.getMessage());
        }
    }

    /** Subscribing takes this long, and is never confirmed. */
    private record Deaf(long millis) implements Alone {
        @Override
        public Feed listen(Address at, long timeoutMillis, Ear ear) {
            Late.suspended(millis);
            return new Feed() {
                @Override
                public CompletableFuture<Void> subscribe(String channel) {
                    return new CompletableFuture<>();
                }

                @Override
                public void close() {}
            };
        }
    }

    @Test
    void whoListensLateWaitsForTheConfirmationOnlyInWhatIsLeftOfItsTime() {
        try (Locks locks = Locks.Builder.standalone(new Deaf(1_900), new Address("deaf", 1)).open(); var waiter = locks.links.inbox.waiter(() -> {})) {
            long began = System.nanoTime();
            long end = began + TimeUnit.SECONDS.toNanos(2);
            assertThrows(LinkException.class, () -> waiter.listen(new Address("deaf", 1), "key", end));
            long took = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
            assertTrue(took >= 1_990 && took < 2_800, took + " ms");
        }
    }
}
