//! While a primary that was cut off has a successor, both may grant the same lock, for as long as
//! the old one continues and one lease more. After that, and before the cut, no two owners hold at
//! once, whatever `WAIT` had confirmed.

use std::collections::HashMap;

use super::exclusion::{both, overlaps};
use super::{Hold, Violation, holds};
use crate::clock::ns;
use crate::history::{Asked, Event, History, Mark, Promise, Reply};

pub fn check(history: &History, _: &[Hold]) -> Vec<Violation> {
    let promise = &history.promise;
    let cuts: Vec<&Event> = history.events.iter().filter(|event| event.mark == Mark::Cut).collect();
    if cuts.is_empty() {
        return Vec::new();
    }
    let leases = longest_leases(history);
    let claims = claims(history);
    let found = overlaps(&claims).into_iter().filter(|(first, second)| {
        let lease_ms = leases.get(second.key.as_str()).copied().unwrap_or_default();
        let until_ns = first.until_ns.min(second.until_ns);
        let is_excused = cuts.iter().any(|cut| {
            let excused_ns = cut.to_ns + ns(promise.goes_on_ms + lease_ms);
            cut.from_ns <= second.from_ns && until_ns <= excused_ns
        });
        !is_excused
    });
    found.map(|(first, second)| Violation { checker: "split", ..both(first, second) }).collect()
}

/// By key.
fn longest_leases(history: &History) -> HashMap<&str, u64> {
    let mut leases = HashMap::new();
    for op in &history.ops {
        if let Asked::Acquire(ask) = &op.asked {
            let longest: &mut u64 = leases.entry(op.key.as_str()).or_default();
            *longest = ask.lease_ms.max(*longest);
        }
    }
    leases
}

/// What each owner that does not send `WAIT` must believe: it holds until its lease expires, or
/// with a session as long as its connection is answered.
fn claims(history: &History) -> Vec<Hold> {
    let promise = Promise { holds_at_once: true, ..history.promise };
    let events = history.events.iter().filter(|event| event.mark != Mark::Failover).cloned();
    let history = History { ops: history.ops.clone(), events: events.collect(), promise };
    let mut answered: HashMap<(u32, u32), u64> = HashMap::new();
    for op in &history.ops {
        if !matches!(op.reply, Reply::Lost | Reply::Never) {
            answered.insert((op.actor, op.link), op.sent_ns);
        }
    }
    let mut claims = holds(&history);
    for claim in claims.iter_mut().filter(|claim| claim.session.is_some()) {
        let grant = &history.ops[claim.ops[0]];
        let answered_ns = answered.get(&(grant.actor, grant.link)).copied().unwrap_or_default();
        claim.until_ns = claim.until_ns.min(answered_ns);
    }
    claims
}
