//! Mutual exclusion: no WRITE hold is certain while another owner's hold is.

use std::collections::HashMap;

use super::{Hold, Violation};
use crate::history::{History, Mode};

pub fn check(_: &History, holds: &[Hold]) -> Vec<Violation> {
    overlaps(holds).into_iter().map(|(first, second)| both(first, second)).collect()
}

/// Compares each hold with the current one that lasts longest, among those that were certain before
/// it.
pub fn overlaps(holds: &[Hold]) -> Vec<(&Hold, &Hold)> {
    let mut by_key: HashMap<&str, Vec<&Hold>> = HashMap::new();
    for hold in holds.iter().filter(|hold| hold.until_ns > hold.from_ns) {
        by_key.entry(&hold.key).or_default().push(hold);
    }
    let mut found = Vec::new();
    for mut holds in by_key.into_values() {
        holds.sort_by_key(|hold| hold.from_ns);
        let (mut writers, mut all) = (Latest::default(), Latest::default());
        for hold in holds {
            let before = if hold.mode == Mode::Write { &all } else { &writers };
            if let Some(other) = before.of_another(&hold.owner)
                && other.until_ns > hold.from_ns
            {
                found.push((other, hold));
            }
            all.add(hold);
            if hold.mode == Mode::Write {
                writers.add(hold);
            }
        }
    }
    found
}

pub fn both(first: &Hold, second: &Hold) -> Violation {
    let text = format!(
        "{} held {:?} by token {} and {} {:?} by token {} at once",
        first.owner, first.mode, first.token, second.owner, second.mode, second.token
    );
    let (from_ns, to_ns) = (first.asked_ns, second.granted_ns);
    Violation { checker: "exclusion", text, key: second.key.clone(), from_ns, to_ns }
}

/// The hold that lasts longest, and the longest one of all other owners.
#[derive(Default)]
struct Latest<'a> {
    first: Option<&'a Hold>,
    second: Option<&'a Hold>,
}

impl<'a> Latest<'a> {
    fn of_another(&self, owner: &str) -> Option<&'a Hold> {
        self.first.filter(|hold| hold.owner != owner).or(self.second)
    }

    fn add(&mut self, hold: &'a Hold) {
        let lasts_longer = |than: Option<&Hold>| than.is_none_or(|h| h.until_ns < hold.until_ns);
        let is_of_first = self.first.is_some_and(|first| first.owner == hold.owner);
        if lasts_longer(self.first) {
            if !is_of_first {
                self.second = self.first;
            }
            self.first = Some(hold);
        } else if !is_of_first && lasts_longer(self.second) {
            self.second = Some(hold);
        }
    }
}
