package rlock.spring.boot;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.scheduling.annotation.Async;
import org.springframework.scheduling.annotation.EnableAsync;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.AbstractPlatformTransactionManager;
import org.springframework.transaction.support.DefaultTransactionStatus;
import org.springframework.transaction.TransactionDefinition;
import reactor.core.publisher.Mono;
import rlock.LockLostException;
import rlock.Locks;
import rlock.Mode;
import rlock.tests.Server;

/** What {@code @Locked} promises. */
@Timeout(60)
class LockedTest {
    @AutoClose
    private static Server server;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    public record Order(String id) {}

    public static class Orders {
        @Locked(key = "'order:' + #order.id")
        public long ship(Order order) {
            return server.holds("order:" + order.id(), CurrentHold.get().owner());
        }

        @Locked(key = "'order:' + #a0", waitAtMost = "0s")
        public String now(String id) {
            return "ran";
        }

        @Locked(key = "'order:' + #id", waitAtMost = "${how.long:50ms}", otherwise = Locked.Otherwise.SKIP)
        public String skipped(String id) {
            return "ran";
        }

        @Locked(key = "'order:' + #id", waitAtMost = "0s", otherwise = Locked.Otherwise.SKIP)
        public Optional<String> maybe(String id) {
            return Optional.of("ran");
        }

        @Locked(key = "@names.of(#id)", mode = Mode.READ, lease = "5s")
        public long read(String id) {
            assertTrue(CurrentHold.get().remaining().toMillis() <= 5_000);
            assertEquals(Mode.READ, CurrentHold.get().mode());
            return CurrentHold.get().token();
        }

        @Locked(key = "'permit'", limit = 2, session = true)
        public Object permit() {
            return server.say("RLOCK.INFO", "permit");
        }

        @Locked(key = "'order:' + #nr")
        public void misnamed(String id) {}

        @Locked(key = "'order:' + #id")
        public void fails(String id) {
            throw new IllegalArgumentException("of the method's");
        }

        @Locked(key = "'order:' + #id", lease = "600ms")
        public void loses(String id, boolean fails) throws Exception {
            server.say("RLOCK.FORCE", "order:" + id);
            CurrentHold.get().lost().get(5, TimeUnit.SECONDS);
            if (fails) throw new IllegalArgumentException("of the method's");
        }

        @Locked(key = "'order:' + #id")
        public int deep(String id, Orders self, int more) {
            return more == 0 ? (int) server.holds("order:" + id, CurrentHold.get().owner()) : self.deep(id, self, more - 1);
        }

        @Async
        @Locked(key = "'async'")
        public CompletableFuture<String> later() {
            return CompletableFuture.completedFuture(Thread.currentThread().getName() + " " + server.holds("async", CurrentHold.get().owner()));
        }

        @Transactional
        @Locked(key = "'tx'")
        public void inTransaction() {
            steps.add("work");
        }

        @Locked(key = "#some")
        public void noKey(String some) {}
    }

    public static class Names {
        public String of(String id) {
            return "order:" + id;
        }
    }

    private static final List<String> steps = new CopyOnWriteArrayList<>();

    private static final class Transactions extends AbstractPlatformTransactionManager {
        private static final long serialVersionUID = 1;

        @Override
        protected Object doGetTransaction() {
            return new Object();
        }

        @Override
        protected void doBegin(Object transaction, TransactionDefinition definition) {
            steps.add("begin " + server.isFree("tx"));
        }

        @Override
        protected void doCommit(DefaultTransactionStatus status) {
            steps.add("commit " + server.isFree("tx"));
        }

        @Override
        protected void doRollback(DefaultTransactionStatus status) {}
    }

    @Configuration
    @EnableAsync
    @EnableTransactionManagement
    static class Application {
        @Bean
        Orders orders() {
            return new Orders();
        }

        @Bean
        Names names() {
            return new Names();
        }

        @Bean
        Transactions transactions() {
            return new Transactions();
        }
    }

    private interface Trial {
        void with(Orders orders) throws Exception;
    }

    private static ApplicationContextRunner runner() {
        return new ApplicationContextRunner().withConfiguration(AutoConfigurations.of(RlockAutoConfiguration.class))
                .withPropertyValues("spring.data.redis.host=127.0.0.1", "spring.data.redis.port=" + server.port);
    }

    private static void run(Trial trial) {
        runner().withUserConfiguration(Application.class).run(context -> trial.with(context.getBean(Orders.class)));
    }

    @Test
    void theMethodRunsUnderTheLockOfItsKey() {
        run(orders -> {
            assertEquals(1, orders.ship(new Order("7")));
            assertTrue(server.isFree("order:7"));
            assertEquals(4, orders.deep("8", orders, 3));
            assertTrue(server.isFree("order:8"));
            assertThrows(IllegalStateException.class, CurrentHold::get);
            assertEquals("of the method's", assertThrows(IllegalArgumentException.class, () -> orders.fails("9")).getMessage());
            assertTrue(server.isFree("order:9"));
        });
    }

