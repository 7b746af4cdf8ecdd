package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import redis.clients.jedis.Jedis;
import rlock.Locks;
import rlock.jedis.JedisLocks;

/** With an older client on the class path, the error comes at once, and not at the first lock. */
class OlderClientsTest {
    @Test
    void aJedisBefore6IsRefused(@TempDir Path folder) throws Exception {
        Path says = folder.resolve("META-INF/maven/redis.clients/jedis/pom.properties");
        Files.createDirectories(says.getParent());
        Files.writeString(says, "version=5.2.0");
        List<URL> urls = new ArrayList<>(List.of(folder.toUri().toURL()));
        for (var each : List.of(JedisLocks.class, Jedis.class, Locks.class))
            urls.add(each.getProtectionDomain().getCodeSource().getLocation());
        try (var loader = new URLClassLoader(urls.toArray(URL[]::new), ClassLoader.getPlatformClassLoader())) {
            var open = loader.loadClass("rlock.jedis.JedisLocks").getMethod("standalone", String.class, int.class);
            var refused = assertThrows(InvocationTargetException.class, () -> open.invoke(null, "127.0.0.1", 6379));
            assertInstanceOf(IllegalStateException.class, refused.getCause());
            assertTrue(refused.getCause().getMessage().startsWith("rlock-jedis needs Jedis 6 or later; the class path has Jedis 5.2.0"), refused.getCause().getMessage());
        }
    }
}
