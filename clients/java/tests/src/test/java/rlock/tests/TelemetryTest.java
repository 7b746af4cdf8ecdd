package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.metrics.data.HistogramPointData;
import io.opentelemetry.sdk.metrics.data.MetricData;
import io.opentelemetry.sdk.testing.exporter.InMemoryMetricReader;
import io.opentelemetry.sdk.testing.exporter.InMemorySpanExporter;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.data.StatusData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import rlock.Hold;
import rlock.LockException;
import rlock.opentelemetry.RlockTelemetry;

/** What OpenTelemetry's own exporters get. */
@Timeout(60)
class TelemetryTest {
    private static final AttributeKey<String> KEY = AttributeKey.stringKey("rlock.key");
    private static final AttributeKey<String> RESULT = AttributeKey.stringKey("rlock.result");
    private static final AttributeKey<String> END = AttributeKey.stringKey("rlock.end");
    private static final AttributeKey<String> MODE = AttributeKey.stringKey("rlock.mode");
    private final InMemorySpanExporter spans = InMemorySpanExporter.create();
    private final InMemoryMetricReader metrics = InMemoryMetricReader.create();
    private OpenTelemetrySdk telemetry;
    private Server server;

    @BeforeEach
    void open() {
        server = new Server();
        telemetry = OpenTelemetrySdk.builder()
                .setTracerProvider(SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(spans)).build())
                .setMeterProvider(SdkMeterProvider.builder().registerMetricReader(metrics).build()).build();
    }

    @AfterEach
    void close() {
        if (server != null) server.close();
        if (telemetry != null) telemetry.close();
    }

    private SpanData span(String result) {
        Server.until(() -> spans.getFinishedSpanItems().stream().anyMatch(each -> result.equals(each.getAttributes().get(RESULT))));
        return spans.getFinishedSpanItems().stream()
                .filter(each -> result.equals(each.getAttributes().get(RESULT))).findFirst().orElseThrow();
    }

    private static MetricData named(Collection<MetricData> all, String name) {
        return all.stream().filter(each -> each.getName().equals(name)).findFirst().orElseThrow();
    }

    private static HistogramPointData point(Collection<MetricData> all, String name, AttributeKey<String> key, String value) {
        return named(all, name).getHistogramData().getPoints().stream()
                .filter(each -> value.equals(each.getAttributes().get(key))).findFirst().orElseThrow();
    }

    @Test
    void waitsHoldsAndLossesAreExported() throws Exception {
        try (var session = Over.JEDIS.open(server.port, builder -> builder.listener(RlockTelemetry.of(telemetry)))) {
            var lock = session.locks().lock("order").lease(Duration.ofMillis(600));
            Span caller = telemetry.getTracer("test").spanBuilder("caller").startSpan();
            try (var scope = caller.makeCurrent(); Hold hold = lock.acquire()) {
                assertTrue(lock.detached().acquire(Duration.ofMillis(60)).isEmpty());
            }
            SpanData granted = span("granted");
            assertEquals("rlock.wait", granted.getName());
            assertEquals(caller.getSpanContext().getTraceId(), granted.getTraceId());
            assertEquals(caller.getSpanContext().getSpanId(), granted.getParentSpanId());
            SpanData waited = span("not_acquired");
            long millis = TimeUnit.NANOSECONDS.toMillis(waited.getEndEpochNanos() - waited.getStartEpochNanos());
            assertTrue(millis >= 60, millis + " ms");
            // The caller's trace is carried over to a future.
            try (var scope = caller.makeCurrent()) {
                var async = session.locks().lock("other").acquireAsync(Duration.ofSeconds(1)).get().orElseThrow();
                async.release();
            }
            Server.until(() -> spans.getFinishedSpanItems().size() == 3);
            spans.getFinishedSpanItems().forEach(each -> assertEquals(caller.getSpanContext().getSpanId(), each.getParentSpanId()));

            Hold hold = lock.acquire();
            server.say("RLOCK.FORCE", "order");
            hold.lost().get(5, TimeUnit.SECONDS);
            server.say("SET", "text", "x");
            assertThrows(LockException.class, session.locks().lock("text")::lock);
            assertEquals(StatusData.error(), span("failed").getStatus());
            Server.until(() -> metrics.collectAllMetrics().stream().anyMatch(each -> each.getName().equals("rlock.lost")));
            Collection<MetricData> all = metrics.collectAllMetrics();
            assertEquals(3, point(all, "rlock.wait", RESULT, "granted").getCount());
            HistogramPointData denied = point(all, "rlock.wait", RESULT, "not_acquired");
            assertEquals(1, denied.getCount());
            assertTrue(denied.getSum() >= 0.06 && denied.getSum() < 10, denied.getSum() + " s");
            assertEquals("s", named(all, "rlock.wait").getUnit());
            assertEquals(2, point(all, "rlock.hold", END, "released").getCount());
            assertEquals(1, point(all, "rlock.hold", END, "lost").getCount());
            var lost = named(all, "rlock.lost").getLongSumData().getPoints();
            assertEquals(1, lost.iterator().next().getValue());
            assertEquals("write", lost.iterator().next().getAttributes().get(MODE));
            spans.getFinishedSpanItems().forEach(each -> assertNull(each.getAttributes().get(KEY)));
            all.forEach(each -> each.getData().getPoints().forEach(one -> assertNull(one.getAttributes().get(KEY))));
        }
    }

    @Test
    void keysAreExportedOnlyIfAskedFor() {
        try (var session = Over.LETTUCE.open(server.port, builder -> builder.listener(RlockTelemetry.withKeys(telemetry)))) {
            session.locks().readLock("order").acquire().release();
            assertEquals("order", span("granted").getAttributes().get(KEY));
            Server.until(() -> metrics.collectAllMetrics().stream().anyMatch(each -> each.getName().equals("rlock.hold")));
            HistogramPointData held = point(metrics.collectAllMetrics(), "rlock.hold", END, "released");
            assertEquals("order", held.getAttributes().get(KEY));
            assertEquals(List.of("read"), List.of(held.getAttributes().get(MODE)));
        }
    }
}
