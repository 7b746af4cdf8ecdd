//! The look as OpenMetrics.

use std::collections::BTreeSet;
use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::look::{Seen, Told};
use super::page::{noreplicas, number, replicas};
use crate::histogram::Histogram;
use crate::servers::REASONS;
use crate::snapshot::{Part, Queue};

/// The content type of what [`text()`] writes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Numbers of `INFO rlock` that are current values, with their meaning.
const GAUGES: [(&str, &str); 11] = [
    ("locks", "Locks that are held"),
    ("waiters", "Connections blocked by BLOCK"),
    ("tickets", "Places kept by QUEUE"),
    ("tells", "Requests with TELL that wait: their replies will be messages"),
    ("sessions", "Holds tied to a connection"),
    ("observers", "Requests with RLOCK.AWAIT that wait"),
    ("acks_pending", "Callers whose grant replicas have not acknowledged yet"),
    ("groups", "Requests for several locks that wait"),
    ("group_turns", "Locks that are reserved for requests for several locks"),
    ("gate_shut", "1 while work is due that the module may not do now"),
    ("aof_incomplete", "1 while the append-only file lacks data that the server has"),
];

/// Numbers of `INFO rlock` that count events since the server's start.
const COUNTERS: [(&str, &str); 18] = [
    ("acquired", "New holds"),
    ("reentered", "Re-entries"),
    ("refused", "Requests that got nil at once"),
    ("timed_out", "Waits that ended without the lock"),
    ("handed_off", "Blocked requests that were granted"),
    ("released", "Holds that ended by release"),
    ("renewed", "Renewals by command"),
    ("expired", "Holds that ended with their lease"),
    ("disconnected", "Holds that ended with their connection"),
    ("forced", "Holds that RLOCK.FORCE ended"),
    ("evicted", "Locks that were evicted: two owners may hold each of them"),
    ("deadlocks", "Waits refused because they would close a cycle"),
    ("deadlock_searches_given_up", "Searches for a deadlock that visited too many waiters"),
    ("noacks", "Callers that got -NOACKS: too few replicas acknowledged in time"),
    ("sessions_refused", "Requests for SESSION that rlock.max-sessions refused"),
    ("groups_granted", "Requests for several locks that got a token"),
    ("told", "Messages of TELL that were sent"),
    ("untold", "Outcomes of TELL that had no subscriber"),
];

const HISTOGRAMS: [(&str, &str); 3] = [
    ("wait", "Waiting time of granted connections"),
    ("hold", "Duration of ended holds"),
    ("acks", "Time from a grant to its acknowledgment"),
];

/// The page that Prometheus reads.
///
/// # Errors
/// None: writing to a string cannot fail.
pub fn text(seen: &Arc<Seen>, elections: &Arc<[String]>) -> Result<String, Error> {
    let mut registry = Registry::default();
    let (seen, elections) = (seen.clone(), elections.clone());
    registry.register_collector(Box::new(Page { seen, elections }));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

struct Page {
    seen: Arc<Seen>,
    elections: Arc<[String]>,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Page")
    }
}

