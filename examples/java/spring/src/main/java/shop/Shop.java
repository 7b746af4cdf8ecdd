package shop;

import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Timer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import rlock.Hold;
import rlock.Locks;

/** A small application with {@code @Locked} methods and metrics, on the server at 127.0.0.1:$PORT, or 6380. */
@SpringBootApplication
public class Shop implements CommandLineRunner {
    private final Orders orders;
    private final Locks locks;
    private final MeterRegistry meters;

    Shop(Orders orders, Locks locks, MeterRegistry meters) {
        this.orders = orders;
        this.locks = locks;
        this.meters = meters;
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments).close();
    }

    @Override
    public void run(String... arguments) throws Exception {
        CompletableFuture.allOf(IntStream.range(0, 4).mapToObj(worker -> CompletableFuture.runAsync(() -> {
            for (int i = 0; i < 25; i++) orders.ship(42);
        })).toArray(CompletableFuture[]::new)).join();
        System.out.println("report: " + orders.report());
        try (Hold elsewhere = locks.lock("{shop}:report").detached().acquire()) {
            System.out.println("report while " + elsewhere.owner() + " writes it: " + orders.report());
        }
        Timer waits = meters.get("rlock.wait").tag("result", "granted").timer();
        while (waits.count() < 102) TimeUnit.MILLISECONDS.sleep(10); // the listener has a thread of its own
        System.out.println("rlock.wait: " + waits.count() + ", at most " + waits.max(TimeUnit.MILLISECONDS) + " ms");
    }
}
