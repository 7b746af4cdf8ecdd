import java.util.function.Supplier;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** The lock by name: Curator's lock on ZooKeeper. */
final class Handles {
    static Supplier<Worker.Handle> of(String lock) {
        if (!lock.equals("Curator")) {
            throw new IllegalArgumentException("no lock is called " + lock);
        }
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                System.getenv("PEER_ZOOKEEPER"), new ExponentialBackoffRetry(1000, 3));
        client.start();
        // Threads share the client and the lock object; the owner is the thread.
        InterProcessMutex mutex = new InterProcessMutex(client, "/" + System.getenv("PEER_KEY"));
        return () -> new Worker.Handle() {
            @Override
            public void acquire() throws Exception {
                mutex.acquire();
            }

            @Override
            public void release() throws Exception {
                mutex.release();
            }
        };
    }
}
