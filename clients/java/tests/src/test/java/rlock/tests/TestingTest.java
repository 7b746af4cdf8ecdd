package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import redis.clients.jedis.Jedis;
import rlock.jedis.JedisLocks;
import rlock.testing.RlockServer;

/** What users test with: a real server with the module. */
@Timeout(60)
class TestingTest {
    @RegisterExtension
    static final RlockServer server = new RlockServer("--maxclients", "50");

    @RepeatedTest(2)
    void theSecondOneWaits() {
        try (var locks = JedisLocks.standalone("127.0.0.1", server.port()).open(); var jedis = new Jedis("127.0.0.1", server.port())) {
            assertEquals(0, jedis.dbSize(), "what the test before has left");
            locks.lock("order:42").detached().acquire();
            assertTrue(locks.lock("order:42").detached().tryAcquire().isEmpty());
            assertEquals("50", jedis.configGet("maxclients").get("maxclients"));
            assertEquals("redis://127.0.0.1:" + server.port(), server.url());
        }
    }

    @Test
    void itEndsAndStartsAgain() {
        try (var own = new RlockServer("--requirepass", "secret").start()) {
            assertNotEquals(server.port(), own.port());
            int port = own.port();
            own.kill();
            own.start();
            assertEquals(port, own.port());
            assertThrows(IllegalStateException.class, own::empty);
        }
    }

    @Test
    void whatDoesNotStartIsSaid() {
        try (var own = new RlockServer("--nonsense", "yes")) {
            String said = assertThrows(IllegalStateException.class, own::start).getMessage();
            assertTrue(said.contains("nonsense"), said);
        }
    }
}
