//! When holds expire that are not the only hold of their lock. The server expires the key of an
//! only hold; the module has to end any other hold itself.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::{HashMap, LockId, Manager};
use crate::{EpochMs, Lock, Now};

/// The locks with several holds, by database: a database is flushed or swapped as a whole.
#[derive(Default)]
pub(super) struct Expiries(BTreeMap<i32, OfDatabase>);

/// The locks of one database, by the time at which the first of their holds expires. The recorded
/// time may be too early, because a renewal does not change it: the lock is then examined once
/// more.
#[derive(Default)]
struct OfDatabase {
    by_time: BTreeSet<(EpochMs, Rc<[u8]>)>,
    by_key: HashMap<Rc<[u8]>, EpochMs>,
}

impl Expiries {
    /// When the first of them is due, and its database.
    fn first(&self) -> Option<(EpochMs, i32)> {
        self.0.iter().filter_map(|(db, locks)| Some((locks.by_time.first()?.0, *db))).min()
    }

    /// When the first of them is due.
    pub(super) fn next(&self) -> Option<EpochMs> {
        self.first().map(|(at, _)| at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn pop_due(&mut self, now: Now) -> Option<(EpochMs, LockId)> {
        let (_, db) = self.first().filter(|(at, _)| at.is_over_at(now))?;
        let (at, key) = self.0.get(&db)?.by_time.first().cloned()?;
        self.remove(db, &key);
        Some((at, LockId { db, key }))
    }

    pub(super) fn remove(&mut self, db: i32, key: &[u8]) {
        let Some(locks) = self.0.get_mut(&db) else { return };
        if let Some((key, at)) = locks.by_key.remove_entry(key) {
            locks.by_time.remove(&(at, key));
        }
        if locks.by_key.is_empty() {
            self.0.remove(&db);
        }
    }

    fn add(&mut self, db: i32, key: &[u8], at: EpochMs) {
        let known = self.0.get(&db).and_then(|locks| locks.by_key.get(key));
        if known.is_some_and(|known| *known <= at) {
            return;
        }
        self.remove(db, key);
        let key: Rc<[u8]> = key.into();
        let locks = self.0.entry(db).or_default();
        locks.by_key.insert(key.clone(), at);
        locks.by_time.insert((at, key));
    }

    pub(super) fn flushed(&mut self, db: Option<i32>) {
        match db {
            None => self.0.clear(),
            Some(db) => drop(self.0.remove(&db)),
        }
    }

    pub(super) fn swapped(&mut self, one: i32, other: i32) {
        let (of_one, of_other) = (self.0.remove(&one), self.0.remove(&other));
        self.0.extend(of_one.map(|locks| (other, locks)));
        self.0.extend(of_other.map(|locks| (one, locks)));
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
