package rlockotel

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"rlock.example/rlock"
	"rlock.example/rlock/rlocktest"
)

var ctx = context.Background()

// start starts a real server with the module.
func start(t *testing.T) *redis.Client {
	t.Helper()
	if os.Getenv("RLOCK_SERVER") == "" || os.Getenv("RLOCK_MODULE") == "" {
		t.Skip("RLOCK_SERVER and RLOCK_MODULE say which server, with which module")
	}
	return rlocktest.Start(t).Client()
}

type exported struct {
	reader    *metric.ManualReader
	spans     *tracetest.InMemoryExporter
	tracers   *trace.TracerProvider
	telemetry *Telemetry
}

func export(t *testing.T, options ...Option) exported {
	t.Helper()
	e := exported{reader: metric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	e.tracers = trace.NewTracerProvider(trace.WithSyncer(e.spans))
	meters := metric.NewMeterProvider(metric.WithReader(e.reader))
	telemetry, err := New(append(options, Meters(meters), Tracers(e.tracers))...)
	if err != nil {
		t.Fatal(err)
	}
	e.telemetry = telemetry
	return e
}

// points returns, for each metric and by attributes, the counts, or the sum of a counter.
func (e exported) points(t *testing.T) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := e.reader.Collect(ctx, &all); err != nil {
		t.Fatal(err)
	}
	points := map[string]int64{}
	name := func(metric string, set attribute.Set) string {
		return metric + " " + set.Encoded(attribute.DefaultEncoder())
	}
	for _, scope := range all.ScopeMetrics {
		for _, each := range scope.Metrics {
			switch data := each.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					if !slices.Equal(point.Bounds, buckets) {
						t.Error(point.Bounds)
					}
					points[name(each.Name, point.Attributes)] = int64(point.Count)
				}
			case metricdata.Sum[int64]:
				for _, point := range data.DataPoints {
					points[name(each.Name, point.Attributes)] = point.Value
				}
			}
		}
	}
	return points
}

func lock(t *testing.T, ctx context.Context, l *rlock.Locker, choices ...rlock.Option) *rlock.Hold {
	t.Helper()
	hold, err := l.Lock(ctx, "a", choices...)
	if err != nil {
		t.Fatal(err)
	}
	return hold
}

func TestWaitsHoldsAndLosses(t *testing.T) {
	e, client := export(t), start(t)
	l, err := rlock.New(client, rlock.Listen(e.telemetry))
	if err != nil {
		t.Fatal(err)
	}
	request, span := e.tracers.Tracer("test").Start(ctx, "request")
	hold := lock(t, request, l)
	if _, err := l.Lock(request, "a", rlock.Wait(300*time.Millisecond)); err == nil {
		t.Fatal("it was held")
	}
	hold.Release()
	lost := lock(t, ctx, l, rlock.Lease(1500*time.Millisecond))
	client.Do(ctx, "RLOCK.FORCE", "a")
	<-lost.Context().Done()
	l.Close()
	wanted := map[string]int64{
		"rlock.wait rlock.acquired=true": 2, "rlock.wait rlock.acquired=false": 1,
		"rlock.hold rlock.lost=false": 1, "rlock.hold rlock.lost=true": 1, "rlock.lost ": 1,
	}
	for end := time.Now().Add(20 * time.Second); !reflect.DeepEqual(e.points(t), wanted); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(e.points(t))
		}
	}
	waits := e.spans.GetSpans()
	if len(waits) != 3 {
		t.Fatal(waits)
	}
	for at, wait := range waits {
		if below := wait.Parent.SpanID() == span.SpanContext().SpanID(); wait.Name != "rlock.wait" || below != (at < 2) {
			t.Error(at, wait.Name, wait.Parent)
		}
	}
	if took := waits[1].EndTime.Sub(waits[1].StartTime); took < 250*time.Millisecond || took > 5*time.Second {
		t.Error(took)
	}
}

func TestKeysAreThereIfAskedFor(t *testing.T) {
	e := export(t, Keys())
	l, err := rlock.New(start(t), rlock.Listen(e.telemetry))
	if err != nil {
		t.Fatal(err)
	}
	lock(t, ctx, l).Release()
	l.Close()
	wanted := map[string]int64{"rlock.wait rlock.acquired=true,rlock.key=a": 1, "rlock.hold rlock.key=a,rlock.lost=false": 1}
	for end := time.Now().Add(20 * time.Second); !reflect.DeepEqual(e.points(t), wanted); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(e.points(t))
		}
	}
}

// The snippet in the README of rlock compiles where users create their client.
func TestTheSnippetOfTheReadmeCompiles(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, snippet, _ := strings.Cut(string(readme), "```go\ntelemetry, err := ")
	snippet, _, _ = strings.Cut(snippet, "```\n")
	program := "package main\n\nimport (\n\"github.com/redis/go-redis/v9\"\n\"rlock.example/rlock\"\n" +
		"\"rlock.example/rlock/rlockotel\"\n)\n\nfunc main() {}\n\n" +
		"func locks(client *redis.Client) (*rlock.Locker, error) {\ntelemetry, err := " + snippet + "return locker, err\n}\n"
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
		t.Fatal(err, string(said))
	}
}
