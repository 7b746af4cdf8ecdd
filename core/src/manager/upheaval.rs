//! What affects every lock of a server at once: databases that are emptied, swapped or reloaded,
//! and a grace period that ends earlier.

use super::{LockId, Manager, Mark};
use crate::{EpochMs, Now};

/// The locks of other databases may be many: after this many of them, one is swept needlessly, so
/// that the portion can end.
const PASSED_MAX: usize = 1000;

/// Whole databases were emptied, swapped or reloaded, so any lock may have changed; or any lock may
/// be due, because the grace period ends earlier. The iteration over the locks can pause.
#[derive(Debug)]
pub(super) struct Upheaval {
    pub(super) db: Option<i32>,
    why: Mark,
    next: usize,
    end: usize,
}

impl Upheaval {
    /// Whether the iteration has yet to reach this lock of this database. `place` is its position.
    fn comes_to(&self, db: i32, place: impl FnOnce() -> Option<usize>) -> bool {
        self.db.is_none_or(|of| of == db)
            && place().is_some_and(|place| (self.next..self.end).contains(&place))
    }
}

impl Manager {
    pub(super) fn upheaval(&mut self, db: Option<i32>) {
        self.observers.mark_all(db);
        if self.go_through(db, Mark::Changed) {
            self.acks.ask_again();
        }
    }

    /// Slots of a Cluster moved to or from this node, so any lock may have come or gone.
    pub fn slots_moved(&mut self) {
        self.upheaval(None);
    }

    /// Begins an iteration over the locks of this database, or of all. False if there are none.
    fn go_through(&mut self, db: Option<i32>, why: Mark) -> bool {
        let end = self.locks.places();
        let mut waiting = self.upheavals.iter_mut().filter(|it| it.next == 0);
        if let Some(same) = waiting.find(|it| it.db == db && it.why == why) {
            // One iteration does for both: slots, for example, move one by one.
            same.end = end;
        } else if end > 0 {
            self.upheavals.push_back(Upheaval { db, why, next: 0, end });
        }
        end > 0
    }

    /// Sets `rlock.grace-ms`. If the grace period now ends earlier, or at once, waiters are served
    /// at its new end.
    pub fn grace_is(&mut self, grace_ms: u64, now: Now) {
        let before = std::mem::replace(&mut self.grace_ms, grace_ms);
        if grace_ms < before && self.grace_of(before, now).is_some() {
            self.go_through(None, Mark::Due);
        }
        self.end_grace_of_groups(now);
    }

    /// Whether something other than RLOCK may have changed this lock since its last sweep: the lock
    /// is marked, is about to be marked, or waits for the gate.
    pub(super) fn is_unseen(&self, db: i32, key: &[u8]) -> bool {
        let mut changes = self.upheavals.iter().filter(|upheaval| upheaval.why == Mark::Changed);
        self.locks.is_changed(db, key)
            || changes.any(|upheaval| upheaval.comes_to(db, || self.locks.number(db, key)))
            || self.postponed.is_changed(db, key)
    }

    pub(super) fn next_of_upheaval(&mut self, now: Now) -> Option<(LockId, EpochMs, Mark)> {
        let mut passed: usize = 0;
        while let Some(upheaval) = self.upheavals.front_mut() {
            while upheaval.next < upheaval.end {
                let place = upheaval.next;
                upheaval.next = place.saturating_add(1);
                let Some(id) = self.locks.in_place(place) else { continue };
                if passed == PASSED_MAX || upheaval.db.is_none_or(|db| db == id.db) {
                    return Some((id, now.ms(), upheaval.why));
                }
                passed = passed.saturating_add(1);
            }
            self.upheavals.pop_front();
        }
        None
    }
}
