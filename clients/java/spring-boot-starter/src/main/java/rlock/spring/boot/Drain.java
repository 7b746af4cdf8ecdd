package rlock.spring.boot;

import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.beans.factory.config.DestructionAwareBeanPostProcessor;
import org.springframework.context.ApplicationListener;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.event.ContextClosedEvent;
import org.springframework.scheduling.TaskScheduler;
import rlock.Locks;

/**
 * The end of an application: first its executors and schedulers end, then no method with {@link Locked} begins any more,
 * then those that run end, then all other holds are released, and then the locks are closed.
 */
final class Drain implements ApplicationListener<ContextClosedEvent>, DestructionAwareBeanPostProcessor {
    private static final System.Logger LOG = System.getLogger("rlock");
    private static final Class<?>[] WORKERS = {Executor.class, TaskScheduler.class};

    private final ConfigurableApplicationContext context;
    private final Supplier<Duration> timeout;
    private volatile Duration patience; // set when the application begins to close, because it may be too late afterwards
    private final Set<Thread> waiting = new HashSet<>(); // for a lock; from here on guarded by this
    private final Set<Thread> interrupted = new HashSet<>(); // of these, by this
    private int calls; // that are not inside of others
    private boolean isClosing;

    Drain(ConfigurableApplicationContext context, Supplier<Duration> timeout) {
        this.context = context;
        this.timeout = timeout;
    }

    // Beans are destroyed in the reverse order of their creation, and what depends on them before them. An executor may be
    // created before the locks, so it has to depend on them to be destroyed, and to wait for its tasks, before them.
    @Override
    public void onApplicationEvent(ContextClosedEvent event) {
        if (event.getApplicationContext() != context) return;
        patience = timeout.get();
        ConfigurableListableBeanFactory beans = context.getBeanFactory();
        for (String locks : beans.getBeanNamesForType(Locks.class, true, false))
            for (Class<?> type : WORKERS)
                for (String worker : beans.getBeanNamesForType(type, true, false)) beans.registerDependentBean(locks, worker);
    }

    @Override
    public boolean requiresDestruction(Object bean) {
        return bean instanceof Locks;
    }

    // What depends on the locks has been destroyed by now; they are closed after this.
    @Override
    public void postProcessBeforeDestruction(Object locks, String name) {
        if (patience == null) return; // the application never began
        long end = System.nanoTime() + patience.toNanos();
        int more = close(end);
        if (more > 0)
            LOG.log(System.Logger.Level.WARNING, "The application closes while {0} method(s) with @Locked still run, after"
                    + " rlock.shutdown-timeout ({1}): their locks are not renewed any more", more, patience);
        // A method that closes the application itself holds its lock until it ends, which is after this.
        if (more > 0 || CurrentHold.isThere()) return;
        List<String> left = ((Locks) locks).drain(Duration.ofNanos(Math.max(0, end - System.nanoTime())));
        if (!left.isEmpty())
            LOG.log(System.Logger.Level.WARNING, "The application closes while it still holds locks, after"
                    + " rlock.shutdown-timeout ({0}): {1}", patience, String.join(", ", left));
    }

    /** A call that is not nested in another one begins to wait for its lock. Returns false if it must not. */
    synchronized boolean begins() {
        if (isClosing) return false;
        calls++;
        waiting.add(Thread.currentThread());
        return true;
    }

    /** Its wait has ended. Returns whether that was interrupted here, in which case the thread is interrupted no longer. */
    synchronized boolean hasWaited() {
        waiting.remove(Thread.currentThread());
        if (!interrupted.remove(Thread.currentThread())) return false;
        Thread.interrupted();
        return true;
    }

    synchronized void ends() {
        hasWaited();
        calls--;
        notifyAll();
    }

    // Returns how many still run. The one that closes the application itself ends later.
    private synchronized int close(long end) {
        isClosing = true;
        waiting.forEach(Thread::interrupt);
        interrupted.addAll(waiting);
        int own = CurrentHold.isThere() ? 1 : 0;
        boolean isInterrupted = false;
        while (calls > own && end - System.nanoTime() > 0) {
            try {
                TimeUnit.NANOSECONDS.timedWait(this, Math.max(1_000_000, end - System.nanoTime()));
            } catch (InterruptedException later) {
                isInterrupted = true;
            }
        }
        if (isInterrupted) Thread.currentThread().interrupt();
        return calls - own;
    }
}
