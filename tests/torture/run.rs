//! One workload and one fault together: load, faults, and then the checkers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::actor::Site;
use crate::aftermath;
use crate::checks::{self, Extent, Violation};
use crate::clock::{Stop, ms, now_ns, ns};
use crate::crowd::{Crowd, Processes};
use crate::faults::{Blow, Fault, Kind};
use crate::history::{History, Promise};
use crate::witness::Witness;
use crate::workloads::Workload;

/// The result.
#[derive(Default)]
pub struct Outcome {
    pub operations: usize,
    /// Holds that were certain for some time, and so compared with others.
    pub holds: usize,
    /// What is linearizable over the whole run, and how long it took to find out.
    pub linear: Extent,
    pub judged_ns: u64,
    pub blows: u32,
    /// The hand-offs, in milliseconds.
    pub hand_offs: Vec<f64>,
    /// The violations, each with a short history around it.
    pub violations: Vec<String>,
}

/// Runs it for that long. A panic counts as a violation.
pub fn run(workload: &'static Workload, kind: &Kind, lasts_ms: u64, seed: u64) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| attempt(workload, kind, lasts_ms, seed))).unwrap_or_else(
        |why| {
            let text = why.downcast_ref::<String>().cloned();
            let text = text.or_else(|| why.downcast_ref::<&str>().map(ToString::to_string));
            let violations = vec![format!("it ended early: {}", text.unwrap_or_default())];
            Outcome { violations, ..Outcome::default() }
        },
    )
}

fn attempt(workload: &'static Workload, kind: &Kind, lasts_ms: u64, seed: u64) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut fault = (kind.start)();
    let site = Arc::new(fault.site());
    let witness = Witness::start(site.clone());
    let mut crowd = crowd(workload, kind, site, seed);
    let (mut events, mut blows) = (Vec::new(), 0);
    let ends_ns = now_ns() + ns(lasts_ms);
    while blows == 0 || now_ns() < ends_ns {
        Stop::default().within(rng.u64(kind.every_ms / 4..=kind.every_ms));
        let (rng, crowd, events) = (&mut rng, &mut crowd, &mut events);
        fault.strike(&mut Blow { rng, crowd, events });
        blows += 1;
    }
    let ops = crowd.end();
    events.extend(witness.end());
    fault.heal();
    let promise = Promise { is_acked: workload.is_acked, ..kind.promise };
    let history = History { ops, events, promise };
    let mut outcome = judged(&history);
    outcome.blows = blows;
    outcome.violations.extend(afterwards(&mut *fault, kind));
    outcome
}

fn crowd(workload: &'static Workload, kind: &Kind, site: Arc<Site>, seed: u64) -> Crowd {
    if kind.in_processes {
        let url = (site.url_of)("", 0);
        Crowd::Processes(Processes::start(workload, seed, url, site.lease_ms))
    } else {
        Crowd::threads(workload, seed, site)
    }
}

/// The checkers' results.
pub fn judged(history: &History) -> Outcome {
    let holds = checks::holds(history);
    let mut violations = checks::check(history, &holds);
    let begun_ns = now_ns();
    let (linear, not_linear) = checks::linear(history);
    let judged_ns = now_ns() - begun_ns;
    violations.extend(not_linear);
    let hand_offs = checks::hand_offs_ns(history, &holds).into_iter().map(ms).collect();
    let violations = lines(history, &violations);
    let certain = holds.iter().filter(|hold| hold.until_ns > hold.from_ns);
    let (operations, holds, blows) = (history.ops.len(), certain.count(), 0);
    Outcome { operations, holds, linear, judged_ns, blows, hand_offs, violations }
}

/// The violations, each with what happened around it.
pub fn lines(history: &History, violations: &[Violation]) -> Vec<String> {
    let line = |violation: &Violation| {
        let excerpt = history.excerpt(&violation.key, violation.from_ns, violation.to_ns);
        format!("{}: {}\n    {}", violation.checker, violation.text, excerpt.join("\n    "))
    };
    violations.iter().map(line).collect()
}

fn afterwards(fault: &mut dyn Fault, kind: &Kind) -> Vec<String> {
    let mut shards = fault.shards();
    let wrong = shards.iter_mut().flat_map(|shard| aftermath::look(shard, kind.promise.may_close));
    wrong.map(|text| format!("aftermath: {text}")).collect()
}
