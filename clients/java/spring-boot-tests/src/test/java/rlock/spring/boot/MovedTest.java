package rlock.spring.boot;

import static org.junit.jupiter.api.Assertions.*;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.integration.support.locks.LockRegistry;
import rlock.tests.Server;

/** The application of docs/coming-from/spring.md, before and after its migration. */
@Timeout(120)
class MovedTest {
    @SpringBootConfiguration
    @EnableAutoConfiguration
    static class Before {
        @Bean
        RedisLockRegistry lockRegistry(RedisConnectionFactory connectionFactory) {
            return new RedisLockRegistry(connectionFactory, "app");
        }

        @Bean
        Orders orders(LockRegistry registry) {
            return new Orders(registry);
        }
    }

    @SpringBootConfiguration
    @EnableAutoConfiguration
    static class After {
        @Bean
        Orders orders(LockRegistry registry) {
            return new Orders(registry);
        }
    }

    @SpringBootConfiguration
    @EnableAutoConfiguration
    static class Annotated {
        @Bean
        Orders orders() {
            return new LockedOrders();
        }
    }

    public static class Orders {
        final LockRegistry registry;
        int inside;

        Orders(LockRegistry registry) {
            this.registry = registry;
        }

        public void ship(int id) throws InterruptedException {
            Lock lock = registry.obtain("order:" + id);
            if (!lock.tryLock(5, TimeUnit.SECONDS)) throw new IllegalStateException("busy");
            try {
                works();
            } finally {
                lock.unlock();
            }
        }

        void works() {
            assertEquals(1, ++inside);
            Thread.yield();
            inside--;
        }
    }

    public static class LockedOrders extends Orders {
        LockedOrders() {
            super(null);
        }

        @Override
        @Locked(key = "'order:' + #id", waitAtMost = "5s")
        public void ship(int id) {
            works();
        }
    }

    private static void ships(Class<?> application, Server server, String registryClass) throws Exception {
        var boot = new SpringApplication(application);
        boot.setDefaultProperties(Map.of("spring.main.banner-mode", "off", "spring.data.redis.host", "127.0.0.1",
                "spring.data.redis.port", server.port, "rlock.registry-key", "app"));
        try (ConfigurableApplicationContext context = boot.run()) {
            assertTrue(context.getBean(LockRegistry.class).getClass().getSimpleName().startsWith(registryClass));
            Orders orders = context.getBean(Orders.class);
            var all = new CompletableFuture<?>[4];
            for (int i = 0; i < all.length; i++) all[i] = CompletableFuture.runAsync(() -> {
                for (int each = 0; each < 10; each++) {
                    try {
                        orders.ship(7);
                    } catch (InterruptedException interrupt) {
                        throw new IllegalStateException(interrupt);
                    }
                }
            });
            CompletableFuture.allOf(all).get(60, TimeUnit.SECONDS);
        }
    }

    @Test
    void theSameServiceRunsBeforeAndAfter() throws Exception {
        try (var server = new Server()) {
            ships(Before.class, server, "RedisLockRegistry");
            assertEquals(0, server.calls("rlock.acquire"));
            ships(After.class, server, "RlockRegistry");
            assertTrue(server.calls("rlock.acquire") >= 40);
            ships(Annotated.class, server, "RlockRegistry");
            assertTrue(server.calls("rlock.acquire") >= 80);
        }
    }
}
