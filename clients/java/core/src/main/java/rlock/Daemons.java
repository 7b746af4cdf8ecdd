package rlock;

import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicInteger;

/** Makes threads that do not keep the program running. */
final class Daemons implements ThreadFactory {
    private final String name;
    private final AtomicInteger count = new AtomicInteger();

    Daemons(String name) {
        this.name = name;
    }

    @Override
    public Thread newThread(Runnable work) {
        return new Daemon(work);
    }

    /** Whether the caller runs in one of these threads. */
    boolean haveCaller() {
        return Thread.currentThread() instanceof Daemon daemon && daemon.maker() == this;
    }

    private final class Daemon extends Thread {
        private Daemon(Runnable work) {
            super(work, name + "-" + count.incrementAndGet());
            setDaemon(true);
        }

        private Daemons maker() {
            return Daemons.this;
        }
    }
}
