//! Limits: never are more READ holds certain at once than their limit allows.

use std::collections::{BTreeSet, HashMap};

use super::{Hold, Violation};
use crate::history::{Asked, History};

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
        while inside.first().is_some_and(|(until_ns, _)| *until_ns <= hold.from_ns) {
            inside.pop_first();
        }
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
