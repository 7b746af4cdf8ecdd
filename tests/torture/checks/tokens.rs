//! Fencing: a token is issued once, and is greater than every token that any reply had when it was
//! requested.

use std::collections::HashMap;

use super::{Hold, Violation};
use crate::history::History;

pub fn check(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let mut scopes: HashMap<&str, Vec<&Hold>> = HashMap::new();
    for hold in holds.iter().filter(|hold| hold.counts) {
        let scope = if history.promise.one_primary { "" } else { &*hold.key };
        scopes.entry(scope).or_default().push(hold);
    }
    scopes.into_values().flat_map(check_scope).collect()
}

fn check_scope(mut asked: Vec<&Hold>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut told = asked.clone();
    asked.sort_by_key(|hold| hold.asked_ns);
    told.sort_by_key(|hold| hold.granted_ns);
    let mut told = told.into_iter().peekable();
    let mut greatest: Option<&Hold> = None;
    let mut given: HashMap<i64, &Hold> = HashMap::new();
    for hold in asked {
        while let Some(before) = told.next_if(|before| before.granted_ns <= hold.asked_ns) {
            if greatest.is_none_or(|greatest| greatest.token < before.token) {
                greatest = Some(before);
            }
        }
        if let Some(before) = greatest.filter(|before| before.token > hold.token) {
            found.push(wrong("is smaller than the earlier", before, hold));
        }
        if let Some(before) = given.insert(hold.token, hold) {
            found.push(wrong("was given before as", before, hold));
        }
    }
    found
}

fn wrong(how: &str, before: &Hold, hold: &Hold) -> Violation {
    let text = format!(
        "token {} of {} at {} {how} {} of {} at {}",
        hold.token, hold.owner, hold.key, before.token, before.owner, before.key
    );
    let (from_ns, to_ns) = (before.asked_ns, hold.granted_ns);
    Violation { checker: "tokens", text, key: hold.key.clone(), from_ns, to_ns }
}
