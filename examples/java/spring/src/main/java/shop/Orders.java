package shop;

import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.stereotype.Service;
import rlock.spring.boot.CurrentHold;
import rlock.spring.boot.Locked;

/** Ships orders, each of them once at a time. */
@Service
public class Orders {
    private final AtomicInteger inside = new AtomicInteger();
    private int shipped; // guarded by nothing but the lock

    @Locked(key = "'{shop}:order:' + #id", waitAtMost = "10s")
    public long ship(int id) {
        if (inside.incrementAndGet() > 1) throw new IllegalStateException("two ship it at once");
        shipped++;
        inside.decrementAndGet();
        return CurrentHold.get().token();
    }

    /** For a job that each machine begins: whoever comes second skips it. */
    @Locked(key = "'{shop}:report'", waitAtMost = "0s", otherwise = Locked.Otherwise.SKIP)
    public String report() {
        return shipped + " shipped";
    }
}
