package shop;

import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.stereotype.Service;
import rlock.spring.boot.CurrentHold;
import rlock.spring.boot.Locked;

/** Ships orders, and never the same order twice at the same time. */
@Service
public class Orders {
    private final AtomicInteger inside = new AtomicInteger();
    private int shipped; // only the lock guards it

    @Locked(key = "'{shop}:order:' + #id", waitAtMost = "10s")
    public long ship(int id) {
        if (inside.incrementAndGet() > 1) throw new IllegalStateException("two ship it at once");
        shipped++;
        inside.decrementAndGet();
        return CurrentHold.get().token();
    }

    /** A job that every machine starts. The machines that come later skip it. */
    @Locked(key = "'{shop}:report'", waitAtMost = "0s", otherwise = Locked.Otherwise.SKIP)
    public String report() {
        return shipped + " shipped";
    }
}
