//! The memories of all locks, with indexes to find the next alarm, a connection's sessions and
//! those whom others wait for cheaply.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;

use smallvec::SmallVec;

use super::names::Names;
use crate::few::Few;
use crate::{ClientId, EpochMs, Memory, Now};

/// A lock's name on this server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockId {
    /// The database.
    pub db: i32,
    /// The key.
    pub key: Rc<[u8]>,
}

/// A lock's place in [`Locks`], valid while the lock has a memory.
pub(super) type Number = usize;

/// So many places are kept while no lock has a memory, because the next one is at hand.
const KEPT: usize = 1000;

/// Why to sweep a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// A waiter departed, or a deadline passed.
    Due,
    /// Something other than RLOCK may have changed the key.
    Changed,
}

struct Known {
    id: LockId,
    memory: Memory,
    alarm: Option<EpochMs>,
    /// When the first of its sessions is lost, unless it is renewed.
    session_end: Option<EpochMs>,
    /// It is in [`Locks::marked`].
    mark: Option<Mark>,
}

/// One of [`Manager::longest_queues`](super::Manager::longest_queues).
#[derive(Clone, Debug)]
pub struct LongQueue {
    /// Its lock.
    pub key: Rc<[u8]>,
    /// How many wait.
    pub len: usize,
    /// Since when the first of them waits.
    pub since: Now,
}

/// The memories of all locks that have one.
#[derive(Default)]
pub struct Locks {
    /// In boxes, so that little moves when this grows.
    known: Vec<Option<Box<Known>>>,
    /// The lock that was asked for last.
    last: Cell<Number>,
    /// Unused places in `known`.
    free: Vec<Number>,
    names: Names,
    alarms: BTreeSet<(EpochMs, Number)>,
    /// Locks by [`Known::session_end`].
    session_ends: BTreeSet<(EpochMs, Number)>,
    /// Locks to sweep soon, in the order in which they were marked, and when that was.
    marked: VecDeque<(EpochMs, Number)>,
    /// A tree, because connections that open one after another often close so, too: then most of
    /// them are next to the one before. In a hash table each would be a cache miss.
    sessions: BTreeMap<ClientId, Few<Number>>,
    /// The locks with blocked connections.
    crowded: BTreeSet<(i32, Number)>,
    totals: Totals,
    /// Scratch space for a lock without a memory; empty between uses.
    spare: Memory,
}

/// The numbers of waiters and sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocked connections.
    pub waiters: usize,
    /// Tickets.
    pub tickets: usize,
    /// Sessions, including those that begin when they are confirmed.
    pub sessions: usize,
    /// Callers whose grant waits for acknowledgements.
    pub gated: usize,
}

impl Totals {
    fn of(memory: &Memory) -> Self {
        Self {
            waiters: memory.queue.blocked_count(),
            tickets: memory.queue.ticket_count(),
            sessions: memory.session_count(),
            gated: memory.gated_count(),
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
            gated: moved(self.gated, before.gated, after.gated),
        }
    }
}

impl Locks {
    /// The numbers of waiters and sessions on this server.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// A hand-off asks for the same lock a dozen times.
    fn number(&self, db: i32, key: &[u8]) -> Option<Number> {
        let is_it = |number| {
            self.at(number).is_some_and(|known| known.id.db == db && *known.id.key == *key)
        };
        if self.free.len() == self.known.len() {
            return None;
        }
        if is_it(self.last.get()) {
            return Some(self.last.get());
        }
        let number = self.names.find(db, key, is_it)?;
        self.last.set(number);
        Some(number)
    }

    fn at(&self, number: Number) -> Option<&Known> {
        self.known.get(number)?.as_deref()
    }

    fn at_mut(&mut self, number: Number) -> Option<&mut Known> {
        self.known.get_mut(number)?.as_deref_mut()
    }

