package rlock.opentelemetry;

import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.metrics.DoubleHistogram;
import io.opentelemetry.api.metrics.LongCounter;
import io.opentelemetry.api.metrics.Meter;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Context;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import rlock.LockListener;
import rlock.Mode;

/**
 * A listener that reports to OpenTelemetry: the histograms {@code rlock.wait} and {@code rlock.hold} in seconds, the counter
 * {@code rlock.lost}, and a span {@code rlock.wait} for each acquisition, in the caller's trace. Give it to
 * {@code Locks.Builder.listener}.
 */
public final class RlockTelemetry implements LockListener {
    private static final String NAME = "rlock";
    private static final AttributeKey<String> KEY = AttributeKey.stringKey("rlock.key");
    private static final AttributeKey<String> MODE = AttributeKey.stringKey("rlock.mode");
    private static final AttributeKey<String> RESULT = AttributeKey.stringKey("rlock.result");
    private static final AttributeKey<String> END = AttributeKey.stringKey("rlock.end");
    private static final List<Double> SECONDS = List.of(.001, .005, .01, .05, .1, .5, 1., 5., 10., 30., 60., 300.);

    private final boolean hasKeys;
    private final Tracer tracer;
    private final DoubleHistogram wait;
    private final DoubleHistogram hold;
    private final LongCounter lost;

    private RlockTelemetry(OpenTelemetry telemetry, boolean hasKeys) {
        this.hasKeys = hasKeys;
        tracer = telemetry.getTracer(NAME);
        Meter meter = telemetry.getMeter(NAME);
        wait = histogram(meter, "rlock.wait", "From the request for a lock to its end");
        hold = histogram(meter, "rlock.hold", "From the grant of a lock to the end of the hold");
        lost = meter.counterBuilder("rlock.lost").setUnit("{hold}").setDescription("Holds that were lost").build();
    }

    private static DoubleHistogram histogram(Meter meter, String name, String description) {
        return meter.histogramBuilder(name).setUnit("s").setDescription(description)
                .setExplicitBucketBoundariesAdvice(SECONDS).build();
    }

    /** Reports no keys. */
    public static RlockTelemetry of(OpenTelemetry telemetry) {
        return new RlockTelemetry(telemetry, false);
    }

    /**
     * Adds the attribute {@code rlock.key} to spans and metrics. Each key is then a time series of its own: use this
     * only for few keys, whose names everybody who sees the metrics may know.
     */
    public static RlockTelemetry withKeys(OpenTelemetry telemetry) {
        return new RlockTelemetry(telemetry, true);
    }

    /** The caller's trace. */
    @Override
    public Object context() {
        return Context.current();
    }

    @Override
    public void waited(Waited event) {
        Attributes attributes = attributes(event.key(), event.mode(), RESULT, event.result());
        Context caller = event.context() instanceof Context given ? given : Context.root();
        wait.record(seconds(event.time()), attributes, caller);
        Span span = tracer.spanBuilder("rlock.wait").setParent(caller).setStartTimestamp(event.start())
                .setAllAttributes(attributes).startSpan();
        if (event.result() == Result.FAILED) span.setStatus(StatusCode.ERROR);
        span.end(event.start().plus(event.time()));
    }

    @Override
    public void held(Held event) {
        hold.record(seconds(event.time()), attributes(event.key(), event.mode(), END, "released"));
    }

    @Override
    public void lost(Held event) {
        lost.add(1, attributes(event.key(), event.mode(), null, null));
        hold.record(seconds(event.time()), attributes(event.key(), event.mode(), END, "lost"));
    }

    private static double seconds(Duration time) {
        return time.toNanos() / 1e9;
    }

    private Attributes attributes(String key, Mode mode, AttributeKey<String> more, Object value) {
        var attributes = Attributes.builder().put(MODE, word(mode));
        if (more != null) attributes.put(more, word(value));
        if (hasKeys) attributes.put(KEY, key);
        return attributes.build();
    }

    private static String word(Object value) {
        return value.toString().toLowerCase(Locale.ROOT);
    }
}
