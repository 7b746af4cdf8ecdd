package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockingTaskExecutor;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.springframework.integration.util.CheckedCallable;
import org.springframework.integration.util.CheckedRunnable;
import rlock.Hold;
import rlock.Holds;
import rlock.LockLostException;
import rlock.Locks;
import rlock.shedlock.RlockLockProvider;
import rlock.spring.RlockRegistry;
import rlock.spring.RlockRegistry6;

/**
 * The exception of the work under a lock is kept, even if the release then fails: that exception is suppressed, or
 * logged.
 */
@Timeout(60)
class ExitsTest {
    private static final Duration LEASE = Duration.ofMillis(900);

    private interface Work {
        void run() throws Throwable;
    }

    /** Code that releases a lock at the end of work. {@code key} is the key on the server. */
    enum Exit {
        HOLD("exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                try (Hold hold = locks.lock("exit").acquire()) {
                    assertNotNull(hold);
                    work.run();
                }
            }
        },
        HOLDS("exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                try (Holds holds = locks.all("exit", "other").acquire()) {
                    assertNotNull(holds);
                    work.run();
                }
            }
        },
        REGISTRY_RUNS("app:exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                new RlockRegistry(locks, "app", LEASE).executeLocked("exit", (CheckedRunnable<Throwable>) work::run);
            }
        },
        REGISTRY_CALLS("app:exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                assertEquals("done", new RlockRegistry(locks, "app", LEASE).executeLocked("exit", called(work)));
            }
        },
        REGISTRY_RUNS_IN_TIME("app:exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                new RlockRegistry(locks, "app", LEASE).executeLocked("exit", Duration.ofSeconds(5), (CheckedRunnable<Throwable>) work::run);
            }
        },
        REGISTRY_CALLS_IN_TIME("app:exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                assertEquals("done", new RlockRegistry(locks, "app", LEASE).executeLocked("exit", Duration.ofSeconds(5), called(work)));
            }
        },
        REGISTRY_6_RUNS("app:exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                new RlockRegistry6(locks, "app", LEASE).executeLocked("exit", (CheckedRunnable<Throwable>) work::run);
            }
        },
        REGISTRY_6_CALLS_IN_TIME("app:exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                assertEquals("done", new RlockRegistry6(locks, "app", LEASE).executeLocked("exit", Duration.ofSeconds(5), called(work)));
            }
        },
        SHEDLOCK("shedlock:exit") {
            @Override
            void under(Locks locks, Work work) throws Throwable {
                var configuration = new LockConfiguration(Instant.now(), "exit", Duration.ofSeconds(30), Duration.ZERO);
                new DefaultLockingTaskExecutor(new RlockLockProvider(locks)).executeWithLock((LockingTaskExecutor.Task) work::run, configuration);
            }
        };

        private final String key;

        Exit(String key) {
            this.key = key;
        }

        abstract void under(Locks locks, Work work) throws Throwable;

        private static CheckedCallable<String, Throwable> called(Work work) {
            return () -> {
                work.run();
                return "done";
            };
        }
    }

    /** Why the release fails. */
    enum Release { SUCCEEDS, LOST, KNOWN_LOST, CLOSED }

    private static List<Throwable> failures() {
        return Arrays.asList(new IllegalArgumentException("of the work"),
                new InterruptedException("of the work"), new Exception("of the work"), new OutOfMemoryError("of the work"), null);
    }

    private static Stream<Arguments> cells() {
        return Stream.of(Exit.values()).flatMap(exit -> Stream.of(Release.values()).flatMap(release -> Stream.of(Over.values())
                .map(over -> Arguments.of(exit, release, over))));
    }

    @ParameterizedTest
    @MethodSource("cells")
    void theErrorOfTheWorkStays(Exit exit, Release release, Over over) {
        try (var server = new Server()) {
            for (Throwable failure : failures()) {
                try (var session = over.open(server.port, builder -> builder.lease(LEASE))) {
                    Throwable thrown = null;
                    try {
                        exit.under(session.locks(), () -> {
                            spoil(release, session, server, exit.key);
                            if (failure != null) throw failure;
                        });
                    } catch (Throwable of) {
                        thrown = of;
                    }
                    boolean isLogged = exit == Exit.SHEDLOCK || release == Release.SUCCEEDS;
                    if (failure != null) {
                        assertSame(failure, thrown);
                        assertEquals(isLogged ? 0 : 1, thrown.getSuppressed().length, Arrays.toString(thrown.getSuppressed()));
                    } else if (isLogged) {
                        assertNull(thrown);
                    } else {
                        assertTrue(thrown instanceof LockLostException || thrown.getCause() instanceof LockLostException, thrown.toString());
                    }
                }
                server.say("RLOCK.FORCE", exit.key);
                server.say("RLOCK.FORCE", "other");
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void aServerThatIsAwayDoesNotReplaceTheErrorOfATask(Over over) {
        try (var server = new Server(); var session = over.open(server.port)) {
            var configuration = new LockConfiguration(Instant.now(), "exit", Duration.ofSeconds(2), Duration.ZERO);
            var failure = new IllegalArgumentException("of the work");
            var thrown = assertThrows(Throwable.class, () -> new DefaultLockingTaskExecutor(new RlockLockProvider(session.locks()))
                    .executeWithLock((LockingTaskExecutor.Task) () -> {
                        server.kill();
                        throw failure;
                    }, configuration));
            assertSame(failure, thrown);
        }
    }

    private static void spoil(Release release, Over.Session session, Server server, String key) throws InterruptedException {
        switch (release) {
            case LOST -> server.say("RLOCK.FORCE", key);
            case KNOWN_LOST -> {
                server.say("RLOCK.FORCE", key);
                if (key.startsWith("shedlock")) return; // which does not renew
                Server.until(() -> session.locks().counters().lost() > 0);
            }
            case CLOSED -> session.locks().close();
            default -> TimeUnit.MILLISECONDS.sleep(1);
        }
    }
}
