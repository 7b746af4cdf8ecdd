package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import redis.clients.jedis.Jedis;
import rlock.Locks;
import rlock.jedis.JedisLocks;

/** What a class path with an older client is told, at once and not at the first lock. */
class OlderClientsTest {
    @Test
    void aJedisThatCannotCloseAtOnceIsRefused(@TempDir Path folder) throws Exception {
        Path source = folder.resolve("Connection.java");
        Files.writeString(source, "package redis.clients.jedis; public class Connection {}");
        var compiler = ToolProvider.getSystemJavaCompiler();
        assertEquals(0, compiler.run(null, null, null, "-d", folder.toString(), source.toString()));
        List<URL> urls = new ArrayList<>(List.of(folder.toUri().toURL()));
        for (var each : List.of(JedisLocks.class, Jedis.class, Locks.class))
            urls.add(each.getProtectionDomain().getCodeSource().getLocation());
        try (var loader = new URLClassLoader(urls.toArray(URL[]::new), ClassLoader.getPlatformClassLoader())) {
            var open = loader.loadClass("rlock.jedis.JedisLocks").getMethod("standalone", String.class, int.class);
            var refused = assertThrows(InvocationTargetException.class, () -> open.invoke(null, "127.0.0.1", 6379));
            assertInstanceOf(IllegalStateException.class, refused.getCause());
            assertTrue(refused.getCause().getMessage().startsWith("rlock-jedis needs Jedis 7 or later"), refused.getCause().getMessage());
        }
    }
}
