//! OpenTelemetry for locks; the feature `opentelemetry`.
//!
//! ```no_run
//! # fn example(client: redis::Client) {
//! let locker = rlock_client::Locker::new(client).listener(rlock_client::otel::Telemetry::new());
//! # }
//! ```
//!
//! Histograms `rlock.wait` and `rlock.hold` in seconds, a counter `rlock.lost`, and a span
//! `rlock.wait` around each acquisition, as a child of the span that is current when it begins.

use std::time::SystemTime;

use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::metrics::{Counter, Histogram, Meter};
use opentelemetry::trace::{Span, SpanKind, Tracer};
use opentelemetry::{KeyValue, global::meter};

use crate::telemetry::{Event, Listener};

/// In seconds. The default buckets of the SDK are meant for milliseconds.
const BUCKETS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// A [`Listener`] that measures.
pub struct Telemetry<T = BoxedTracer> {
    tracer: T,
    wait: Histogram<f64>,
    hold: Histogram<f64>,
    lost: Counter<u64>,
    has_keys: bool,
}

impl Telemetry {
    /// For the current global providers.
    #[must_use]
    pub fn new() -> Telemetry {
        Telemetry::with(&meter("rlock-client"), global::tracer("rlock-client"))
    }
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry::new()
    }
}

impl<T: Tracer> Telemetry<T> {
    /// For that meter and tracer.
    #[must_use]
    pub fn with(meter: &Meter, tracer: T) -> Telemetry<T> {
        let histogram = |name, text| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(text)
                .with_boundaries(BUCKETS.to_vec())
                .build()
        };
        Telemetry {
            tracer,
            wait: histogram("rlock.wait", "How long acquisitions took."),
            hold: histogram("rlock.hold", "How long locks were held."),
            lost: meter
                .u64_counter("rlock.lost")
                .with_unit("{hold}")
                .with_description("Holds that were lost.")
                .build(),
            has_keys: false,
        }
    }

    /// Adds the attribute `rlock.key`. Each key is then a time series of its own: use this only if
    /// there are few keys.
    #[must_use]
    pub fn keys(mut self) -> Telemetry<T> {
        self.has_keys = true;
        self
    }

    fn named(&self, event: &Event, other: Option<KeyValue>) -> Vec<KeyValue> {
        let key = self.has_keys.then(|| KeyValue::new("rlock.key", event.key.clone()));
        other.into_iter().chain(key).collect()
    }

    fn ended(&self, event: &Event, is_lost: bool) {
        let attributes = self.named(event, Some(KeyValue::new("rlock.lost", is_lost)));
        self.hold.record(event.took.as_secs_f64(), &attributes);
    }
}

impl<T> Listener for Telemetry<T>
where
    T: Tracer + Send + 'static,
{
    fn waited(&mut self, event: &Event) {
        let attributes = self.named(event, Some(KeyValue::new("rlock.acquired", event.acquired)));
        self.wait.record(event.took.as_secs_f64(), &attributes);
        let begin = event.at.checked_sub(event.took).unwrap_or(SystemTime::UNIX_EPOCH);
        let span = self.tracer.span_builder("rlock.wait").with_kind(SpanKind::Client);
        let span = span.with_start_time(begin).with_attributes(attributes);
        span.start_with_context(&self.tracer, &event.context).end_with_timestamp(event.at);
    }

    fn held(&mut self, event: &Event) {
        self.ended(event, false);
    }

    fn lost(&mut self, event: &Event) {
        self.ended(event, true);
        self.lost.add(1, &self.named(event, None));
    }
}