/// Samples of one metric: labels and value.
type Samples = Vec<(Vec<(&'static str, String)>, f64)>;

impl Collector for Page {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        self.state(&mut to)?;
        for (name, help) in GAUGES {
            self.each(&mut to, &format!("rlock_{name}"), help, MetricType::Gauge, |part| {
                part.numbers().get(name).map(|value| float(*value))
            })?;
        }
        for (name, help) in COUNTERS {
            self.each(&mut to, &format!("rlock_{name}"), help, MetricType::Counter, |part| {
                part.numbers().get(name).map(|value| float(*value))
            })?;
        }
        self.replication(&mut to)?;
        self.persistence(&mut to)?;
        for (name, help) in HISTOGRAMS {
            self.histogram(&mut to, name, help)?;
        }
        self.queues(&mut to)
    }
}

impl Page {
    /// Whether each server answers, why not, and what the looks cost it.
    fn state(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let told = |told: &Told| told.part.as_ref().err().map(|down| down.reason);
        let mut states: Vec<(String, Option<&str>)> =
            self.seen.servers.iter().map(|server| (server.name.clone(), told(server))).collect();
        // If it is unknown which servers there are, the one that was asked for them has no name
        // here.
        if states.is_empty() {
            states.push((String::new(), Some("unreachable")));
        }
        let ups = states.iter().map(|(name, down)| (server(name), f64::from(down.is_none())));
        let help = "1 if the server answers and has the module";
        write(to, "rlock_up", help, MetricType::Gauge, ups.collect())?;
        let downs = states.iter().flat_map(|(name, down)| {
            REASONS.map(|reason| {
                let mut labels = server(name);
                labels.push(("reason", reason.to_owned()));
                (labels, f64::from(*down == Some(reason)))
            })
        });
        write(
            to,
            "rlock_down",
            "1 for the reason why rlock_up is 0",
            MetricType::Gauge,
            downs.collect(),
        )?;
        let busy = self.seen.servers.iter();
        let busy = busy.map(|told| (server(&told.name), told.busy.as_secs_f64())).collect();
        let help = "Time that the server spent on the previous requests of rlock serve";
        write(to, "rlock_look_seconds", help, MetricType::Gauge, busy)?;
        let every = vec![(Vec::new(), self.seen.every.as_secs_f64())];
        let help = "Interval at which rlock serve asks the servers";
        write(to, "rlock_look_interval_seconds", help, MetricType::Gauge, every)
    }

    fn replication(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        use MetricType::{Counter, Gauge};
        let help = "Requests that the module refused for lack of replicas";
        self.each(to, "rlock_noreplicas", help, Counter, |part| {
            part.numbers().get("noreplicas").map(|value| float(*value))
        })?;
        let help = "Commands of any kind that got -NOREPLICAS, from the module or by min-replicas-to-write";
        self.each(to, "rlock_noreplicas_errors", help, Counter, |part| {
            Some(float(noreplicas(part)))
        })?;
        self.each(to, "rlock_primary", "1 if the server is a primary", Gauge, |part| {
            Some(f64::from(part.is_primary()))
        })?;
        self.each(to, "rlock_replicas", "Replicas that follow the primary", Gauge, |part| {
            let online = replicas(part)
                .iter()
                .filter(|one| one.get("state").is_some_and(|state| state == "online"))
                .count();
            part.is_primary().then(|| float(u64::try_from(online).unwrap_or(u64::MAX)))
        })?;
        let help = "Unix time at which the gate was shut; 0 while it is open";
        self.each(to, "rlock_gate_shut_since_seconds", help, Gauge, |part| {
            part.numbers().get("gate_shut_since_ms").map(|ms| float(*ms) / 1000.0)
        })?;
        let help = "By how much the highest token is ahead of the server's clock";
        self.each(to, "rlock_tokens_ahead_seconds", help, Gauge, |part| {
            part.numbers().get("tokens_ahead_s").map(|seconds| float(*seconds))
        })
    }

    fn persistence(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        use MetricType::Gauge;
        self.each(to, "rlock_aof_enabled", "1 if there is an append-only file", Gauge, |part| {
            Some(float(number(part, "aof_enabled")))
        })?;
        self.each(to, "rlock_unsaved_changes", "Changes since the last snapshot", Gauge, |part| {
            Some(float(number(part, "rdb_changes_since_last_save")))
        })?;
        let help = "Unix time of the last snapshot, or of the server's start if there was none";
        self.each(to, "rlock_last_save_seconds", help, Gauge, |part| {
            Some(float(number(part, "rdb_last_save_time")))
        })?;
        self.each(to, "rlock_save_failed", "1 if the last save or append failed", Gauge, |part| {
            let is_ok = |name: &str| part.fields.get(name).is_none_or(|status| status == "ok");
            let both = ["rdb_last_bgsave_status", "aof_last_write_status"];
            Some(f64::from(!both.iter().all(|name| is_ok(name))))
        })
    }

    fn queues(&self, to: &mut DescriptorEncoder) -> Result<(), Error> {
        let (mut heads, mut lengths) = (Samples::new(), Samples::new());
        for told in &self.seen.servers {
            let Ok(part) = &told.part else { continue };
            let mut databases = BTreeSet::from([told.db]);
            databases.extend(part.queues.iter().map(|queue| queue.db));
            for db in databases {
                for (kind, is_wanted) in [("lock", false), ("election", true)] {
                    let is_election = |key: &[u8]| {
                        self.elections.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
                    };
                    let is_of =
                        |queue: &&Queue| queue.db == db && is_election(&queue.key.0) == is_wanted;
                    let queues = || part.queues.iter().filter(is_of);
                    let head = queues().map(|queue| queue.head_waits).max().unwrap_or_default();
                    let length = queues().map(|queue| queue.length).max().unwrap_or(0);
                    let mut labels = server(&told.name);
                    labels.push(("db", db.to_string()));
                    labels.push(("kind", kind.to_owned()));
                    heads.push((labels.clone(), head.as_secs_f64()));
                    lengths.push((labels, float(length)));
                }
            }
        }
        let help = "Longest wait of a first in line, among the 1000 longest queues of the database";
        write(to, "rlock_head_wait_seconds", help, MetricType::Gauge, heads)?;
        let help = "Number of waiters in the longest queue of the database";
        write(to, "rlock_longest_queue", help, MetricType::Gauge, lengths)
    }

    /// Writes one sample for each server that has a value.
    fn each(
        &self,
        to: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        kind: MetricType,
        value: impl Fn(&Part) -> Option<f64>,
    ) -> Result<(), Error> {
        let told = self.seen.servers.iter();
        let samples =
            told.filter_map(|told| Some((server(&told.name), value(told.part.as_ref().ok()?)?)));
        write(to, name, help, kind, samples.collect())
    }

    fn histogram(&self, to: &mut DescriptorEncoder, name: &str, help: &str) -> Result<(), Error> {
        let full = format!("rlock_{name}_seconds");
        let mut to = to.encode_descriptor(&full, help, None, MetricType::Histogram)?;
        for told in &self.seen.servers {
            let Ok(part) = &told.part else { continue };
            let Some(spans) = Histogram::of(&part.numbers(), name) else { continue };
            let mut below = 0;
            let each = spans.buckets.iter().map(|&(bound, reached)| {
                let own = reached.saturating_sub(below);
                below = reached;
                // The library writes this value as +Inf.
                (if bound == u64::MAX { f64::MAX } else { float(bound) / 1e6 }, own)
            });
            let buckets: Vec<(f64, u64)> = each.collect();
            let sum = float(spans.sum_us) / 1e6;
            to.encode_family(&server(&told.name))?.encode_histogram::<NoLabelSet>(
                sum,
                spans.count,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

fn server(name: &str) -> Vec<(&'static str, String)> {
    vec![("server", name.to_owned())]
}

fn write(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    kind: MetricType,
    samples: Samples,
) -> Result<(), Error> {
    if samples.is_empty() {
        return Ok(());
    }
    let mut to = to.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        let mut sample = to.encode_family(&labels)?;
        match kind {
            MetricType::Counter => sample.encode_counter::<NoLabelSet, f64, f64>(&value, None)?,
            _ => sample.encode_gauge(&value)?,
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "what Prometheus counts with")]
fn float(number: u64) -> f64 {
    number as f64
}
