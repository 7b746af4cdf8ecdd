package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.LockException;
import rlock.LockLostException;
import rlock.Locks;

/** One of many keys. */
@Timeout(60)
class AnyTest {
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    @ParameterizedTest
    @EnumSource
    void aPermitFirstAndThenTheFirstFreeKey(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            String a = over + "a", b = over + "b", pool = over + "pool";
            var any = session.locks().any(pool, a, b, a);
            Hold first = any.acquire();
            Hold second = any.tryAcquire().orElseThrow();
            assertEquals(a, first.key());
            assertEquals(b, second.key());
            assertTrue(any.tryAcquire().isEmpty());
            assertTrue(any.acquire(Duration.ofMillis(100)).isEmpty());
            var waiting = CompletableFuture.supplyAsync(any::acquire, task -> new Thread(task).start());
            Server.until(() -> session.locks().permits(pool, 2).info().queueLength() == 1);
            second.close();
            try (Hold third = waiting.join()) {
                assertEquals(b, third.key());
            }
            first.release();
            assertTrue(server.isFree(a) && server.isFree(b) && server.isFree(pool));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aHoldShowsWhatItIs(Over over) {
        try (var session = over.open(server.port); Hold hold = session.locks().lock(over + "shown").owner("me").acquire()) {
            assertTrue(hold.toString().matches("WRITE of .*shown by me, token \\d+ \\((2\\d{4}|30000) ms left\\)"), hold.toString());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aCheckSaysWhatIsWrong(Over over) throws Exception {
        server.say("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "-ssubscribe");
        try (var session = over.open(server.port); var deaf = over.as(server.port, "deaf", "secret", ""); var bare = new Server(false);
                var without = over.open(bare.port)) {
            for (var each : List.of(session, deaf)) { // the first connection may take longer than a check
                each.locks().lock("first").acquire().release();
            }
            session.locks().check("k");
            try (Hold taken = session.locks().lock("k").acquire()) {
                session.locks().check(taken.key());
            }
            // On a busy machine, a check may end before it has connected to subscribe.
            for (int checks = 0; !isRefused(deaf.locks()); checks++) assertTrue(checks < 10);
            String said = assertThrows(LockException.class, () -> without.locks().check("k")).getMessage();
            assertTrue(said.contains("RLOCK module"), said);
            assertTrue(server.isFree("k"));
        }
    }

    private static boolean isRefused(Locks locks) throws InterruptedException {
        try {
            locks.check("k");
            return false;
        } catch (LockException.NoPermission expected) {
            return true;
        }
    }

    @ParameterizedTest
    @EnumSource
    void aWaitThatEndsGivesItsPermitBack(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            String a = over + "c", pool = over + "pool2";
            server.say("RLOCK.ACQUIRE", a, "somebody", "LEASE", "600000");
            session.locks().lock(over + "first").acquire().release(); // the first connection may take longer than a wait
            var any = session.locks().any(pool, a);
            assertTrue(any.acquire(Duration.ofMillis(100)).isEmpty());
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, () -> any.acquire(Duration.ofSeconds(30)));
            assertTrue(server.isFree(pool));
            var waiting = CompletableFuture.supplyAsync(any::acquire, task -> new Thread(task).start());
            Server.until(() -> !server.isFree(pool));
            server.say("RLOCK.FORCE", a);
            Hold hold = waiting.join();
            server.say("RLOCK.FORCE", a);
            assertThrows(LockLostException.class, hold::release);
            assertTrue(server.isFree(pool));
            assertThrows(IllegalArgumentException.class, () -> session.locks().any(pool));
            assertThrows(IllegalArgumentException.class, () -> session.locks().any(pool, pool));
        }
    }
}
