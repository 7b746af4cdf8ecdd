//! The events for a listener, and the counters. A listener that panics or hangs neither stops nor delays anything.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use redis::Client;
use rlock_client::{Error, Event, Listener, Locker, blocking};
use support::{Server, until};
use tokio::time::timeout;

struct Notes(Sender<(&'static str, Event)>);

impl Listener for Notes {
    fn waited(&mut self, event: &Event) {
        let what = if event.acquired { "waited" } else { "gave up" };
        self.0.send((what, event.clone())).unwrap();
    }

    fn held(&mut self, event: &Event) {
        self.0.send(("held", event.clone())).unwrap();
    }

    fn lost(&mut self, event: &Event) {
        self.0.send(("lost", event.clone())).unwrap();
    }
}

fn client(server: &Server) -> Client {
    Client::open(server.url()).unwrap()
}

fn noted(server: &Server) -> (Locker, Receiver<(&'static str, Event)>) {
    let (notes, heard) = channel();
    (Locker::new(client(server)).listener(Notes(notes)), heard)
}

fn next(heard: &Receiver<(&'static str, Event)>) -> (String, Event) {
    let (what, event) = heard.recv_timeout(Duration::from_secs(10)).unwrap();
    (format!("{what} {}", event.key), event)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_is_told_of_waits_holds_and_losses() {
    let server = Server::start(&[]);
    let (locker, heard) = noted(&server);
    let hold = locker.lock("a").acquire().await.unwrap();
    assert_eq!((locker.counts().held, locker.counts().waiting), (1, 0));
    let waiter = locker.lock("a").wait(Duration::from_millis(500)).acquire();
    let waiter = tokio::spawn(waiter);
    until("it waits", || locker.counts().waiting == 1);
    assert!(matches!(waiter.await.unwrap(), Err(Error::NotAcquired)));
    hold.release().await.unwrap();
    // A read lock is not observed: the renewal discovers the loss.
    let lost = locker.lock("b").read().lease(Duration::from_millis(1500)).acquire().await.unwrap();
    let _: u64 = server.ask("RLOCK.FORCE b");
    lost.lost().await;
    let several = locker.all(["c", "d"]).unwrap().acquire().await.unwrap();
    drop(several);
    let told: Vec<_> = (0..7).map(|_| next(&heard)).collect();
    let names: Vec<_> = told.iter().map(|(name, _)| name.as_str()).collect();
    let wanted =
        ["waited a", "gave up a", "held a", "waited b", "lost b", "waited c, d", "held c, d"];
    assert_eq!(names, wanted);
    let (gave_up, held) = (&told[1].1, &told[2].1);
    assert!(gave_up.took >= Duration::from_millis(450) && gave_up.took <= held.took);
    assert!(SystemTime::now().duration_since(held.at).unwrap() < Duration::from_secs(60));
    let counts = locker.counts();
    let all = (counts.held, counts.waiting, counts.lost, counts.failed_renewals);
    assert_eq!((all, counts.unreported), ((0, 0, 1, 1), 0)); // the renewal that was refused
}

#[tokio::test]
async fn a_dropped_future_is_no_longer_counted() {
    let server = Server::start(&[]);
    let (locker, heard) = noted(&server);
    let hold = locker.lock("a").acquire().await.unwrap();
    let waiter = timeout(Duration::from_millis(100), locker.lock("a").acquire());
    assert!(waiter.await.is_err());
    assert_eq!(locker.counts().waiting, 0);
    assert_eq!((next(&heard).0, next(&heard).0), ("waited a".to_owned(), "gave up a".to_owned()));
    drop(hold);
}

#[test]
fn threads_are_counted_as_well() {
    let mut server = Server::start(&[]);
    let (notes, heard) = channel();
    let locker = blocking::Locker::new(client(&server)).unwrap().listener(Notes(notes));
    locker.lock("a").acquire().unwrap().release().unwrap();
    assert_eq!((next(&heard).0, next(&heard).0), ("waited a".to_owned(), "held a".to_owned()));
    let hold = locker.lock("a").lease(Duration::from_millis(1500)).acquire().unwrap();
    assert!(locker.lock("a").wait(Duration::ZERO).acquire().is_err());
    server.kill();
    until("it is lost", || locker.counts().lost == 1);
    assert!(!hold.is_held() && locker.counts().failed_renewals > 0 && locker.counts().held == 0);
    let names = [next(&heard).0, next(&heard).0, next(&heard).0];
    assert_eq!(names, ["waited a", "gave up a", "lost a"]);
}

struct Panics;

impl Listener for Panics {
    fn waited(&mut self, _: &Event) {
        panic!("a mistake");
    }
}

#[tokio::test]
async fn a_listener_that_panics_stops_nothing() {
    let server = Server::start(&[]);
    let locker = Locker::new(client(&server)).listener(Panics);
    for _ in 0..3 {
        locker.lock("a").acquire().await.unwrap().release().await.unwrap();
    }
    until("all is told", || locker.counts().unreported == 3);
}

struct Hangs(Receiver<()>);

impl Listener for Hangs {
    fn waited(&mut self, _: &Event) {
        let _ = self.0.recv();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_hangs_delays_nothing() {
    let server = Server::start(&[]);
    let (free, stuck) = channel();
    let locker = Locker::new(client(&server)).listener(Hangs(stuck));
    for _ in 0..1000 {
        locker.lock("a").acquire().await.unwrap().release().await.unwrap();
    }
    let lost = locker.lock("b").lease(Duration::from_millis(1500)).acquire().await.unwrap();
    let begin = Instant::now();
    let _: u64 = server.ask("RLOCK.FORCE b");
    lost.lost().await;
    assert!(begin.elapsed() < Duration::from_secs(5));
    // Of 2002 events, the listener has one, and 1000 wait for it.
    assert_eq!((locker.counts().unreported, locker.counts().held), (1001, 0));
    drop(free);
}

#[cfg(feature = "opentelemetry")]
mod otel {
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer, TracerProvider};
    use opentelemetry::{Context, Key};
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
    use rlock_client::otel::Telemetry;

    use super::*;

    /// For each metric, by attributes: the counts, or the sum of a counter.
    fn points(exporter: &InMemoryMetricExporter, provider: &SdkMeterProvider) -> Vec<String> {
        exporter.reset();
        provider.force_flush().unwrap();
        let mut found = Vec::new();
        for resource in exporter.get_finished_metrics().unwrap() {
            for metric in resource.scope_metrics().flat_map(|scope| scope.metrics()) {
                let mut add = |attributes: Vec<String>, value: u64| {
                    found.push(format!("{} {} {value}", metric.name(), attributes.join(",")));
                };
                let text = |one: &opentelemetry::KeyValue| format!("{}={}", one.key, one.value);
                match metric.data() {
                    AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                        for point in histogram.data_points() {
                            add(point.attributes().map(text).collect(), point.count());
                        }
                    }
                    AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                        for point in sum.data_points() {
                            add(point.attributes().map(text).collect(), point.value());
                        }
                    }
                    _ => panic!("another kind of metric"),
                }
            }
        }
        found.sort();
        found
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn there_are_waits_holds_and_losses_with_keys_if_asked_for() {
        let server = Server::start(&[]);
        let (exporter, spans) =
            (InMemoryMetricExporter::default(), InMemorySpanExporter::default());
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let meters = SdkMeterProvider::builder().with_reader(reader).build();
        let tracers = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let (meter, tracer) = (meters.meter("test"), tracers.tracer("test"));
        let request = Context::current_with_span(tracer.start("request"));
        let parent = request.span().span_context().span_id();
        let locker = Locker::new(client(&server)).listener(Telemetry::with(&meter, tracer.clone()));
        let hold = locker.lock("a").acquire().with_context(request.clone()).await.unwrap();
        let waiter = locker.lock("a").wait(Duration::from_millis(300)).acquire();
        assert!(waiter.with_context(request).await.is_err());
        hold.release().await.unwrap();
        let lost = locker.lock("a").lease(Duration::from_millis(1500)).acquire().await.unwrap();
        let _: u64 = server.ask("RLOCK.FORCE a");
        lost.lost().await;
        let wanted = [
            "rlock.hold rlock.lost=false 1",
            "rlock.hold rlock.lost=true 1",
            "rlock.lost  1",
            "rlock.wait rlock.acquired=false 1",
            "rlock.wait rlock.acquired=true 2",
        ];
        until("all is told", || points(&exporter, &meters) == wanted);
        let waits = spans.get_finished_spans().unwrap();
        let waits: Vec<_> = waits.iter().filter(|span| span.name == "rlock.wait").collect();
        let below: Vec<_> = waits.iter().map(|span| span.parent_span_id == parent).collect();
        assert_eq!(below, [true, true, false]);
        let took = waits[1].end_time.duration_since(waits[1].start_time).unwrap();
        assert!(took >= Duration::from_millis(250) && took < Duration::from_secs(5), "{took:?}");
        let named = Telemetry::with(&meters.meter("named"), tracer).keys();
        let named = Locker::new(client(&server)).listener(named);
        named.lock("b").acquire().await.unwrap().release().await.unwrap();
        let key = Key::new("rlock.key");
        until("the span has its key", || {
            let spans = spans.get_finished_spans().unwrap();
            spans.iter().any(|span| span.attributes.iter().any(|one| one.key == key))
        });
    }
}
