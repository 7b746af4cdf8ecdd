package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.URL;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BiConsumer;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.IntStream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.redisson.Redisson;
import org.redisson.RedissonLock;
import org.redisson.RedissonMultiLock;
import org.redisson.api.DeletedObjectListener;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RType;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;
import org.redisson.config.SslVerificationMode;
import rlock.LockException;
import rlock.redisson.Readers;
import rlock.redisson.RlockRedisson;

/** {@code rlock-redisson}: what Redisson's own tests do not check. */
@Timeout(60)
class RedissonTest {
    private static Server server;
    private static RedissonClient redisson;

    @BeforeAll
    static void start() {
        server = new Server();
        redisson = RlockRedisson.create(config());
    }

    @AfterAll
    static void stop() {
        if (redisson != null) redisson.shutdown();
        if (server != null) server.close();
    }

    private static Config config() {
        var config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + server.port);
        return config;
    }

    private static void elsewhere(Runnable work) {
        CompletableFuture.runAsync(work, task -> new Thread(task).start()).join();
    }

    @Test
    void theServerHoldsTheLockAndRedissonTheRest() {
        RLock lock = redisson.getLock("one");
        lock.lock();
        assertEquals(1, server.holds("one", redisson.getId() + ":" + Thread.currentThread().getId()));
        lock.unlock();
        redisson.getBucket("bucket").set("value");
        assertEquals("value", redisson.getBucket("bucket").get());
        assertEquals(lock, redisson.getFairLock("one"));
        assertNotEquals(lock, redisson.getLock("two"));
    }

    @Test
    @SuppressWarnings("deprecation") // older configurations set it at the server
    void whatTheLocksConnectionsCannotHaveIsRefused() throws GeneralSecurityException, IOException {
        var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        var store = new URL("file:///store.jks");
        String[] some = {"some"};
        refuses("sslVerificationMode NONE", (config, server) -> config.setSslVerificationMode(SslVerificationMode.NONE));
        refuses("sslVerificationMode NONE", (config, server) -> server.setSslVerificationMode(SslVerificationMode.NONE));
        refuses("a key store or trust store", (config, server) -> config.setSslKeystore(store));
        refuses("a key store or trust store", (config, server) -> server.setSslKeystore(store));
        refuses("a key store or trust store", (config, server) -> config.setSslTruststore(store));
        refuses("a key store or trust store", (config, server) -> server.setSslTruststore(store));
        refuses("an sslTrustManagerFactory", (config, server) -> config.setSslTrustManagerFactory(trust));
        refuses("an sslTrustManagerFactory", (config, server) -> server.setSslTrustManagerFactory(trust));
        refuses("an sslKeyManagerFactory", (config, server) -> config.setSslKeyManagerFactory(keys));
        refuses("an sslKeyManagerFactory", (config, server) -> server.setSslKeyManagerFactory(keys));
        refuses("sslCiphers", (config, server) -> config.setSslCiphers(some));
        refuses("sslCiphers", (config, server) -> server.setSslCiphers(some));
        refuses("sslProtocols", (config, server) -> config.setSslProtocols(some));
        refuses("sslProtocols", (config, server) -> server.setSslProtocols(some));
        refuses("a CredentialsResolver", (config, server) -> config.setCredentialsResolver(address -> null));
        refuses("a CredentialsResolver", (config, server) -> server.setCredentialsResolver(address -> null));
    }

    private static void refuses(String what, BiConsumer<Config, SingleServerConfig> setting) {
        Config config = config();
        setting.accept(config, config.useSingleServer());
        var refused = assertThrows(IllegalArgumentException.class, () -> RlockRedisson.create(config).shutdown());
        assertTrue(refused.getMessage().startsWith("the configuration has " + what + ":"), refused.getMessage());
    }

    /** A server with a trusted certificate for {@code localhost}. */
    @Test
    void theLocksConnectionsVerifyTheHostExactlyIfRedissonDoes(@TempDir Path folder) throws Exception {
        String store = folder.resolve("store").toString();
        assertEquals(0, new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "keytool").toString(), "-genkeypair", "-alias", "it",
                "-keyalg", "RSA", "-dname", "CN=it", "-ext", "san=dns:localhost", "-keystore", store, "-storepass", "secret").inheritIO().start().waitFor());
        KeyStore its = KeyStore.getInstance(new File(store), "secret".toCharArray());
        var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(its, "secret".toCharArray());
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(its);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        SSLContext.setDefault(context); // nothing else in these tests uses TLS
        assertTrue(connects(context, "localhost", SslVerificationMode.STRICT));
        assertFalse(connects(context, "127.0.0.1", SslVerificationMode.STRICT));
        assertTrue(connects(context, "127.0.0.1", SslVerificationMode.CA_ONLY));
    }

    /** Whether the first connection of a lock accepts the server's certificate. */
    private static boolean connects(SSLContext context, String host, SslVerificationMode mode) throws IOException {
        var listening = (SSLServerSocket) context.getServerSocketFactory().createServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        listening.setSoTimeout(30_000);
        var config = new Config().setLazyInitialization(true).setSslVerificationMode(mode);
        config.useSingleServer().setAddress("rediss://" + host + ":" + listening.getLocalPort());
        RedissonClient client = RlockRedisson.create(config);
        var locking = CompletableFuture.runAsync(() -> client.getLock("tls").tryLock());
        boolean isAccepted = false;
        try (listening; var socket = (SSLSocket) listening.accept()) {
            socket.startHandshake();
            isAccepted = true;
        } catch (IOException ended) {
            // By an alert or a reset, during the handshake or afterward.
        }
        client.shutdown();
        locking.exceptionally(ended -> null).join();
        return isAccepted;
    }

    @Test
    void severalAreOneStep() throws InterruptedException {
        RReadWriteLock rates = redisson.getReadWriteLock("rates");
        RLock several = redisson.getMultiLock(redisson.getLock("c"), rates.readLock(), redisson.getLock("b"));
        long before = server.calls("rlock.macquire");
        assertTrue(several.tryLock(1, 10, TimeUnit.SECONDS));
        assertEquals(before + 1, server.calls("rlock.macquire"));
        assertEquals(1, several.getHoldCount());
        assertTrue(redisson.getLock("b").isLocked() && rates.readLock().isLocked() && !rates.writeLock().isLocked());
        elsewhere(() -> assertFalse(redisson.getMultiLock(redisson.getLock("c"), redisson.getLock("d")).tryLock()));
        several.unlock();
        assertFalse(several.isLocked());
        RLock students = redisson.getMultiLock("class", List.of("student:1", "student:2"));
        assertTrue(students.tryLock());
        elsewhere(() -> assertFalse(redisson.getMultiLock("class", List.of("student:2")).tryLock()));
        elsewhere(() -> assertTrue(redisson.getMultiLock("class", List.of("student:3")).tryLock()));
        students.unlock();
    }

    @Test
    void severalOfTwoClientsAreRedissonsOwn() {
        RedissonClient other = RlockRedisson.create(config());
        RLock both = redisson.getMultiLock(redisson.getLock("e"), other.getLock("f"));
        assertInstanceOf(RedissonMultiLock.class, both);
        both.lock();
        assertTrue(redisson.getLock("e").isLocked() && redisson.getLock("f").isLocked());
        both.unlock();
        other.shutdown();
    }

    @Test
    void whoCastsALockMay() throws InterruptedException {
        RLock one = redisson.getLock("cast:1");
        var several = new RedissonMultiLock(one, redisson.getReadWriteLock("cast:2").writeLock());
        assertTrue(several.tryLock(1, 10, TimeUnit.SECONDS));
        assertTrue(((RedissonLock) one).remainTimeToLive() > 5_000);
        several.unlock();
        assertFalse(one.isLocked());
        assertThrows(UnsupportedOperationException.class, ((RedissonLock) one)::getIdleTime);
    }

    @Test
    void whoLocksAgainWhatWasLostBeginsAnew() throws InterruptedException {
        RLock lock = redisson.getLock("again");
        RLock several = redisson.getMultiLock(redisson.getLock("again:1"), redisson.getLock("again:2"));
        for (RLock each : List.of(lock, several)) {
            each.lock(100, TimeUnit.MILLISECONDS);
            Server.until(() -> !each.isLocked());
            assertTrue(each.tryLock());
            assertEquals(1, each.getHoldCount());
            each.unlock();
            assertThrows(IllegalMonitorStateException.class, each::unlock);
        }
    }

    @Test
    void anotherThreadIsNamedAsInRedisson() {
        RLock lock = redisson.getLock("async");
        assertTrue(lock.tryLockAsync(0, -1, TimeUnit.SECONDS, 4711).toCompletableFuture().join());
        assertTrue(lock.isHeldByThread(4711) && !lock.isHeldByCurrentThread());
        assertFalse(lock.tryLockAsync().toCompletableFuture().join());
        var waiting = lock.lockAsync(10, TimeUnit.SECONDS, 4712).toCompletableFuture();
        Server.until(() -> server.waiters("async") == 1);
        assertThrows(CompletionException.class, () -> lock.unlockAsync(4713).toCompletableFuture().join());
        lock.unlockAsync(4711).toCompletableFuture().join();
        waiting.join();
        assertTrue(lock.isHeldByThreadAsync(4712).toCompletableFuture().join());
        assertEquals(0, lock.getHoldCountAsync().toCompletableFuture().join());
        assertTrue(lock.forceUnlock());
    }

    @Test
    void anAsyncWaitThatIsCancelledLeavesNothing() {
        RLock lock = redisson.getLock("cancelled");
        lock.lock();
        var waiting = lock.tryLockAsync(30, 10, TimeUnit.SECONDS, 4711);
        Server.until(() -> server.waiters("cancelled") == 1);
        waiting.cancel(true);
        Server.until(() -> server.waiters("cancelled") == 0);
        lock.unlock();
        assertTrue(server.isFree("cancelled"));
    }

    private static RedissonClient client(Readers readers) {
        return RlockRedisson.create(config().setLockWatchdogTimeout(3_000), readers);
    }

    @ParameterizedTest
    @EnumSource
    void writeOverRead(Readers readers) throws Exception {
        RedissonClient client = client(readers);
        RReadWriteLock both = client.getReadWriteLock("both");
        both.readLock().lock();
        assertFalse(both.writeLock().tryLock());
        assertFalse(both.writeLock().tryLock(100, TimeUnit.MILLISECONDS));
        assertFalse(both.writeLock().tryLock(100, 1_000, TimeUnit.MILLISECONDS));
        assertFalse(both.writeLock().tryLockAsync(100, TimeUnit.MILLISECONDS).get(5, TimeUnit.SECONDS));
        var refused = assertThrows(RedisException.class, both.writeLock()::lock);
        assertTrue(refused.getCause() instanceof LockException && refused.getMessage().startsWith("DEADLOCK"), refused.toString());
        var later = assertThrows(ExecutionException.class, () -> both.writeLock().lockAsync().get(5, TimeUnit.SECONDS));
        assertTrue(later.getCause().getMessage().startsWith("DEADLOCK"), later.toString());
        both.readLock().unlock();
        assertTrue(both.writeLock().tryLock());
        both.readLock().lock();
        both.writeLock().unlock();
        both.readLock().unlock();
        assertTrue(server.isFree("both"));
        client.shutdown();
    }

    @Test
    void anUnlockComesAfterTheLockThatItsThreadAskedFor() throws Exception {
        RedissonClient client = client(Readers.QUEUE);
        RReadWriteLock both = client.getReadWriteLock("{after}:both");
        Map<String, RLock> all = Map.of("{after}:one", client.getLock("{after}:one"), "{after}:fenced", client.getFencedLock("{after}:fenced"),
                "{after}:both", both.readLock(), "{after}:several", client.getMultiLock(client.getLock("{after}:several"), client.getLock("{after}:more")));
        for (var each : all.entrySet()) {
            RLock lock = each.getValue();
            for (int i = 0; i < 20; i++) {
                boolean isOther = i % 2 == 0 && !each.getKey().endsWith("several");
                var locked = isOther ? lock.lockAsync(500 + i) : lock.lockAsync();
                if (i % 3 == 2 && !isOther) {
                    lock.unlock();
                } else {
                    var unlocked = isOther ? lock.unlockAsync(500 + i) : lock.unlockAsync();
                    unlocked.get(10, TimeUnit.SECONDS);
                }
                locked.get(10, TimeUnit.SECONDS);
            }
            assertTrue(server.isFree(each.getKey()), each.getKey());
        }
        // Even if it has to wait for that.
        RLock one = client.getLock("{after}:one");
        one.lock();
        var waiting = one.lockAsync(4711);
        Server.until(() -> server.waiters("{after}:one") == 1);
        var unlocked = one.unlockAsync(4711);
        one.unlock();
        waiting.get(10, TimeUnit.SECONDS);
        unlocked.get(10, TimeUnit.SECONDS);
        assertTrue(server.isFree("{after}:one"));
        client.shutdown();
    }

    /** A reader gives a part of its work to a child thread, which also reads; a writer comes in between. */
    private static void readsWithAChild(RedissonClient client, String key, Thread writer) throws Exception {
        RReadWriteLock rates = client.getReadWriteLock(key);
        rates.readLock().lock();
        writer.start();
        Server.until(() -> server.waiters(key) == 1);
        var child = new FutureTask<>(() -> {
            rates.readLock().lock();
            rates.readLock().unlock();
            return rates.readLock().tryLockAsync(5, TimeUnit.SECONDS).get() && !rates.writeLock().tryLock();
        });
        var thread = new Thread(child);
        thread.setDaemon(true);
        thread.start();
        try {
            assertTrue(child.get(8, TimeUnit.SECONDS));
        } finally {
            rates.readLock().unlock();
        }
    }

    @Test
    void readersJoinTheReadersOfTheirClientIfAsked() throws Exception {
        RedissonClient client = client(Readers.JOIN);
        RReadWriteLock rates = client.getReadWriteLock("joined");
        var writer = new FutureTask<>(() -> {
            rates.writeLock().lock();
            long holds = server.holds("joined", client.getId() + ":readers");
            rates.writeLock().unlock();
            return holds;
        });
        RLock read = rates.readLock();
        readsWithAChild(client, "joined", new Thread(writer));
        assertFalse(writer.isDone(), "the child reads");
        assertFalse(read.isHeldByCurrentThread());
        assertThrows(IllegalMonitorStateException.class, read::unlock, "of the child, not of this thread");
        assertEquals(1, server.holds("joined", client.getId() + ":readers"));
        assertTrue(read.forceUnlock());
        assertEquals(0L, writer.get(10, TimeUnit.SECONDS));
        // What was lost together is lost for each thread, and a thread that locks again begins anew.
        read.lock();
        var parts = new FutureTask<>(() -> {
            read.lock();
            server.say("RLOCK.FORCE", "joined");
            Server.until(() -> !read.isHeldByCurrentThread());
            read.lock();
            return read.getHoldCount();
        });
        new Thread(parts).start();
        assertEquals(1, parts.get(15, TimeUnit.SECONDS));
        assertThrows(IllegalMonitorStateException.class, read::unlock);
        assertEquals(1, server.holds("joined", client.getId() + ":readers"), "what the other thread locked anew");
        client.shutdown();
    }

    @Test
    void aReaderThatMayWaitForItsOwnClientIsWarnedOf() throws Exception {
        RedissonClient client = client(Readers.QUEUE);
        RReadWriteLock rates = client.getReadWriteLock("queued");
        var said = new LinkedBlockingQueue<String>();
        Logger log = Logger.getLogger("rlock");
        Handler hears = new Handler() {
            @Override
            public void publish(LogRecord record) {
                said.add(record.getMessage());
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        log.addHandler(hears);
        var writer = new Thread(() -> {
            rates.writeLock().lock();
            rates.writeLock().unlock();
        });
        assertThrows(TimeoutException.class, () -> readsWithAChild(client, "queued", writer));
        log.removeHandler(hears);
        writer.join();
        String warning = said.stream().filter(each -> each.startsWith("queued: thread ")).findFirst().orElse("nothing");
        assertTrue(warning.contains(" waits for the read lock behind a writer, while thread " + Thread.currentThread().getId()
                + " of this client has the read lock"), warning);
        client.shutdown();
    }

    @Test
    void moreLocksThanTheServerGrantsInOneStep() {
        RLock[] many = IntStream.range(0, 130).mapToObj(i -> redisson.getLock("many:" + i)).toArray(RLock[]::new);
        RLock all = redisson.getMultiLock(many);
        all.lock();
        assertTrue(many[0].isHeldByCurrentThread() && many[129].isHeldByCurrentThread());
        all.unlock();
        RLock group = redisson.getMultiLock("many", IntStream.range(0, 130).mapToObj(i -> (Object) ("member:" + i)).toList());
        assertTrue(group.tryLock());
        elsewhere(() -> assertFalse(redisson.getMultiLock("many", List.of("member:129")).tryLock()));
        group.unlock();
        assertFalse(many[129].isLocked());
    }

    @Test
    void theTypeOfALockIsThatOfRedissons() throws Exception {
        redisson.getLock("typed").lock();
        redisson.getBucket("text").set("value");
        assertEquals(RType.MAP, redisson.getKeys().getType("typed"));
        assertEquals(RType.MAP, redisson.getKeys().getTypeAsync("typed").get(5, TimeUnit.SECONDS));
        assertEquals(RType.OBJECT, redisson.getKeys().getType("text"));
        assertEquals(RType.OBJECT, redisson.getKeys().getTypeAsync("text").get(5, TimeUnit.SECONDS));
        redisson.getLock("typed").unlock();
        assertNull(redisson.getKeys().getType("typed"));
    }

    @Test
    void aListenerHearsTheReleaseUntilItIsRemoved() throws InterruptedException {
        RLock lock = redisson.getLock("heard");
        var heard = new LinkedBlockingQueue<String>();
        int id = lock.addListener((DeletedObjectListener) heard::add);
        lock.lock();
        redisson.getLock("other").lock();
        redisson.getLock("other").unlock();
        lock.unlock();
        assertEquals("heard", heard.poll(5, TimeUnit.SECONDS));
        lock.removeListener(id);
        lock.lock();
        lock.unlock();
        assertNull(heard.poll(200, TimeUnit.MILLISECONDS));
    }

    @Test
    void whoWaitsForPermitsHearsThatThereAreMore() throws InterruptedException {
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore("gpu");
        assertTrue(permits.trySetPermits(1));
        String one = permits.acquire();
        var waiting = permits.acquireAsync().toCompletableFuture();
        Server.until(() -> server.waiters("gpu") == 1);
        permits.addPermits(1);
        String two = waiting.orTimeout(5, TimeUnit.SECONDS).join();
        assertEquals(0, permits.availablePermits());
        assertTrue(permits.tryAcquire(2, 50, 1000, TimeUnit.MILLISECONDS).isEmpty());
        permits.release(List.of(one, two));
        assertEquals(2, permits.availablePermits());
        assertThrows(RedisException.class, () -> permits.release(one));
    }

    @Test
    void whatIsNotThereSaysSo() {
        var refused = assertThrows(UnsupportedOperationException.class, () -> redisson.getPermitExpirableSemaphore("gpu").getIdleTime());
        assertTrue(refused.getMessage().contains("RPermitExpirableSemaphore.getIdleTime"), refused.getMessage());
        assertThrows(UnsupportedOperationException.class, () -> redisson.getRedLock(redisson.getLock("r")));
        assertThrows(UnsupportedOperationException.class, redisson.getLock("r")::newCondition);
        var config = config();
        config.setCredentialsResolver(address -> CompletableFuture.failedFuture(new IllegalStateException()));
        assertThrows(IllegalArgumentException.class, () -> RlockRedisson.create(config));
    }

    @Test
    void locksOfOnesOwnAreUsed() {
        RedissonClient theirs = Redisson.create(config());
        try (var session = Over.LETTUCE.open(server.port)) {
            RedissonClient over = RlockRedisson.over(theirs, session.locks());
            over.getLock("over").lock();
            assertFalse(server.isFree("over"));
            over.getLock("over").unlock();
        }
        theirs.shutdown();
    }
}
