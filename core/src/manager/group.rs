//! A request for several locks that waits.

use std::rc::Rc;

use super::LockId;
use crate::grammar::Want;
use crate::volatile::queue::Arrival;
use crate::{Acquire, Entry, Kind, Parking, WaiterId};

/// A request for several locks that waits.
#[derive(Clone, Debug)]
pub struct Group {
    /// The database.
    pub db: i32,
    /// The locks, in key order.
    pub keys: Rc<[Want<Rc<[u8]>>]>,
    /// How it waits for each of them, but for the mode and the limit.
    pub entry: Entry,
    /// Nobody is blocked: the reply will be a message.
    pub is_told: bool,
    /// How many locks the group has reached. It stands in line at the next lock, or is about to.
    pub(super) reached: usize,
    /// At which of those it has its turn: one bit for each lock.
    pub(super) turns: u128,
    /// Whether it stands in line at the next lock.
    pub(super) stands: bool,
    /// The lock at which it stood last.
    pub(super) waited_at: Option<usize>,
    pub(super) stage: Stage,
}

/// How far a group has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for its locks.
    Waits,
    /// It was granted its locks, where this many holds began, or its holds were renewed, and
    /// replicas must acknowledge that before the reply.
    Pending { holds: usize },
    /// Its reply is to be sent.
    Replied,
}

/// What is to be done at one lock, in the order in which it is done there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AtLock {
    /// A group reaches the lock.
    Come(Arrival, WaiterId),
    /// The lock's queue is served.
    Serve,
    /// This group stands in line at the lock again, because it did not get its turn back.
    Back(WaiterId),
}

impl Group {
    /// A group that has not reached any lock: this caller asks for these locks.
    pub fn new(db: i32, wants: &[Want<&[u8]>], ask: &Acquire<'_>, caller: &Parking) -> Self {
        let keys = wants.iter().enumerate().map(|(number, want)| Want {
            key: want.key.into(),
            mode: want.mode,
            limit: want.limit,
            number,
        });
        Self {
            db,
            keys: keys.collect(),
            entry: ask.entry_of(Kind::Group(caller.waiter), caller),
            is_told: false,
            reached: 0,
            turns: 0,
            stands: false,
            waited_at: None,
            stage: Stage::Waits,
        }
    }

    /// Whether it waits for its locks.
    pub(super) fn waits(&self) -> bool {
        self.stage == Stage::Waits
    }

    /// Whether its reply waits for acknowledgments.
    pub(super) const fn is_pending(&self) -> bool {
        matches!(self.stage, Stage::Pending { .. })
    }

    /// Its locks.
    pub(super) fn ids(&self) -> Vec<LockId> {
        self.keys.iter().map(|want| self.id(want)).collect()
    }

    /// The lock at which it stands, or to which it comes next; `None` if it has reached all.
    pub fn next_key(&self) -> Option<&Want<Rc<[u8]>>> {
        self.keys.get(self.reached)
    }

    /// The work of coming to its next lock; `None` if it has reached all.
    pub(super) fn coming(&self, waiter: WaiterId) -> Option<(LockId, AtLock)> {
        Some((self.id(self.next_key()?), AtLock::Come(self.entry.arrival, waiter)))
    }

    /// The locks that it has not reached yet.
    pub fn unreached(&self) -> &[Want<Rc<[u8]>>] {
        self.keys.get(self.reached..).unwrap_or_default()
    }

    /// Its entry in the queue of the next lock. Only the group as a whole times out, or waits for
    /// acknowledgments.
    pub fn next_entry(&self) -> Option<Entry> {
        let Want { mode, limit, .. } = *self.next_key()?;
        let Entry { owner, lease, kind, since, client, arrival, .. } = self.entry.clone();
        Some(Entry { limit, client, arrival, ..Entry::new(owner, mode, lease, kind, since) })
    }

    /// Whether a request for these locks, in key order, asks for the same.
    pub fn wants(&self, wants: &[Want<&[u8]>]) -> bool {
        let own = self.keys.iter().map(|own| (&*own.key, own.mode, own.limit));
        own.eq(wants.iter().map(|want| (want.key, want.mode, want.limit)))
    }

    /// One of its locks.
    pub fn id(&self, want: &Want<Rc<[u8]>>) -> LockId {
        LockId { db: self.db, key: want.key.clone() }
    }

    /// Its claim to one of its locks.
    pub fn claim<'g>(&'g self, want: &Want<Rc<[u8]>>) -> Acquire<'g> {
        Acquire { mode: want.mode, limit: want.limit, ..Acquire::from(&self.entry) }
    }

    /// The locks at which the group has a place or may have one: up to the lock at which it stands
    /// in line.
    pub(super) fn places(&self) -> impl Iterator<Item = LockId> {
        self.keys.iter().take(self.reached.saturating_add(1)).map(|want| self.id(want))
    }

    pub(super) fn number_of(&self, key: &[u8]) -> Option<usize> {
        self.keys.binary_search_by(|own| (*own.key).cmp(key)).ok()
    }
}
