//! No lost wake-up: while somebody waits, a lock is not free for longer than promised. It is free
//! from the end of all earlier holds until the reply to the next grant.

use std::collections::HashMap;

use super::{Hold, Violation};
use crate::clock::{ms, ns};
use crate::history::{Asked, History, Op, Reply, Wait};

pub fn check(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let mut waits: HashMap<&str, Vec<&Op>> = HashMap::new();
    for op in history.ops.iter().filter(|op| is_wait(op)) {
        waits.entry(&op.key).or_default().push(op);
    }
    let mut by_key = grouped(holds);
    let mut found = Vec::new();
    for (key, waits) in waits {
        let gaps = gaps(history, key, &by_key.remove(key).unwrap_or_default());
        for wait in waits {
            found.extend(gaps.iter().find_map(|gap| stood_still(history, wait, gap.0, gap.1)));
        }
    }
    found
}

/// How long each hand-over to a waiter took, from the release to the reply to the grant, in
/// nanoseconds, as both saw it.
pub fn hand_offs_ns(history: &History, holds: &[Hold]) -> Vec<u64> {
    let mut found = Vec::new();
    for holds in grouped(holds).into_values() {
        for pair in holds.windows(2) {
            let (before, next) = (pair[0], pair[1]);
            let release = before.ops.iter().map(|place| &history.ops[*place]).find(|op| {
                matches!((&op.asked, &op.reply), (Asked::Release { .. }, Reply::Number(0)))
            });
            let grant = &history.ops[next.ops[0]];
            if let Some(release) = release
                && is_wait(grant)
                && grant.sent_ns < release.sent_ns
                && grant.received_ns > release.sent_ns
            {
                found.push(grant.received_ns - release.sent_ns);
            }
        }
    }
    found
}

fn is_wait(op: &Op) -> bool {
    let Asked::Acquire(ask) = op.asked else { return false };
    matches!(ask.wait, Wait::Block(_) | Wait::Tell { .. })
        && matches!(op.reply, Reply::Token(_) | Reply::Nil)
}

/// By key, in the order of their tokens.
fn grouped(holds: &[Hold]) -> HashMap<&str, Vec<&Hold>> {
    let mut by_key: HashMap<&str, Vec<&Hold>> = HashMap::new();
    for hold in holds {
        by_key.entry(&hold.key).or_default().push(hold);
    }
    by_key
}

/// The times longer than the bound in which nobody can have held `key`.
fn gaps(history: &History, key: &str, holds: &[&Hold]) -> Vec<(u64, u64)> {
    let bound_ns = ns(history.promise.granted_within_ms);
    let mut taken: Vec<(u64, u64)> = kept_for_the_absent(history, key);
    taken.extend(holds.iter().map(|hold| (hold.granted_ns, hold.over_ns)));
    taken.sort_unstable();
    let (mut gaps, mut free_ns) = (Vec::new(), 0_u64);
    for (from_ns, to_ns) in taken {
        if from_ns > free_ns.saturating_add(bound_ns) {
            gaps.push((free_ns, from_ns));
        }
        free_ns = free_ns.max(to_ns);
    }
    gaps.push((free_ns, u64::MAX));
    gaps
}

/// An ACQUIRE without a reply may hold, and a ticket whose owner stayed away may have had its turn.
fn kept_for_the_absent(history: &History, key: &str) -> Vec<(u64, u64)> {
    let ops = history.ops.iter().filter(|op| op.key == key);
    let kept = ops.filter_map(|op| match (&op.asked, &op.reply) {
        (Asked::Acquire(ask), Reply::Lost | Reply::Error(_)) => {
            let wait_ms = match ask.wait {
                Wait::Block(ms) | Wait::Queue(ms) => ms,
                // It no longer listens.
                Wait::No | Wait::Tell { .. } => 0,
            };
            Some((op, ask.lease_ms + wait_ms))
        }
        (Asked::Acquire(ask), Reply::Nil) => match ask.wait {
            Wait::Queue(ms) => Some((op, ms)),
            _ => None,
        },
        _ => None,
    });
    let kept = kept.map(|(op, ms)| (op.sent_ns, op.received_ns + ns(ms)));
    kept.collect()
}

fn stood_still(history: &History, wait: &Op, from_ns: u64, to_ns: u64) -> Option<Violation> {
    let (from_ns, to_ns) = (from_ns.max(wait.sent_ns), to_ns.min(wait.received_ns));
    let idle_ns = to_ns.checked_sub(from_ns)?;
    let idle_ns = idle_ns.saturating_sub(history.outage_ns(from_ns, to_ns));
    (idle_ns > ns(history.promise.granted_within_ms)).then(|| {
        let text = format!("{} waited {:.0} ms for a free lock", wait.owner, ms(idle_ns));
        let (from_ns, to_ns) = (from_ns, wait.received_ns);
        Violation { checker: "progress", text, key: wait.key.clone(), from_ns, to_ns }
    })
}
