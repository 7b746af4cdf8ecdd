package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.leader.DefaultCandidate;
import rlock.spring.RlockRegistry;

/** Spring Integration's contract for registries. */
@Timeout(60)
class SpringRegistryTest {
    private Server server;
    private Over.Session session;
    private RlockRegistry registry;

    @BeforeEach
    void open() {
        server = new Server();
        session = Over.LETTUCE.open(server.port);
        registry = new RlockRegistry(session.locks(), "app");
    }

    @AfterEach
    void close() {
        if (session != null) session.close();
        if (server != null) server.close();
    }

    @Test
    void aRegistryIsAClientOfItsOwn() throws Exception {
        var lock = registry.obtain("key");
        lock.lock();
        assertTrue(registry.obtain("key").tryLock(), "the thread enters again");
        var other = new RlockRegistry(session.locks(), "app");
        assertFalse(other.obtain("key").tryLock(), "another registry is another client");
        assertThrows(IllegalStateException.class, other.obtain("key")::unlock);
        lock.unlock();
        lock.unlock();
        assertTrue(other.obtain("key").tryLock(1, TimeUnit.SECONDS));
        other.obtain("key").unlock();
        assertTrue(server.isFree("app:key"));
        registry.executeLocked("key", () -> assertFalse(server.isFree("app:key")));
        assertTrue(server.isFree("app:key"));
        assertThrows(IllegalArgumentException.class, () -> registry.obtain(5));
    }

    @Test
    void aTimeToLiveIsKeptRenewedAndLost() throws Exception {
        var lock = registry.obtain("ttl");
        assertTrue(lock.tryLock(Duration.ofSeconds(1), Duration.ofMillis(400)));
        registry.renewLock("ttl", Duration.ofSeconds(5));
        Thread.sleep(600);
        assertFalse(server.isFree("app:ttl"));
        lock.unlock();
        assertThrows(IllegalStateException.class, () -> registry.renewLock("ttl"));
        lock.lock(Duration.ofMillis(200));
        Thread.sleep(300);
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertTrue(server.isFree("app:ttl"));
        registry.expireUnusedOlderThan(0);
    }

    @Test
    void whatWasLostIsDroppedAndAcquiredAnew() throws Exception {
        var lock = registry.obtain("again");
        lock.lock();
        assertTrue(lock.tryLock());
        server.say("RLOCK.FORCE", "app:again");
        assertTrue(lock.tryLock(), "it is free");
        lock.unlock();
        assertTrue(server.isFree("app:again"));
        assertThrows(IllegalStateException.class, lock::unlock, "of what was lost");
        lock.lock(Duration.ofMillis(100));
        Server.until(() -> server.isFree("app:again"));
        assertTrue(lock.tryLock(1, TimeUnit.SECONDS));
        lock.unlock();
        assertThrows(IllegalStateException.class, lock::unlock);
    }

    @Test
    void aThreadThatEndsHoldsNothingForLong() throws Exception {
        var brief = new RlockRegistry(session.locks(), "app", Duration.ofMillis(600));
        Thread thread = new Thread(brief.obtain("dead")::lock);
        thread.start();
        thread.join();
        assertFalse(server.isFree("app:dead"));
        Server.until(() -> server.isFree("app:dead"));
    }

    @Test
    void aLeaderIsElectedAndFollowed() {
        var first = new Candidate();
        var second = new Candidate();
        var one = new LockRegistryLeaderInitiator(registry, first);
        var two = new LockRegistryLeaderInitiator(new RlockRegistry(session.locks(), "app"), second);
        one.start();
        first.granted.orTimeout(10, TimeUnit.SECONDS).join();
        two.start();
        Server.until(() -> server.waiters("app:leader") == 1);
        assertFalse(second.granted.isDone());
        one.stop();
        second.granted.orTimeout(10, TimeUnit.SECONDS).join();
        two.stop();
        Server.until(() -> server.isFree("app:leader"));
    }

    private static final class Candidate extends DefaultCandidate {
        final CompletableFuture<Void> granted = new CompletableFuture<>();

        Candidate() {
            super("id", "leader");
        }

        @Override
        public void onGranted(org.springframework.integration.leader.Context context) {
            granted.complete(null);
        }
    }
}