    @Test
    void whoDoesNotGetTheLockFailsOrSkips() {
        run(orders -> {
            server.say("RLOCK.ACQUIRE", "order:1", "somebody");
            var refused = assertThrows(NotLockedException.class, () -> orders.now("1"));
            assertEquals("Orders.now did not run: order:1 was not free in time", refused.getMessage());
            assertNull(orders.skipped("1"));
            assertEquals(Optional.empty(), orders.maybe("1"));
            server.say("RLOCK.RELEASE", "order:1", "somebody");
            assertEquals("ran", orders.now("1"));
            assertEquals("ran", orders.skipped("1"));
            assertEquals(Optional.of("ran"), orders.maybe("1"));
        });
    }

    @Test
    void readersPermitsAndSessionsAreAskedFor() {
        run(orders -> {
            server.say("RLOCK.ACQUIRE", "order:2", "somebody", "READ");
            assertTrue(orders.read("2") > 0);
            server.say("RLOCK.RELEASE", "order:2", "somebody", "READ");
            server.say("RLOCK.ACQUIRE", "permit", "somebody", "READ", "LIMIT", "2");
            assertNotNull(orders.permit());
            server.say("RLOCK.RELEASE", "permit", "somebody", "READ");
        });
    }

    @Test
    void aKeyOfWhatIsNoParameterIsRefused() {
        run(orders -> {
            var refused = assertThrows(IllegalStateException.class, () -> orders.misnamed("10"));
            assertTrue(refused.getMessage().contains("names of parameters need javac -parameters"), refused.getMessage());
            assertEquals("no parameter is named nr", refused.getCause().getMessage());
        });
    }

    @Test
    void aLossEndsTheCallUnlessTheMethodFailed() {
        run(orders -> {
            assertThrows(LockLostException.class, () -> orders.loses("3", false));
            var failed = assertThrows(IllegalArgumentException.class, () -> orders.loses("4", true));
            assertInstanceOf(LockLostException.class, failed.getSuppressed()[0]);
        });
    }

    @Test
    void theLockIsAroundATransactionAndInsideOfAnAsyncCall() {
        run(orders -> {
            steps.clear();
            orders.inTransaction();
            assertEquals(List.of("begin false", "work", "commit false"), steps);
            assertTrue(server.isFree("tx"));
            String[] said = orders.later().get(10, TimeUnit.SECONDS).split(" ");
            assertNotEquals(Thread.currentThread().getName(), said[0]);
            assertEquals("1", said[1]);
        });
    }

    @Test
    void anInterruptEndsTheWait() {
        run(orders -> {
            server.say("RLOCK.ACQUIRE", "order:5", "somebody");
            Thread.currentThread().interrupt();
            assertThrows(NotLockedException.class, () -> orders.ship(new Order("5")));
            assertTrue(Thread.interrupted());
            server.say("RLOCK.RELEASE", "order:5", "somebody");
            var wrong = assertThrows(IllegalStateException.class, () -> orders.noKey(null));
            assertTrue(wrong.getMessage().contains("has no key: #some is null"), wrong.getMessage());
        });
    }

    public static class Echo {
        @Locked(key = "'late'")
        public Object same(Object value) {
            return value;
        }
    }

    @Test
    void aLateResultIsRefusedThoughTheTypeOfTheMethodHidesIt() {
        runner().withBean(Echo.class).run(context -> {
            Echo bean = context.getBean(Echo.class);
            for (Object done : List.of("text", CompletableFuture.completedFuture("done"))) assertSame(done, bean.same(done));
            for (Object late : List.of(Mono.just("late"), new CompletableFuture<String>())) {
                var refused = assertThrows(IllegalStateException.class, () -> bean.same(late));
                assertTrue(refused.getMessage().contains("the lock is released before that is done"), refused.getMessage());
            }
            assertTrue(server.isFree("late"));
        });
    }

    private static CountDownLatch working;
    private static CountDownLatch closing;

    public static class Slow {
        @Locked(key = "'slow'")
        public boolean work() throws InterruptedException {
            working.countDown();
            closing.await();
            return CurrentHold.get().isHeld();
        }
    }

    public static class Worker implements AutoCloseable {
        private final FutureTask<Boolean> work;

        Worker(Slow slow) {
            work = new FutureTask<>(slow::work);
        }

        FutureTask<Boolean> start() {
            new Thread(work).start();
            return work;
        }

        @Override
        public void close() throws Exception {
            closing.countDown();
            work.get(10, TimeUnit.SECONDS);
        }
    }

    @Test
    void theLocksAreClosedAfterTheBeansWhoseMethodsAreLocked() {
        working = new CountDownLatch(1);
        closing = new CountDownLatch(1);
        runner().withBean(Slow.class).withBean(Worker.class).run(context -> {
            var work = context.getBean(Worker.class).start();
            assertTrue(working.await(10, TimeUnit.SECONDS));
            context.close();
            assertTrue(work.get(10, TimeUnit.SECONDS), "it went on without the lock");
            assertTrue(server.isFree("slow"));
        });
    }

    @Test
    void ownLocksAreUsed() {
        runner().withUserConfiguration(Application.class).withBean("mine", Locks.class,
                () -> rlock.lettuce.LettuceLocks.of(io.lettuce.core.RedisClient.create(),
                        io.lettuce.core.RedisURI.create("127.0.0.1", server.port)).ownerPrefix("mine:").open()).run(context -> {
                            assertEquals(1, context.getBeansOfType(Locks.class).size());
                            assertEquals(1, context.getBean(Orders.class).ship(new Order("10")));
                        });
    }
}
