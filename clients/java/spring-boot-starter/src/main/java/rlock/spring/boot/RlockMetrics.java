package rlock.spring.boot;

import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Timer;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.function.ToDoubleFunction;
import rlock.Counters;
import rlock.LockListener;
import rlock.Locks;
import rlock.Mode;

/**
 * Meters: the timers {@code rlock.wait} (by mode and result) and {@code rlock.hold} (by mode and end), the counters
 * {@code rlock.lost} and {@code rlock.renewals.failed}, the gauges {@code rlock.held} and {@code rlock.waiting}. Keys
 * are not used as tags, because there may be any number of them.
 */
final class RlockMetrics implements LockListener, MeterBinder {
    private final Supplier<Locks> locks;
    private final List<MeterRegistry> registries = new CopyOnWriteArrayList<>();

    RlockMetrics(Supplier<Locks> locks) {
        this.locks = locks;
    }

    @Override
    public void bindTo(MeterRegistry registry) {
        registries.add(registry);
        Gauge.builder("rlock.held", this, counts(Counters::held)).description("Holds now").register(registry);
        Gauge.builder("rlock.waiting", this, counts(Counters::waiting)).description("Acquisitions under way").register(registry);
        FunctionCounter.builder("rlock.renewals.failed", this, counts(Counters::failedRenewals))
                .description("Requests to renew a hold that failed").register(registry);
        for (Mode mode : Mode.values()) lost(registry, mode);
    }

    private static ToDoubleFunction<RlockMetrics> counts(ToDoubleFunction<Counters> field) {
        return metrics -> field.applyAsDouble(metrics.locks.get().counters());
    }

    private static Counter lost(MeterRegistry registry, Mode mode) {
        return Counter.builder("rlock.lost").tag("mode", word(mode)).description("Holds that were lost").register(registry);
    }

    private static String word(Enum<?> value) {
        return value.name().toLowerCase(java.util.Locale.ROOT);
    }

    private void each(Consumer<MeterRegistry> event) {
        registries.forEach(event);
    }

    @Override
    public void waited(Waited wait) {
        each(registry -> Timer.builder("rlock.wait").tag("mode", word(wait.mode())).tag("result", word(wait.result()))
                .description("From the request to its end").register(registry).record(wait.time()));
    }

    @Override
    public void held(Held hold) {
        record(hold, "released");
    }

    @Override
    public void lost(Held hold) {
        each(registry -> lost(registry, hold.mode()).increment());
        record(hold, "lost");
    }

    private void record(Held hold, String end) {
        each(registry -> Timer.builder("rlock.hold").tag("mode", word(hold.mode())).tag("end", end)
                .description("From the grant to the end of the hold").register(registry).record(hold.time()));
    }
}
