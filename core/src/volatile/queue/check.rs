//! The invariants of a queue.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kind, Queue};
use crate::Mode;

impl Queue {
    /// Checks that every index agrees with the entries.
    ///
    /// # Errors
    /// The invariant that does not hold, for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut derived = Self::default();
        let mut counts: BTreeMap<_, usize> = BTreeMap::new();
        let mut tickets = BTreeSet::new();
        let (mut read_turns, mut write_turns, mut has_others) = (0_usize, 0_usize, false);
        for (place, entry) in &self.entries {
            let place = *place;
            derived.index.insert(place, entry);
            derived.by_check.extend(entry.check_at.map(|check_at| (check_at, place)));
            let count = counts.entry(place.counted_from()).or_default();
            *count = count.saturating_add(1);
            if entry.check_at.is_none() != entry.ends_at.is_none() || entry.check_at > entry.ends_at
            {
                return Err(format!("the end of a wait is not looked for in time: {entry:?}"));
            }
            if entry.kind == Kind::Ticket && !tickets.insert(entry.owner.as_bytes()) {
                return Err(format!("two tickets of one owner: {entry:?}"));
            }
            match (self.has_turn(place), entry.kind, entry.mode) {
                (true, Kind::Blocked(_) | Kind::Told(_), _) => {
                    return Err(format!("a blocked connection has a turn: {entry:?}"));
                }
                (true, _, Mode::Read) => read_turns = read_turns.saturating_add(1),
                (true, _, Mode::Write) => write_turns = write_turns.saturating_add(1),
                (false, ..) if entry.is_in_front && has_others => {
                    return Err(format!("an upgrade does not stand in front: {entry:?}"));
                }
                (false, ..) => has_others |= !entry.is_in_front,
            }
        }
        let agree = [
            ("index", derived.index == self.index),
            ("by_check", derived.by_check == self.by_check),
            (
                "counts",
                match self.counts.is_empty() {
                    true => self.entries.len() <= Self::UNCOUNTED_MAX,
                    false => counts == self.counts,
                },
            ),
            ("turns_end", !self.entries.is_empty() || self.turns_end.is_none()),
            ("turns", write_turns == 0 || write_turns == 1 && read_turns == 0),
        ];
        match agree.into_iter().find(|(_, agrees)| !agrees) {
            Some((what, _)) => Err(format!("{what} disagrees with who waits")),
            None => self.check_groups(),
        }
    }
}
