//! What this primary remembers of locks beside their values, lock by lock, with the indexes that
//! make finding the next alarm, a connection's sessions and an owner's waits cheap.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use libc::c_int;
use rlock_core::{ClientId, EpochMs, Memory, Now, Owner, WaiterId};

/// A lock's name on this server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockId {
    /// The database.
    pub db: c_int,
    /// The key.
    pub key: Rc<[u8]>,
}

/// Why a lock is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// Somebody who waited left.
    Left,
    /// Something outside of RLOCK may have happened to the key.
    Changed,
}

#[derive(Default)]
struct Known {
    memory: Memory,
    alarm: Option<EpochMs>,
}

/// The memories of all locks that there is something to remember of.
#[derive(Default)]
pub struct Memories {
    dbs: BTreeMap<c_int, HashMap<Rc<[u8]>, Known>>,
    alarms: BTreeSet<(EpochMs, LockId)>,
    /// To be looked at soon.
    marked: BTreeMap<LockId, Mark>,
    sessions: HashMap<ClientId, BTreeSet<LockId>>,
    /// Where connections are parked.
    crowded: BTreeSet<LockId>,
    /// The waits of parked connections, by a hash of their owner.
    waits: BTreeMap<(c_int, u64, WaiterId), (Owner, LockId)>,
    /// Tickets, blocked connections, tied holds.
    totals: Totals,
    /// For a lock that there is nothing to remember of; empty in between.
    spare: Memory,
}

/// How many wait, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocked connections.
    pub waiters: usize,
    /// Tickets.
    pub tickets: usize,
    /// Holds tied to a connection.
    pub sessions: usize,
}

impl Totals {
    fn of(memory: &Memory) -> Self {
        Self {
            waiters: memory.queue.blocked_count(),
            tickets: memory.queue.ticket_count(),
            sessions: memory.sessions.len(),
        }
    }

    fn moved(self, before: Self, after: Self) -> Self {
        let moved = |total: usize, before: usize, after: usize| {
            total.saturating_sub(before).saturating_add(after)
        };
        Self {
            waiters: moved(self.waiters, before.waiters, after.waiters),
            tickets: moved(self.tickets, before.tickets, after.tickets),
            sessions: moved(self.sessions, before.sessions, after.sessions),
        }
    }
}

impl Memories {
    /// There is nothing to remember of any lock.
    pub fn is_empty(&self) -> bool {
        self.dbs.is_empty()
    }

    /// How many wait on this server, and how.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What is remembered of a lock, to look at.
    pub fn get(&self, db: c_int, key: &[u8]) -> Option<&Memory> {
        self.dbs.get(&db)?.get(key).map(|known| &known.memory)
    }

    /// Changes what is remembered of a lock. `work` also says when something happens to it by
    /// itself next.
    pub fn change<T>(
        &mut self,
        db: c_int,
        key: &[u8],
        work: impl FnOnce(&mut Memory) -> (T, Option<EpochMs>),
    ) -> T {
        let known = self.dbs.get_mut(&db).and_then(|locks| locks.get_mut(key));
        let Some(known) = known else {
            let (result, alarm) = work(&mut self.spare);
            if !self.spare.is_empty() {
                let memory = std::mem::take(&mut self.spare);
                self.keep(LockId { db, key: key.into() }, memory, alarm);
            }
            return result;
        };
        let before = Totals::of(&known.memory);
        let (result, alarm) = work(&mut known.memory);
        let after = Totals::of(&known.memory);
        self.totals = self.totals.moved(before, after);
        let tied = known.memory.sessions.take_touched();
        let (is_over, previous) = (known.memory.is_empty(), known.alarm);
        let alarm = alarm.filter(|_| !is_over);
        known.alarm = alarm;
        let was_crowded = before.waiters > 0;
        if is_over || previous != alarm || !tied.is_empty() || was_crowded != (after.waiters > 0) {
            let lock = LockId { db, key: key.into() };
            self.index_crowd(&lock, after.waiters > 0);
            self.index_sessions(&lock, tied);
            if is_over {
                self.forget(&lock);
            }
            self.set_alarm(lock, previous, alarm);
        }
        result
    }

    fn keep(&mut self, lock: LockId, mut memory: Memory, alarm: Option<EpochMs>) {
        let totals = Totals::of(&memory);
        self.totals = self.totals.moved(Totals::default(), totals);
        self.index_crowd(&lock, totals.waiters > 0);
        let tied = memory.sessions.take_touched();
        self.dbs.entry(lock.db).or_default().insert(lock.key.clone(), Known { memory, alarm });
        self.index_sessions(&lock, tied);
        self.set_alarm(lock, None, alarm);
    }

    fn forget(&mut self, lock: &LockId) {
        if let Some(locks) = self.dbs.get_mut(&lock.db) {
            locks.remove(&lock.key);
            if locks.is_empty() {
                self.dbs.remove(&lock.db);
            }
        }
    }

    fn set_alarm(&mut self, lock: LockId, before: Option<EpochMs>, after: Option<EpochMs>) {
        if let Some(before) = before {
            self.alarms.remove(&(before, lock.clone()));
        }
        if let Some(after) = after {
            self.alarms.insert((after, lock));
        }
    }

