//! Limits: never are more READ holds certain at once than their limit allows.

use std::collections::{BTreeSet, HashMap};

use super::{Hold, Violation};
use crate::history::{Asked, History};

/// The most holds that were certain at a time, and those that were certain at all.
pub fn most_at_once(holds: &[Hold]) -> (usize, usize) {
    let mut certain: Vec<&Hold> =
        holds.iter().filter(|hold| hold.until_ns > hold.from_ns).collect();
    certain.sort_by_key(|hold| hold.from_ns);
    let (mut inside, mut most) = (BTreeSet::new(), 0);
    for hold in &certain {
        leave(&mut inside, hold.from_ns);
        inside.insert((hold.until_ns, hold.token));
        most = most.max(inside.len());
    }
    (most, certain.len())
}

/// Removes those that are no longer certain.
fn leave(inside: &mut BTreeSet<(u64, i64)>, at_ns: u64) {
    while inside.first().is_some_and(|(until_ns, _)| *until_ns <= at_ns) {
        inside.pop_first();
    }
}

pub fn check(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let mut by_key: HashMap<&str, (usize, Vec<&Hold>)> = HashMap::new();
    for hold in holds.iter().filter(|hold| hold.until_ns > hold.from_ns) {
        let Asked::Acquire(ask) = &history.ops[hold.ops[0]].asked else { continue };
        let Some(limit) = ask.limit else { continue };
        let (_, holds) = by_key.entry(&hold.key).or_insert((limit as usize, Vec::new()));
        holds.push(hold);
    }
    by_key.into_iter().filter_map(|(key, (limit, holds))| too_many(key, limit, holds)).collect()
}

/// The first moment at which more hold than allowed.
fn too_many(key: &str, limit: usize, mut holds: Vec<&Hold>) -> Option<Violation> {
    holds.sort_by_key(|hold| hold.from_ns);
    let mut inside: BTreeSet<(u64, i64)> = BTreeSet::new();
    for hold in holds {
        leave(&mut inside, hold.from_ns);
        inside.insert((hold.until_ns, hold.token));
        if inside.len() > limit {
            let tokens: Vec<i64> = inside.iter().map(|(_, token)| *token).collect();
            let text = format!("{} hold one of {limit} permits: tokens {tokens:?}", inside.len());
            let (from_ns, to_ns) = (hold.asked_ns, hold.granted_ns);
            return Some(Violation { checker: "permits", text, key: key.into(), from_ns, to_ns });
        }
    }
    None
}
