//! When holds expire that are not the only hold of their lock. The server expires the key of an
//! only hold; the module has to end any other hold itself.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::{HashMap, LockId, Manager};
use crate::{EpochMs, Lock, Now};

/// The locks with several holds, by the time at which the first of these expires. The recorded time
/// may be too early, because a renewal does not change it: the lock is then examined once more.
#[derive(Default)]
pub(super) struct Expiries {
    by_time: BTreeSet<(EpochMs, LockId)>,
    by_lock: HashMap<i32, HashMap<Rc<[u8]>, EpochMs>>,
}

impl Expiries {
    /// When the first of them is due.
    pub(super) fn next(&self) -> Option<EpochMs> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    pub(super) fn pop_due(&mut self, now: Now) -> Option<(EpochMs, LockId)> {
        let (at, id) = self.by_time.first().filter(|(at, _)| at.is_over_at(now)).cloned()?;
        self.remove(id.db, &id.key);
        Some((at, id))
    }

    pub(super) fn remove(&mut self, db: i32, key: &[u8]) {
        if self.is_empty() {
            return;
        }
        let Some(locks) = self.by_lock.get_mut(&db) else { return };
        if let Some((key, at)) = locks.remove_entry(key) {
            self.by_time.remove(&(at, LockId { db, key }));
        }
        if locks.is_empty() {
            self.by_lock.remove(&db);
        }
    }

    fn add(&mut self, db: i32, key: &[u8], at: EpochMs) {
        let known = self.by_lock.get(&db).and_then(|locks| locks.get(key));
        if known.is_some_and(|known| *known <= at) {
            return;
        }
        self.remove(db, key);
        let key: Rc<[u8]> = key.into();
        self.by_lock.entry(db).or_default().insert(key.clone(), at);
        self.by_time.insert((at, LockId { db, key }));
    }

    pub(super) fn flushed(&mut self, db: Option<i32>) {
        match db {
            None => *self = Self::default(),
            Some(db) => {
                for (key, at) in self.by_lock.remove(&db).unwrap_or_default() {
                    self.by_time.remove(&(at, LockId { db, key }));
                }
            }
        }
    }

    pub(super) fn swapped(&mut self, one: i32, other: i32) {
        let [of_one, of_other] = [one, other].map(|db| {
            let locks = self.by_lock.get(&db).cloned().unwrap_or_default();
            self.flushed(Some(db));
            locks
        });
        for (db, locks) in [(one, of_other), (other, of_one)] {
            locks.into_iter().for_each(|(key, at)| self.add(db, &key, at));
        }
    }
}

impl Manager {
    /// Records the lock that is at a key now: if it has several holds, when the first of them
    /// expires. The caller reports each lock that it loads or replays; decisions record this
    /// themselves.
    pub fn is_at(&mut self, db: i32, key: &[u8], lock: &Lock) {
        if lock.hold_count() > 1
            && let Some(at) = lock.holders.earliest_deadline()
        {
            self.expiries.add(db, key, at);
        } else {
            self.expiries.remove(db, key);
        }
    }
}
