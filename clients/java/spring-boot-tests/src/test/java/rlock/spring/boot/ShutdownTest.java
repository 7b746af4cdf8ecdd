package rlock.spring.boot;

import static org.junit.jupiter.api.Assertions.*;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.event.ContextClosedEvent;
import org.springframework.context.event.EventListener;
import org.springframework.scheduling.annotation.Async;
import org.springframework.scheduling.annotation.EnableAsync;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import rlock.Hold;
import rlock.Locks;
import rlock.tests.Server;

/** An application closes while methods with {@code @Locked} run, wait and begin. */
@Timeout(120)
class ShutdownTest {
    private static final long WORKS_MILLIS = 800;
    @AutoClose
    private static Server server;
    private static CountDownLatch begun;
    private static volatile boolean isClosing;
    private static final Map<String, String> ends = new ConcurrentHashMap<>();

    @BeforeAll
    static void start() {
        server = new Server();
    }

    @BeforeEach
    void reset() {
        begun = new CountDownLatch(3);
        isClosing = false;
        ends.clear();
        server.say("RLOCK.FORCE", "works"); // what was closed while it was locked is so until its lease ends
    }

    /** Methods that continue for a while after the application has begun to close. */
    public static class Work {
        @Async
        @Locked(key = "'async'")
        public void async() {
            works("async");
        }

        @Scheduled(fixedDelay = 100_000)
        @Locked(key = "'scheduled'")
        public void scheduled() {
            works("scheduled");
        }

        @Locked(key = "'thread'")
        public void thread() {
            works("thread");
        }
    }

    /** The same with sessions, which end with their connections. */
    public static class Sessions extends Work {
        @Override
        @Async
        @Locked(key = "'async'", session = true)
        public void async() {
            works("async");
        }

        @Override
        @Scheduled(fixedDelay = 100_000)
        @Locked(key = "'scheduled'", session = true)
        public void scheduled() {
            works("scheduled");
        }

        @Override
        @Locked(key = "'thread'", session = true)
        public void thread() {
            works("thread");
        }
    }

    // Meanwhile, another owner waits for the lock.
    private static void works(String name) {
        Hold hold = CurrentHold.get();
        begun.countDown();
        holdsWhile(name, hold, () -> !isClosing);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(WORKS_MILLIS);
        holdsWhile(name, hold, () -> System.nanoTime() < end);
        ends.putIfAbsent(name, "held to the end");
    }

    private static void holdsWhile(String name, Hold hold, BooleanSupplier goesOn) {
        while (goesOn.getAsBoolean() && !ends.containsKey(name)) {
            if (!hold.isHeld() || server.holds(name, hold.owner()) != 1) ends.put(name, "lost");
            try {
                Thread.sleep(10);
            } catch (InterruptedException shutdown) {
                // The work must not be interrupted.
            }
        }
    }

    @SpringBootConfiguration
    @EnableAutoConfiguration
    @EnableAsync
    @EnableScheduling
    static class Application {
        @EventListener
        void closes(ContextClosedEvent event) {
            isClosing = true;
        }
    }

    @Configuration
    static class WithLocksOfItsOwn {
        @Bean
        Locks mine() {
            return rlock.jedis.JedisLocks.standalone("127.0.0.1", server.port).open();
        }
    }

    private static ConfigurableApplicationContext run(List<Class<?>> sources, String... properties) {
        var application = new SpringApplication(Stream.concat(Stream.of(Application.class), sources.stream()).toArray(Class<?>[]::new));
        application.setDefaultProperties(Map.of("spring.main.banner-mode", "off", "spring.data.redis.host", "127.0.0.1",
                "spring.data.redis.port", server.port));
        return application.run(Arrays.stream(properties).map(each -> "--" + each).toArray(String[]::new));
    }

