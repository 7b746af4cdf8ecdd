//! A request for several locks that waits.

use std::num::NonZeroU32;
use std::rc::Rc;

use super::LockId;
use crate::grammar::Want;
use crate::volatile::owner_names::OwnerNames;
use crate::volatile::queue::Arrival;
use crate::{Claim, ClientId, Entry, EpochMs, Kind, LeaseMs, Mode, Now, Owner, WaiterId};

/// One of the locks for which a group waits.
#[derive(Clone, Debug)]
pub struct GroupKey {
    /// The key.
    pub key: Rc<[u8]>,
    /// The mode.
    pub mode: Mode,
    /// READ only while fewer than this many other owners hold READ.
    pub limit: Option<NonZeroU32>,
}

/// A request for several locks that waits.
#[derive(Clone, Debug)]
pub struct Group {
    /// The database.
    pub db: i32,
    /// The locks, in key order.
    pub keys: Rc<[GroupKey]>,
    /// The owner.
    pub owner: Owner,
    /// The lease of all holds, counted from the grant.
    pub lease: LeaseMs,
    /// The blocked connection.
    pub client: Option<ClientId>,
    /// The connection to which to tie the holds.
    pub session: Option<ClientId>,
    /// How many replicas must acknowledge the grant.
    pub acks: u8,
    /// When it began to wait.
    pub since: Now,
    /// When the wait ends; `None` is never.
    pub ends_at: Option<EpochMs>,
    /// Nobody is blocked: the reply will be a message.
    pub is_told: bool,
    pub(super) arrival: u64,
    /// How many locks the group has reached. It stands in line at the next lock, or is about to.
    pub(super) reached: usize,
    /// At which of those it has its turn: one bit for each lock.
    pub(super) turns: u128,
    /// Whether it stands in line at the next lock.
    pub(super) stands: bool,
    /// The lock at which it stood last.
    pub(super) waited_at: Option<usize>,
    pub(super) stage: Stage,
    pub(super) in_the_way: Option<Rc<OwnerNames>>,
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
    /// A group reaches the lock; its arrival has this number.
    Come(u64, WaiterId),
    /// The lock's queue is served.
    Serve,
    /// This group stands in line at the lock again, because it did not get its turn back.
    Back(WaiterId),
}

impl Group {
    /// A group that has not reached any lock.
    pub fn new(db: i32, keys: Rc<[GroupKey]>, owner: Owner, lease: LeaseMs, since: Now) -> Self {
        Self {
            db,
            keys,
            owner,
            lease,
            client: None,
            session: None,
            acks: 0,
            since,
            ends_at: None,
            is_told: false,
            arrival: 0,
            reached: 0,
            turns: 0,
            stands: false,
            waited_at: None,
            stage: Stage::Waits,
            in_the_way: None,
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
        self.keys.iter().map(|key| self.id(key)).collect()
    }

    /// The lock at which it stands, or to which it comes next; `None` if it has reached all.
    pub fn next_key(&self) -> Option<&GroupKey> {
        self.keys.get(self.reached)
    }

    /// The locks that it has not reached yet.
    pub fn unreached(&self) -> &[GroupKey] {
        self.keys.get(self.reached..).unwrap_or_default()
    }

    /// How it waits for the next lock.
    pub fn entry(&self, waiter: WaiterId) -> Option<Entry> {
        let GroupKey { mode, limit, .. } = *self.next_key()?;
        let (owner, kind) = (self.owner.clone(), Kind::Group(waiter));
        let (client, arrival) = (self.client, Arrival::new(self.arrival));
        let plain = Entry::new(owner, mode, self.lease, kind, self.since);
        Some(Entry { limit, client, arrival, ..plain })
    }

    /// Whether a request for these locks, in key order, asks for the same.
    pub fn wants(&self, wants: &[Want<'_>]) -> bool {
        let is_same = |(own, want): (&GroupKey, &Want<'_>)| {
            (&*own.key, own.mode, own.limit) == (want.key, want.mode, want.limit)
        };
        self.keys.len() == wants.len() && self.keys.iter().zip(wants).all(is_same)
    }

    pub(super) fn id(&self, key: &GroupKey) -> LockId {
        LockId { db: self.db, key: key.key.clone() }
    }

    /// Its claim to one of its locks.
    pub(super) fn claim<'g>(&'g self, of: &GroupKey) -> Claim<'g> {
        let owner = self.owner.as_bytes();
        Claim { owner, mode: of.mode, upgrade: false, limit: of.limit }
    }

    /// The locks at which the group has a place or may have one: up to the lock at which it stands
    /// in line.
    pub(super) fn places(&self) -> impl Iterator<Item = LockId> {
        self.keys.iter().take(self.reached.saturating_add(1)).map(|key| self.id(key))
    }

    pub(super) fn number_of(&self, key: &[u8]) -> Option<usize> {
        self.keys.binary_search_by(|own| (*own.key).cmp(key)).ok()
    }
}