    /// The memory of a lock, if there is any.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&Memory> {
        self.number(db, key).and_then(|number| self.at(number)).map(|known| &known.memory)
    }

    /// The memory of a lock; an empty one if there is none.
    pub fn get_or_empty(&self, db: i32, key: &[u8]) -> &Memory {
        self.get(db, key).unwrap_or(&self.spare)
    }

    /// Changes the memory of a lock. `work` gets when the lock was due next, and also returns when
    /// it is due now.
    pub fn change<T>(
        &mut self,
        db: i32,
        key: &[u8],
        work: impl FnOnce(&mut Memory, Option<EpochMs>) -> (T, Option<EpochMs>),
    ) -> T {
        if let Some(number) = self.number(db, key) {
            return self.change_at(number, work);
        }
        let (result, alarm) = work(&mut self.spare, None);
        if !self.spare.is_empty() {
            let memory = std::mem::take(&mut self.spare);
            self.keep(LockId { db, key: key.into() }, memory, alarm);
        }
        result
    }

    /// The same for a known lock, without looking for its name.
    fn change_at<T>(
        &mut self,
        number: Number,
        work: impl FnOnce(&mut Memory, Option<EpochMs>) -> (T, Option<EpochMs>),
    ) -> T {
        let Some(known) = self.at_mut(number) else { return work(&mut self.spare, None).0 };
        let (db, before, previous) = (known.id.db, Totals::of(&known.memory), known.alarm);
        let (result, next) = work(&mut known.memory, previous);
        let is_over = known.memory.is_empty();
        known.alarm = next.filter(|_| !is_over);
        let (after, alarm) = (Totals::of(&known.memory), known.alarm);
        let session_end = known.memory.sessions.next_end();
        let previous_end = std::mem::replace(&mut known.session_end, session_end);
        let tied = known.memory.sessions.take_touched();
        self.totals = self.totals.moved(before, after);
        reindex(&mut self.alarms, number, previous, alarm);
        reindex(&mut self.session_ends, number, previous_end, session_end);
        if (before.waiters > 0) != (after.waiters > 0) {
            self.index_crowd(db, number, after.waiters > 0);
        }
        self.index_sessions(number, tied);
        self.forget_if_empty(number);
        result
    }

    fn keep(&mut self, id: LockId, mut memory: Memory, alarm: Option<EpochMs>) {
        let totals = Totals::of(&memory);
        self.totals = self.totals.moved(Totals::default(), totals);
        let tied = memory.sessions.take_touched();
        let number = self.free.pop().unwrap_or(self.known.len());
        if number == self.known.len() {
            self.known.push(None);
        }
        self.names.insert(id.db, &id.key, number);
        self.index_crowd(id.db, number, totals.waiters > 0);
        let session_end = memory.sessions.next_end();
        if let Some(place) = self.known.get_mut(number) {
            *place = Some(Box::new(Known { id, memory, alarm, session_end, mark: None }));
        }
        self.index_sessions(number, tied);
        reindex(&mut self.alarms, number, None, alarm);
        reindex(&mut self.session_ends, number, None, session_end);
    }

    /// A marked lock is kept until it is swept.
    fn forget_if_empty(&mut self, number: Number) {
        let Some(place) = self.known.get_mut(number) else { return };
        let Some(known) = place.take_if(|known| known.memory.is_empty() && known.mark.is_none())
        else {
            return;
        };
        self.free.push(number);
        reindex(&mut self.alarms, number, known.alarm, None);
        reindex(&mut self.session_ends, number, known.session_end, None);
        self.names.remove(known.id.db, &known.id.key, number);
        if self.free.len() == self.known.len() && self.known.len() > KEPT {
            self.known = Vec::new();
            self.free = Vec::new();
            self.names = Names::default();
        }
    }

    /// When the first session is lost, unless it is renewed.
    pub fn next_session_end(&self) -> Option<EpochMs> {
        self.session_ends.first().map(|(at, _)| *at)
    }

    /// Loses the sessions whose last known deadline has come. Their holds end with the next sweep
    /// of their locks. Returns their connections.
    pub fn end_overdue(&mut self, now: Now) -> Vec<ClientId> {
        let mut lost = Vec::new();
        while let Some((at, number)) = self.session_ends.first().copied()
            && at.is_over_at(now)
        {
            // Marked first, so that it is kept until it is swept.
            self.mark_number(number, Mark::Due, Some(now.ms()));
            lost.extend(self.change_at(number, |memory, alarm| (memory.end_overdue(now), alarm)));
        }
        lost
    }

    fn index_crowd(&mut self, db: i32, number: Number, is_crowded: bool) {
        if is_crowded {
            self.crowded.insert((db, number));
        } else {
            self.crowded.remove(&(db, number));
        }
    }

    fn index_sessions(&mut self, number: Number, touched: SmallVec<[ClientId; 1]>) {
        for client in touched {
            let is_tied =
                self.at(number).is_some_and(|known| known.memory.sessions.has_client(client));
            if is_tied {
                self.sessions.entry(client).or_default().insert(number, ());
            } else if let Some(locks) = self.sessions.get_mut(&client) {
                locks.remove(number);
                if locks.is_empty() {
                    self.sessions.remove(&client);
                }
            }
        }
    }

    /// When the next lock is due.
    pub fn next_alarm(&self) -> Option<EpochMs> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// The lock that is due first.
    pub fn first_due(&self, now: Now) -> Option<(EpochMs, LockId)> {
        let (at, number) = self.alarms.first()?;
        let known = self.at(*number).filter(|_| at.is_over_at(now))?;
        Some((*at, known.id.clone()))
    }

    /// Marks a lock to be swept soon, if it has a memory. It is due from `at` on; before everything
    /// but those marked earlier, if `None`.
    pub fn mark(&mut self, db: i32, key: &[u8], why: Mark, at: Option<EpochMs>) {
        if let Some(number) = self.number(db, key) {
            self.mark_number(number, why, at);
        }
    }

    fn mark_number(&mut self, number: Number, why: Mark, at: Option<EpochMs>) {
        let at = at.or(self.first_marked()).unwrap_or_else(|| Now::from_us(0).ms());
        let Some(known) = self.at_mut(number) else { return };
        if known.mark.is_none() {
            known.mark = Some(why);
            self.marked.push_back((at, number));
        } else {
            known.mark = known.mark.max(Some(why));
        }
    }

    /// Whether something other than RLOCK may have changed this key since the last sweep.
    pub fn is_changed(&self, db: i32, key: &[u8]) -> bool {
        if self.marked.is_empty() {
            return false;
        }
        let known = self.number(db, key).and_then(|number| self.at(number));
        known.is_some_and(|known| known.mark == Some(Mark::Changed))
    }

    /// Whether some lock is marked.
    pub fn has_marked(&self) -> bool {
        !self.marked.is_empty()
    }

    /// Since when the lock is due that was marked first.
    pub fn first_marked(&self) -> Option<EpochMs> {
        self.marked.front().map(|(at, _)| *at)
    }

    /// Takes the next marked lock, since when it is due, and the reason. Its memory is dropped if
    /// it is empty.
    pub fn take_marked(&mut self) -> Option<(LockId, EpochMs, Mark)> {
        loop {
            let (at, number) = self.marked.pop_front()?;
            if let Some(known) = self.at_mut(number)
                && let Some(why) = known.mark.take()
            {
                let id = known.id.clone();
                self.forget_if_empty(number);
                return Some((id, at, why));
            }
        }
    }

    /// The number of places: with [`Locks::in_place`], an iteration over all locks that can pause.
    pub fn places(&self) -> usize {
        self.known.len()
    }

    /// The lock in this place.
    pub fn in_place(&self, place: usize) -> Option<LockId> {
        self.at(place).map(|known| known.id.clone())
    }

    /// A connection closed: its sessions end with the next sweep of their locks.
    pub fn disconnect(&mut self, client: ClientId, now: Now) {
        let locks = self.sessions.remove(&client).unwrap_or_default();
        for number in locks.keys() {
            // Marked first, so that it is kept until it is swept.
            self.mark_number(number, Mark::Due, Some(now.ms()));
            self.change_at(number, |memory, alarm| (memory.disconnect(client), alarm));
        }
    }

    /// Changes the memory of a lock without changing its alarm.
    pub fn change_beside<T>(
        &mut self,
        db: i32,
        key: &[u8],
        work: impl FnOnce(&mut Memory) -> T,
    ) -> T {
        self.change(db, key, |memory, alarm| (work(memory), alarm))
    }

    /// Changes the memory of a lock after acknowledgements, without opening the lock.
    pub fn change_acks<T>(&mut self, id: &LockId, work: impl FnOnce(&mut Memory) -> T) -> T {
        self.change(id.db, &id.key, |memory, before| {
            let result = work(memory);
            // Only for the head of the queue does the lock itself say when to sweep.
            let before = before.filter(|_| !memory.queue.is_empty());
            (result, [before, memory.next_alarm()].into_iter().flatten().min())
        })
    }

    /// The connections with sessions in this database, or in all if `None`, in an order that is the
    /// same on every machine, because waiters are served in it.
    pub fn tied_in(&self, db: Option<i32>) -> Vec<ClientId> {
        let is_there = |number: Number| {
            self.at(number).is_some_and(|known| db.is_none_or(|db| db == known.id.db))
        };
        let tied = self.sessions.iter().filter(|(_, locks)| locks.keys().any(is_there));
        tied.map(|(client, _)| *client).collect()
    }

    /// The locks of a database with blocked connections; `None` if there are more than `most`.
    pub fn crowded(&self, db: i32, most: usize) -> Option<Vec<LockId>> {
        let all = self.crowded.range((db, 0)..=(db, Number::MAX));
        let some: Vec<LockId> = all
            .take(most.saturating_add(1))
            .filter_map(|(_, number)| self.in_place(*number))
            .collect();
        (some.len() <= most).then_some(some)
    }

    /// So many of the longest queues of a database, longest first; of equally long ones any, by
    /// their keys. Looks at the length of each queue, and at nothing else of most.
    pub fn longest(&self, db: i32, most: usize) -> Vec<LongQueue> {
        let mut longest = BinaryHeap::new();
        for (number, known) in self.known.iter().enumerate() {
            let Some(known) = known.as_ref().filter(|known| known.id.db == db) else { continue };
            let len = known.memory.queue.len();
            let least = longest.peek().filter(|_| longest.len() >= most);
            if len > least.map_or(0, |Reverse((least, _))| *least) {
                longest.push(Reverse((len, number)));
                if longest.len() > most {
                    longest.pop();
                }
            }
        }
        let shown = longest.into_iter().filter_map(|Reverse((len, number))| {
            let known = self.at(number)?;
            let (head, _) = known.memory.queue.iter().next()?;
            Some(LongQueue { key: known.id.key.clone(), len, since: head.since })
        });
        let mut shown: Vec<LongQueue> = shown.collect();
        shown.sort_unstable_by(|a, b| b.len.cmp(&a.len).then_with(|| a.key.cmp(&b.key)));
        shown
    }

    /// Drops one memory, so that many can be dropped in portions. False if there is none.
    pub fn drop_one(&mut self) -> bool {
        self.alarms.pop_first();
        self.session_ends.pop_first();
        self.known.pop().is_some()
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold, for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut totals = Totals::default();
        let [mut alarms, mut ends] = [BTreeSet::new(), BTreeSet::new()];
        let mut crowded = BTreeSet::new();
        let mut marked = BTreeSet::new();
        let mut sessions: BTreeMap<ClientId, Few<Number>> = BTreeMap::new();
        for (number, known) in self.known.iter().enumerate() {
            let Some(Known { id, memory, alarm, mark, .. }) = known.as_deref() else {
                if !self.free.contains(&number) {
                    return Err(format!("place {number} is neither used nor free"));
                }
                continue;
            };
            if self.number(id.db, &id.key) != Some(number) {
                return Err(format!("{id:?} is not found at {number}"));
            }
            if memory.is_empty() && mark.is_none() {
                return Err(format!("nothing is remembered of {id:?}"));
            }
            memory.queue.check().map_err(|what| format!("{what}, at {id:?}"))?;
            totals = totals.moved(Totals::default(), Totals::of(memory));
            alarms.extend(alarm.map(|alarm| (alarm, number)));
            ends.extend(memory.sessions.next_end().map(|end| (end, number)));
            marked.extend(mark.map(|_| number));
            crowded.extend((memory.queue.blocked_count() > 0).then_some((id.db, number)));
            for client in memory.sessions.clients() {
                sessions.entry(client).or_default().insert(number, ());
            }
        }
        let queued: BTreeSet<Number> = self.marked.iter().map(|(_, number)| *number).collect();
        let agree = [
            ("totals", totals == self.totals),
            ("alarms", alarms == self.alarms && ends == self.session_ends),
            ("crowded", crowded == self.crowded),
            ("sessions", sessions == self.sessions),
            ("marked", marked.iter().all(|number| queued.contains(number))),
            ("names", self.names.len() == self.known.iter().flatten().count()),
            ("spare", self.spare.is_empty()),
        ];
        match agree.into_iter().find(|(_, agrees)| !agrees) {
            Some((what, _)) => Err(format!("{what} disagree with what is remembered")),
            None => Ok(()),
        }
    }
}

/// Moves a lock in an index by time.
fn reindex(
    index: &mut BTreeSet<(EpochMs, Number)>,
    number: Number,
    before: Option<EpochMs>,
    after: Option<EpochMs>,
) {
    if before != after {
        before.map(|before| index.remove(&(before, number)));
        after.map(|after| index.insert((after, number)));
    }
}