    private static Stream<Arguments> applications() {
        String[] waits = {"execution", "scheduling"};
        return Stream.of("jedis", "lettuce").flatMap(client -> Stream.of(Work.class, Sessions.class).flatMap(work ->
                Stream.of(List.<String>of(), List.of(waits[0]), List.of(waits[1]), List.of(waits)).flatMap(awaited ->
                        Stream.of(false, true).map(own -> Arguments.of(client, work, awaited, own)))))
                .filter(row -> !((Boolean) row.get()[3]) || row.get()[0].equals("jedis"));
    }

    @ParameterizedTest(name = "{0}, {1}, await-termination of {2}, a Locks bean of its own: {3}")
    @MethodSource("applications")
    void whatRunsKeepsItsLockUntilItEnds(String client, Class<? extends Work> work, List<String> awaited, boolean hasOwnLocks) throws Exception {
        String[] properties = Stream.concat(Stream.of("spring.data.redis.client-type=" + client), awaited.stream().flatMap(each -> Stream.of(
                "spring.task." + each + ".shutdown.await-termination=true",
                "spring.task." + each + ".shutdown.await-termination-period=20s"))).toArray(String[]::new);
        List<Class<?>> sources = hasOwnLocks ? List.of(work, WithLocksOfItsOwn.class) : List.of(work);
        var context = run(sources, properties);
        Work bean = context.getBean(Work.class);
        bean.async();
        var thread = new Thread(bean::thread);
        thread.start();
        assertTrue(begun.await(30, TimeUnit.SECONDS));
        var others = Stream.of("async", "scheduled", "thread").map(key -> CompletableFuture.supplyAsync(
                () -> server.waits("RLOCK.ACQUIRE", key, "other", "BLOCK", "30000"), task -> new Thread(task).start())).toList();
        for (String key : List.of("async", "scheduled", "thread")) Server.until(() -> server.waiters(key) == 1);
        context.close();
        thread.join();
        for (var other : others) assertNotNull(other.get(20, TimeUnit.SECONDS), "the lock is not free though the application is closed");
        for (String key : List.of("async", "scheduled", "thread")) server.say("RLOCK.RELEASE", key, "other");
        assertEquals(Map.of("async", "held to the end", "scheduled", "held to the end", "thread", "held to the end"), ends);
    }

    public static class Late {
        private final Inner inner;
        static CountDownLatch working;
        static volatile String nested = "";

        Late(Inner inner) {
            this.inner = inner;
        }

        @Locked(key = "'late'", waitAtMost = "forever")
        public void waits() {}

        @Locked(key = "'late'", waitAtMost = "forever", otherwise = Locked.Otherwise.SKIP)
        public String skips() {
            return "ran";
        }

        @Locked(key = "'works'")
        public void works(BooleanSupplier goesOn) {
            working.countDown();
            while (goesOn.getAsBoolean()) Thread.onSpinWait();
            nested = inner.locked();
        }
    }

    public static class Inner {
        @Locked(key = "'inner'")
        public String locked() {
            return server.holds("inner", CurrentHold.get().owner()) + " " + CurrentHold.get().isHeld();
        }
    }

