package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.LockLostException;
import rlock.Once;
import rlock.Once.IfItFails;

/** One run in each interval. */
@Timeout(60)
class OnceTest {
    private static final Duration HOUR = Duration.ofHours(1);
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    private static void nothing(Hold hold) {}

    private static void fails(Hold hold) {
        throw new IllegalCallerException("of the work");
    }

    private static void takesLong(Hold hold) throws InterruptedException {
        Thread.sleep(3_000);
    }

    private static long left(String key) {
        return (Long) server.say("PTTL", key);
    }

    @ParameterizedTest
    @EnumSource
    void oneOfAllRunsInEachInterval(Over over) throws Exception {
        try (var one = over.open(server.port); var other = over.open(server.port)) {
            String key = over + "each";
            long start = System.nanoTime();
            var wasHeld = new AtomicBoolean();
            assertTrue(one.locks().once(key, Duration.ofSeconds(1)).run(hold -> wasHeld.set(hold.isHeld())));
            assertTrue(wasHeld.get());
            assertFalse(other.locks().once(key, Duration.ofSeconds(1)).run(OnceTest::fails));
            assertTrue(other.locks().once(key, Duration.ofSeconds(1)).run(Duration.ofSeconds(20), OnceTest::nothing));
            assertTrue(System.nanoTime() - start >= 1_000_000_000);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aRunThatFailsKeepsItsIntervalOrNot(Over over) {
        try (var session = over.open(server.port)) {
            for (var choice : IfItFails.values()) {
                Once once = session.locks().once(over + "fails" + choice, HOUR).ifItFails(choice);
                assertThrows(IllegalCallerException.class, () -> once.run(OnceTest::fails));
                assertEquals(choice == IfItFails.AGAIN, once.run(OnceTest::nothing));
                assertFalse(once.run(OnceTest::nothing));
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void theIntervalIsAsLongAsItIs(Over over) throws Exception {
        try (var session = over.open(server.port)) {
            Once brief = session.locks().once(over + "short", Duration.ofSeconds(10)).ifItFails(IfItFails.AGAIN);
            assertTrue(brief.run(OnceTest::nothing));
            assertTrue(left(over + "short") <= 11_000);
            Once again = session.locks().once(over + "long", HOUR).ifItFails(IfItFails.AGAIN).lease(Duration.ofSeconds(2));
            assertTrue(again.run(OnceTest::takesLong));
            assertTrue(left(over + "long") > 3_500_000);
            Once over200 = session.locks().once(over + "over", Duration.ofMillis(200));
            assertTrue(over200.ifItFails(IfItFails.AGAIN).run(OnceTest::takesLong));
            assertThrows(LockLostException.class, () -> over200.run(OnceTest::takesLong));
        }
    }

    @ParameterizedTest
    @EnumSource
    void anIntervalIsAtLeastAMillisecond(Over over) {
        try (var session = over.open(server.port)) {
            assertThrows(IllegalArgumentException.class, () -> session.locks().once("k", Duration.ZERO));
        }
    }
}
