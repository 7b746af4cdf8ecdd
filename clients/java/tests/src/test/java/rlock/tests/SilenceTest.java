package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.time.Duration;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockException;

/** Single connections that say nothing, or late, while others work. */
@Timeout(120)
class SilenceTest {
    private Server server;
    private Proxy proxy;

    @BeforeEach
    void start() {
        server = new Server();
        proxy = new Proxy(server.port);
    }

    @AfterEach
    void stop() {
        if (proxy != null) proxy.close();
        if (server != null) server.close();
    }

    @ParameterizedTest
    @EnumSource
    void whatUndoesAnAbandonedAttemptEndsNoLaterHold(Over over) {
        try (var session = over.open(proxy.port, builder -> builder.timeout(Duration.ofMillis(300)))) {
            KeyLock lock = session.locks().lock("order");
            lock.acquire().release();
            proxy.leaveUnanswered(request -> request.contains("RLOCK.ACQUIRE"));
            proxy.keep(request -> request.contains("RLOCK.RELEASE") && proxy.silent() == 1);
            assertThrows(LockException.Unavailable.class, lock::tryAcquire);
            Server.until(() -> proxy.silent() == 2 && server.isFree("order"));
            proxy.heal();
            Hold hold = lock.acquire();
            long before = server.calls("rlock.release");
            proxy.deliver();
            Server.until(() -> server.calls("rlock.release") > before);
            assertEquals(1, server.holds("order", hold.owner()), "ended by what undid the attempt before");
            hold.release();
        }
    }
}