    fn index_crowd(&mut self, lock: &LockId, is_crowded: bool) {
        if !is_crowded {
            self.crowded.remove(lock);
        } else if !self.crowded.contains(lock) {
            self.crowded.insert(lock.clone());
        }
    }

    fn index_sessions(&mut self, lock: &LockId, touched: Vec<ClientId>) {
        for client in touched {
            let is_tied = self
                .get(lock.db, &lock.key)
                .is_some_and(|memory| memory.sessions.has_client(client));
            let locks = self.sessions.entry(client).or_default();
            if is_tied {
                locks.insert(lock.clone());
            } else {
                locks.remove(lock);
            }
            if locks.is_empty() {
                self.sessions.remove(&client);
            }
        }
    }

    /// When something happens by itself next.
    pub fn next_alarm(&self) -> Option<EpochMs> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// The locks whose alarm came due.
    pub fn due(&self, now: Now) -> Vec<LockId> {
        let due = self.alarms.iter().take_while(|(at, _)| at.is_over_at(now));
        due.map(|(_, lock)| lock.clone()).collect()
    }

    /// This lock is to be looked at soon.
    pub fn mark(&mut self, lock: LockId, why: Mark) {
        let mark = self.marked.entry(lock).or_insert(why);
        *mark = why.max(*mark);
    }

    /// The key of this lock changed. True if something is remembered of it.
    pub fn mark_changed(&mut self, db: c_int, key: &[u8]) -> bool {
        let is_known = self.get(db, key).is_some();
        if is_known {
            self.mark(LockId { db, key: key.into() }, Mark::Changed);
        }
        is_known
    }

    /// Any key may have changed. True if something is remembered of any lock.
    pub fn mark_all(&mut self) -> bool {
        for (db, locks) in &self.dbs {
            let all = locks.keys().map(|key| (LockId { db: *db, key: key.clone() }, Mark::Changed));
            self.marked.extend(all);
        }
        !self.marked.is_empty()
    }

    /// Some lock is to be looked at soon.
    pub fn has_marked(&self) -> bool {
        !self.marked.is_empty()
    }

    /// The locks that were marked, and why.
    pub fn take_marked(&mut self) -> BTreeMap<LockId, Mark> {
        std::mem::take(&mut self.marked)
    }

    /// A connection ended: its sessions end when their locks are looked at next. True if it has
    /// any.
    pub fn disconnect(&mut self, client: ClientId) -> bool {
        let Some(locks) = self.sessions.remove(&client) else { return false };
        for lock in locks {
            let alarm = self.alarm_of(&lock);
            self.change(lock.db, &lock.key, |memory| (memory.disconnect(client), alarm));
            self.mark(lock, Mark::Left);
        }
        true
    }

    /// When something happens to this lock by itself next.
    pub fn alarm_of(&self, lock: &LockId) -> Option<EpochMs> {
        self.dbs.get(&lock.db)?.get(&lock.key)?.alarm
    }

    /// A parked connection has its reply.
    pub fn answered(&mut self, lock: &LockId, waiter: WaiterId) {
        if self.get(lock.db, &lock.key).is_some() {
            let alarm = self.alarm_of(lock);
            self.change(lock.db, &lock.key, |memory| (memory.answered(waiter), alarm));
        }
    }

    /// A parked connection's wait begins.
    pub fn wait_begins(&mut self, lock: &LockId, owner: &Owner, waiter: WaiterId) {
        let hash = Owner::hash_of(owner.as_bytes());
        self.waits.insert((lock.db, hash, waiter), (owner.clone(), lock.clone()));
    }

    /// A parked connection's wait is over.
    pub fn wait_ends(&mut self, db: c_int, owner: &Owner, waiter: WaiterId) {
        self.waits.remove(&(db, Owner::hash_of(owner.as_bytes()), waiter));
    }

    /// The locks of a database where connections are parked; `None` where there are more than
    /// `most`.
    pub fn crowded(&self, db: c_int, most: usize) -> Option<Vec<LockId>> {
        let first = LockId { db, key: Rc::default() };
        let all = self.crowded.range(first..).take_while(|lock| lock.db == db);
        let some: Vec<LockId> = all.take(most.saturating_add(1)).cloned().collect();
        (some.len() <= most).then_some(some)
    }

    /// The waits of this owner's parked connections.
    pub fn waits_of(&self, db: c_int, owner: &Owner) -> Vec<(WaiterId, LockId)> {
        let hash = Owner::hash_of(owner.as_bytes());
        let all = (db, hash, WaiterId::from(1))..=(db, hash, WaiterId::from(u64::MAX));
        let waits = self.waits.range(all).filter(|(_, (other, _))| other == owner);
        waits.map(|((_, _, waiter), (_, lock))| (*waiter, lock.clone())).collect()
    }

    /// The locks of a database that are remembered.
    pub fn of_db(&self, db: c_int) -> impl Iterator<Item = (&Rc<[u8]>, &Memory)> {
        self.dbs.get(&db).into_iter().flatten().map(|(key, known)| (key, &known.memory))
    }

    /// Forgets everything: this server is not a primary any more. The connections whose sessions
    /// end.
    pub fn clear(&mut self) -> Vec<ClientId> {
        std::mem::take(self).sessions.into_keys().collect()
    }
}
