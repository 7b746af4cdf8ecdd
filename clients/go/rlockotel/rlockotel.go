// Package rlockotel is OpenTelemetry for the locks of rlock.example/rlock.
//
//	telemetry, err := rlockotel.New()
//	locker, err := rlock.New(client, rlock.Listen(telemetry))
//
// It has the histograms rlock.wait and rlock.hold in seconds, the counter rlock.lost, and a span rlock.wait around each
// acquisition, as a child of the span in the acquisition's context.
package rlockotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"rlock.example/rlock"
)

// Telemetry is an [rlock.Listener].
type Telemetry struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	hasKeys bool

	tracer     trace.Tracer
	wait, hold metric.Float64Histogram
	lost       metric.Int64Counter
}

var _ rlock.Listener = (*Telemetry)(nil)

// Option is an option of [New].
type Option func(*Telemetry)

// Meters sets the provider to use instead of the global one.
func Meters(provider metric.MeterProvider) Option { return func(t *Telemetry) { t.meters = provider } }

// Tracers sets the provider to use instead of the global one.
func Tracers(provider trace.TracerProvider) Option {
	return func(t *Telemetry) { t.tracers = provider }
}

// Keys adds the attribute rlock.key to each measurement and span. Each key is then a time series of its own: use this
// only if there are few keys.
func Keys() Option { return func(t *Telemetry) { t.hasKeys = true } }

// buckets are in seconds. The default buckets of the SDK are meant for milliseconds.
var buckets = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300}

const name = "rlock.example/rlock/rlockotel"

// New makes the instruments.
func New(options ...Option) (*Telemetry, error) {
	t := &Telemetry{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider()}
	for _, set := range options {
		set(t)
	}
	t.tracer = t.tracers.Tracer(name)
	meter := t.meters.Meter(name)
	var problems [3]error
	t.wait, problems[0] = meter.Float64Histogram("rlock.wait", metric.WithUnit("s"), metric.WithDescription("How long acquisitions took."),
		metric.WithExplicitBucketBoundaries(buckets...))
	t.hold, problems[1] = meter.Float64Histogram("rlock.hold", metric.WithUnit("s"), metric.WithDescription("How long locks were held."),
		metric.WithExplicitBucketBoundaries(buckets...))
	t.lost, problems[2] = meter.Int64Counter("rlock.lost", metric.WithUnit("{hold}"), metric.WithDescription("Holds that were lost."))
	return t, errors.Join(problems[:]...)
}

func (t *Telemetry) attributes(key string, others ...attribute.KeyValue) []attribute.KeyValue {
	if t.hasKeys {
		others = append(others, attribute.String("rlock.key", key))
	}
	return others
}

// Waited is part of [rlock.Listener].
func (t *Telemetry) Waited(ctx context.Context, event rlock.Event) {
	attributes := t.attributes(event.Key, attribute.Bool("rlock.acquired", event.Err == nil))
	t.wait.Record(ctx, event.Took.Seconds(), metric.WithAttributes(attributes...))
	_, span := t.tracer.Start(ctx, "rlock.wait", trace.WithTimestamp(event.At.Add(-event.Took)),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	if event.Err != nil && !errors.Is(event.Err, rlock.ErrNotAcquired) {
		span.SetStatus(codes.Error, event.Err.Error())
	}
	span.End(trace.WithTimestamp(event.At))
}

// Held is part of [rlock.Listener].
func (t *Telemetry) Held(event rlock.Event) { t.ended(event, false) }

// Lost is part of [rlock.Listener].
func (t *Telemetry) Lost(event rlock.Event) {
	t.ended(event, true)
	t.lost.Add(context.Background(), 1, metric.WithAttributes(t.attributes(event.Key)...))
}

func (t *Telemetry) ended(event rlock.Event, isLost bool) {
	attributes := t.attributes(event.Key, attribute.Bool("rlock.lost", isLost))
	t.hold.Record(context.Background(), event.Took.Seconds(), metric.WithAttributes(attributes...))
}