    private static CompletableFuture<Object> call(java.util.concurrent.Callable<Object> work) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                Object result = work.call();
                return Thread.interrupted() ? "interrupted" : result == null ? "null" : result;
            } catch (Exception failed) {
                return Thread.interrupted() ? "interrupted" : failed.toString();
            }
        }, task -> new Thread(task).start());
    }

    @Test
    void nothingBeginsAndWhatRunsMayStillLock() throws Exception {
        Late.working = new CountDownLatch(1);
        server.say("RLOCK.ACQUIRE", "late", "other");
        try {
            var context = run(List.of(Late.class, Inner.class));
            Late bean = context.getBean(Late.class);
            var waits = call(() -> {
                bean.waits();
                return "ran";
            });
            var skips = call(bean::skips);
            var works = call(() -> {
                bean.works(() -> !waits.isDone() || !skips.isDone());
                return "ran";
            });
            assertTrue(Late.working.await(20, TimeUnit.SECONDS));
            Server.until(() -> server.waiters("late") == 2);
            context.close();
            assertEquals("rlock.spring.boot.NotLockedException: Late.waits did not run: the application closes", waits.get(1, TimeUnit.SECONDS));
            assertEquals("null", skips.get(1, TimeUnit.SECONDS));
            assertEquals("ran", works.get(1, TimeUnit.SECONDS));
            assertEquals("1 true", Late.nested);
            assertEquals("rlock.spring.boot.NotLockedException: Late.waits did not run: the application closes", call(() -> {
                bean.waits();
                return "ran";
            }).get(5, TimeUnit.SECONDS));
            assertTrue(server.isFree("works") && server.isFree("inner"));
        } finally {
            server.say("RLOCK.RELEASE", "late", "other");
        }
    }

    @Test
    void whatDoesNotEndIsWaitedForUntilTheTimeout() throws Exception {
        Late.working = new CountDownLatch(1);
        var isOver = new CountDownLatch(1);
        var context = run(List.of(Late.class, Inner.class), "rlock.shutdown-timeout=300ms");
        Late bean = context.getBean(Late.class);
        var works = call(() -> {
            bean.works(() -> isOver.getCount() > 0);
            return "ran";
        });
        assertTrue(Late.working.await(20, TimeUnit.SECONDS));
        long start = System.nanoTime();
        context.close();
        assertTrue(System.nanoTime() - start >= TimeUnit.MILLISECONDS.toNanos(300));
        isOver.countDown();
        assertTrue(works.get(10, TimeUnit.SECONDS).toString().startsWith("java.lang.IllegalStateException"), works.join().toString());
    }

    @Test
    void aMethodThatClosesTheApplicationDoesNotWaitForItself() throws Exception {
        Late.working = new CountDownLatch(1);
        var context = run(List.of(Late.class, Inner.class));
        Late bean = context.getBean(Late.class);
        var works = call(() -> {
            bean.works(() -> {
                context.close();
                return false;
            });
            return "ran";
        });
        assertNotNull(works.get(20, TimeUnit.SECONDS));
        assertFalse(context.isActive());
    }

    @Test
    void whatAThreadOfItsOwnHoldsIsWaitedFor() throws Exception {
        var context = run(List.of(Inner.class));
        Locks locks = context.getBean(Locks.class);
        var working = new CountDownLatch(1);
        var isHeld = new CompletableFuture<Boolean>();
        new Thread(() -> {
            try (Hold hold = locks.lock("plain").acquire()) {
                working.countDown();
                holdsWhile("plain", hold, () -> !isClosing);
                long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(WORKS_MILLIS);
                holdsWhile("plain", hold, () -> System.nanoTime() < end);
                isHeld.complete(hold.isHeld());
            }
        }).start();
        assertTrue(working.await(20, TimeUnit.SECONDS));
        context.close();
        assertTrue(isHeld.get(1, TimeUnit.SECONDS));
        assertTrue(server.isFree("plain"));
    }

    @Test
    void executorsEndBeforeTheLocks() throws Exception {
        var isHeld = new CompletableFuture<Boolean>();
        var context = run(List.of(Inner.class), "spring.task.execution.shutdown.await-termination=true",
                "spring.task.execution.shutdown.await-termination-period=20s");
        Locks locks = context.getBean(Locks.class);
        var working = new CountDownLatch(1);
        context.getBean("applicationTaskExecutor", Executor.class).execute(() -> {
            try (Hold hold = locks.lock("task").acquire()) {
                working.countDown();
                holdsWhile("task", hold, () -> !isClosing);
                long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(WORKS_MILLIS);
                holdsWhile("task", hold, () -> System.nanoTime() < end);
                isHeld.complete(hold.isHeld());
            }
        });
        assertTrue(working.await(20, TimeUnit.SECONDS));
        context.close();
        assertTrue(isHeld.get(20, TimeUnit.SECONDS), "a hold that no @Locked method has");
        assertTrue(server.isFree("task"));
    }
}
