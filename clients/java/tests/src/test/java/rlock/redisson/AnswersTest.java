package rlock.redisson;

import static org.junit.jupiter.api.Assertions.*;

import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;

/** Which methods of a {@link RedissonClient} are passed on to Redisson. */
class AnswersTest {
    /** As in a possible later version of Redisson. */
    interface Later extends RedissonClient {
        RLock getLaterLock(String name);

        RReadWriteLock getLaterReadWriteLock(String name);

        RPermitExpirableSemaphore getLaterSemaphore(String name);

        RBucket<String> getLaterBucket(String name);
    }

    @Test
    void aKindOfLockThatIsNotKnownIsRefused() {
        List<String> passed = new ArrayList<>();
        Later redisson = (Later) Proxy.newProxyInstance(Later.class.getClassLoader(), new Class<?>[] {Later.class}, (self, method, given) -> {
            passed.add(method.getName());
            return null;
        });
        Later client = Answers.of(Later.class, new Object(), redisson);
        client.getLaterBucket("one");
        assertThrows(UnsupportedOperationException.class, () -> client.getLaterLock("one"));
        assertThrows(UnsupportedOperationException.class, () -> client.getLaterReadWriteLock("one"));
        assertThrows(UnsupportedOperationException.class, () -> client.getLaterSemaphore("one"));
        assertEquals(List.of("getLaterBucket"), passed);
    }

    @Test
    void redissonsOwnClientIsBehindEachOfOurs() {
        var redisson = (RedissonClient) Proxy.newProxyInstance(RedissonClient.class.getClassLoader(), new Class<?>[] {RedissonClient.class}, (self, method, given) -> null);
        assertSame(redisson, RlockRedisson.plain(Answers.of(RedissonClient.class, new Object(), redisson)));
        assertThrows(IllegalArgumentException.class, () -> RlockRedisson.plain(redisson));
    }

    @Test
    void everyKindOfLockOfThisVersionIsKnown() {
        List<Method> unknown = Stream.of(RedissonClient.class.getMethods()).filter(Answers::makesLocks).filter(method -> {
            try {
                return Client.class.getMethod(method.getName(), method.getParameterTypes()) == null;
            } catch (NoSuchMethodException none) {
                return true;
            }
        }).toList();
        assertEquals(List.of(), unknown);
    }
}
