package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import rlock.shedlock.RlockLockProvider;

/** ShedLock's own tests of providers, with each client. */
abstract class ShedLockTests extends AbstractExtensibleLockProviderIntegrationTest {
    private final Over over;
    private Server server;
    private Over.Session session;

    ShedLockTests(Over over) {
        this.over = over;
    }

    @BeforeEach
    void open() {
        server = new Server();
        session = over.open(server.port);
    }

    @AfterEach
    void close() {
        if (session != null) session.close();
        if (server != null) server.close();
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return new RlockLockProvider(session.locks());
    }

    @Override
    protected void assertUnlocked(String name) {
        assertTrue(server.isFree("shedlock:" + name));
    }

    @Override
    protected void assertLocked(String name) {
        assertFalse(server.isFree("shedlock:" + name));
    }
}
