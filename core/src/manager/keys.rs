//! Keys that were changed or removed by something other than a request.

use smallvec::SmallVec;

use super::{At, Manager, Mark};
use crate::volatile::slow::{Ended, Outcome};
use crate::{Event, Lock, Now, Volatile};

/// A removed lock, and what to publish about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its database.
    pub db: i32,
    /// Its key.
    pub key: SmallVec<[u8; NAME_BYTES]>,
    /// The event to publish.
    pub event: Event,
    /// The number of its holds.
    pub holds: usize,
    /// How long they lasted, in microseconds, for a limited number of them.
    pub held_us: SmallVec<[u64; 1]>,
    /// The holds to be recorded in the slow log, and how long they lasted until their deadlines.
    slow: Vec<(Ended, u64)>,
}

/// The length of a name that needs no allocation of its own: a million locks may end at once.
const NAME_BYTES: usize = 40;

/// How many holds of a removed lock have their duration recorded; more would take too long.
const TOLD_MAX: usize = 256;

/// How far a replica's clock may be behind its primary's (minus the time that a deletion takes to
/// arrive) so that the replica still recognizes an expired lock, in microseconds.
const BEHIND_US: u64 = 1000;

impl Manager {
    /// A replayed effect changed the lock at a key.
    pub fn was_replayed(&mut self, db: i32, key: &[u8]) {
        self.locks.mark(db, key, Mark::Changed, None);
        self.observers.mark(db, key, false);
    }

    /// Whether the caller must report new keys ([`Manager::key_came`]): a connection has been
    /// blocked at a free name, where a value may arrive.
    pub fn expects_keys(&self) -> bool {
        self.expects_keys
    }

    /// A key was created, of whatever type. True if a connection is blocked there or a group waits
    /// there, which may lose this lock and then gives up its turns at others. The owner of a ticket
    /// asks again, so it need not be notified.
    pub fn key_came(&mut self, db: i32, key: &[u8]) -> bool {
        self.observers.mark(db, key, false);
        let is_awaited = (self.locks.totals().waiting() > 0 || self.groups.waiting_count() > 0)
            && self.volatile(db, key).is_some_and(|volatile| volatile.queue.has_blocked());
        if is_awaited {
            self.locks.mark(db, key, Mark::Changed, None);
        }
        is_awaited || self.observers.has(db, key)
    }

    /// A lock is removed from its key; the server reports the reason afterward, or not at all. On a
    /// replica, only the deletion arrives, after a decision by the primary's clock: a lock whose
    /// leases have expired then counts as expired, even if the replica's clock is slightly behind.
    pub fn key_left(&mut self, at: At<'_>, lock: &Lock) {
        if self.is_loading {
            return;
        }
        let now = Now::from_us(at.now.us().saturating_add(BEHIND_US));
        let is_over = !self.is_primary && lock.mode_at(now).is_none();
        let event = if is_over { Event::Expired } else { Event::Removed };
        let (db, key) = (at.db, at.key.into());
        let (mut held_us, mut slow) = (SmallVec::new(), Vec::new());
        for (owner, mode, hold) in lock.holds().take(TOLD_MAX) {
            held_us.push(at.now.us().saturating_sub(hold.token.get()));
            let ms = hold.token.age_ms(at.now);
            let until_deadline_ms = hold.token.age_ms(Now::from_ms(hold.deadline.get()));
            let over =
                self.slow.hold(owner, mode, ms, Outcome::Removed).filter(|_| self.is_primary);
            slow.extend(over.map(|over| (over, until_deadline_ms)));
        }
        self.expiries.remove(at.db, at.key);
        self.removed.push(Removed { db, key, event, holds: lock.hold_count(), held_us, slow });
        self.locks.mark(at.db, at.key, Mark::Changed, Some(at.now.ms()));
        self.observers.mark(at.db, at.key, false);
        if self.locks.get(at.db, at.key).is_some_and(Volatile::knows_of_holds) {
            let (free, slow) = (Lock::default(), self.slow);
            let (lost, wakes, over) = self.locks.change_keeping_alarm(at.db, at.key, |volatile| {
                volatile.unsent.key_left();
                let lost = free.lost_sessions(volatile, at.now);
                let wakes = free.lost_grants(volatile, at.now);
                (lost, wakes, volatile.drain_ended(slow, at.now))
            });
            self.log_slow(at, over);
            self.post(wakes);
            self.lose(lost, at.now);
        }
    }

    /// The server reports why it just removed a key, of whatever type.
    pub fn key_lost(&mut self, db: i32, key: &[u8], is_evicted: bool) {
        let newest =
            self.removed.last_mut().filter(|gone| gone.db == db && gone.key.as_slice() == key);
        if let Some(gone) = newest {
            gone.event = if is_evicted { Event::Evicted } else { Event::Expired };
        }
    }

    /// The key that was removed just now is in a slot that another node serves: nothing is
    /// published here.
    pub fn key_is_not_ours(&mut self, db: i32, key: &[u8]) {
        self.removed.pop_if(|gone| gone.db == db && gone.key.as_slice() == key);
    }

    /// Whether no lock was removed since the last call of [`Manager::take_removed`].
    pub fn is_quiet(&self) -> bool {
        self.removed.is_empty()
    }

    /// The locks removed since the last call.
    pub fn take_removed(&mut self, now: Now) -> Vec<Removed> {
        let mut removed = std::mem::take(&mut self.removed);
        for gone in &mut removed {
            let is_expired = gone.event == Event::Expired;
            let over = std::mem::take(&mut gone.slow).into_iter().map(|(over, ms)| {
                if is_expired { Ended { outcome: Outcome::Expired, ms, ..over } } else { over }
            });
            self.log_slow(At { db: gone.db, key: &gone.key, now }, over);
        }
        removed
    }
}
