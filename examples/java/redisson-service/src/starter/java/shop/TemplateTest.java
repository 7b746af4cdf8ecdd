package shop;

import static org.junit.jupiter.api.Assertions.*;

import org.junit.jupiter.api.Test;
import org.redisson.api.RedissonClient;
import org.redisson.spring.data.connection.RedissonConnectionFactory;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.data.redis.core.StringRedisTemplate;

/** A test with redisson-spring-boot-starter: make examples copies it to the other tests. */
@SpringBootTest(properties = "shop.redis=redis://127.0.0.1:${PORT:6380}")
class TemplateTest {
    @Autowired
    StringRedisTemplate template;

    @Autowired
    RedissonClient redisson;

    @Test
    void theTemplateAndTheLocksWorkOverTheSameClient() {
        assertInstanceOf(RedissonConnectionFactory.class, template.getConnectionFactory());
        var lock = redisson.getLock("{shop}:note");
        lock.lock();
        template.opsForValue().set("{shop}:text", "sold out");
        lock.unlock();
        assertEquals("sold out", template.opsForValue().get("{shop}:text"));
    }
}
