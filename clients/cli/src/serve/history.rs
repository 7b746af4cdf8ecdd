//! The last minutes: events per second, and how long requests waited.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::histogram::{Histogram, Percentile};
use crate::snapshot::Snapshot;

/// How long points are kept.
const SPAN: Duration = Duration::from_secs(15 * 60);

/// Counters that are shown per second.
const RATES: [&str; 6] = ["acquired", "handed_off", "released", "refused", "timed_out", "expired"];

/// Points, oldest first; each covers the time between two looks.
#[derive(Debug, Default)]
pub struct History {
    points: VecDeque<Value>,
}

impl History {
    /// Adds what happened between two looks at the same servers, the later at `unix_ms`.
    pub fn add(&mut self, before: &Snapshot, now: &Snapshot, unix_ms: u64) -> Value {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
        let mut point =
            Map::from_iter([("at".into(), json!(unix_ms)), ("seconds".into(), json!(seconds))]);
        for name in ["waiters", "tells", "tickets", "locks"] {
            point.insert(name.into(), json!(now.number(name)));
        }
        for name in RATES {
            let count = now.number(name).saturating_sub(before.number(name));
            #[expect(clippy::cast_precision_loss, reason = "a count of one look")]
            let per_second = count as f64 / seconds;
            point.insert(name.into(), json!((per_second * 10.0).round() / 10.0));
        }
        let waits = Histogram::of(&now.numbers, "wait")
            .zip(Histogram::of(&before.numbers, "wait"))
            .map(|(now, before)| now.since(&before))
            .filter(|waits| waits.count > 0);
        if let Some(waits) = waits {
            for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
                let (Percentile::About(time) | Percentile::Over(time)) = waits.percentile(share);
                point.insert(name.into(), json!(time.as_micros()));
            }
        }
        let point = Value::Object(point);
        self.points.push_back(point.clone());
        let oldest = unix_ms.saturating_sub(u64::try_from(SPAN.as_millis()).unwrap_or(u64::MAX));
        while self
            .points
            .front()
            .is_some_and(|point| point.get("at").and_then(Value::as_u64) < Some(oldest))
        {
            self.points.pop_front();
        }
        point
    }

    /// All points, as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        json!({ "points": self.points }).to_string()
    }
}
