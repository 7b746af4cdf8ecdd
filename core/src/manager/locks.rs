//! The waiters and sessions of all locks, with indexes that find the next alarm, a connection's
//! sessions, and the locks that somebody waits for.

mod check;
mod totals;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use smallvec::SmallVec;
pub use totals::Totals;

use super::names::{LockIndex, Slot};
use crate::value::count::less;
use crate::value::small_map::SmallMap;
use crate::{ClientId, EpochMs, Now, Volatile};

/// A lock's name on this server.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId {
    /// The database.
    pub db: i32,
    /// The key.
    pub key: Rc<[u8]>,
}

/// This many slots are kept even while no lock has a volatile part, because the next one soon will.
const KEPT: usize = 1000;

/// The reason to sweep a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// A waiter departed, or a deadline passed.
    Due,
    /// Something other than RLOCK may have changed the key.
    Changed,
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) id: LockId,
    pub(super) volatile: Volatile,
    times: Times,
    /// The gate is shut, so no session is renewed before the next step.
    renews_later: bool,
    /// Whether and why it is in [`Locks::marked`].
    mark: Option<Mark>,
}

/// When a lock is due, as the indexes have it.
#[derive(Clone, Copy, Default)]
struct Times {
    /// For something that may let a waiter in.
    alarm: Option<EpochMs>,
    /// When the first of its sessions has to be renewed.
    renewal: Option<EpochMs>,
    /// When the first of its sessions is lost, unless it is renewed.
    session_end: Option<EpochMs>,
}

impl Known {
    fn next_renewal(&self) -> Option<EpochMs> {
        self.volatile.sessions.next_renewal().filter(|_| !self.renews_later)
    }
}

/// The volatile parts of all locks that have one.
#[derive(Default)]
pub struct Locks {
    /// In boxes, so that little is moved when the vector grows.
    pub(super) known: Vec<Option<Box<Known>>>,
    /// The lock that was looked up last.
    last: Cell<Slot>,
    /// Unused places in `known`.
    free: Vec<Slot>,
    names: LockIndex,
    /// Locks by [`Times::alarm`].
    alarms: BTreeSet<(EpochMs, Slot)>,
    /// Locks by [`Times::renewal`].
    renewals: BTreeSet<(EpochMs, Slot)>,
    /// Locks by [`Times::session_end`].
    session_ends: BTreeSet<(EpochMs, Slot)>,
    /// Locks to sweep soon, in the order in which they were marked, and when that was.
    marked: VecDeque<(EpochMs, Slot)>,
    /// A tree, because connections that were opened one after another are often closed in that
    /// order: most of them are next to the previous one then. In a hash table, each would be a
    /// cache miss.
    sessions: BTreeMap<ClientId, SmallMap<Slot>>,
    /// The locks with blocked connections.
    with_waiters: BTreeSet<(i32, Slot)>,
    /// The number of locks with a queue, by database. An entry that becomes 0 is kept: otherwise, a
    /// hand-off would free memory and allocate it again.
    queued: BTreeMap<i32, usize>,
    totals: Totals,
    /// Used for a lock without a volatile part; empty between uses.
    scratch: Box<Known>,
    /// The next [`Locks::scratch`]. If a lock always has a single waiter, each hand-off ends a
    /// volatile part, and the next one reuses its memory.
    spare: Option<Box<Known>>,
}

impl Locks {
    /// The numbers of waiters and sessions on this server.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// How many locks of each database have a queue; databases without queues are left out.
    pub fn queues(&self) -> impl Iterator<Item = (i32, usize)> {
        self.queued.iter().map(|(db, count)| (*db, *count)).filter(|(_, count)| *count > 0)
    }

    /// The index of this lock, if it has a volatile part. A hand-off looks the same lock up a dozen
    /// times.
    pub(super) fn number(&self, db: i32, key: &[u8]) -> Option<Slot> {
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

    pub(super) fn at(&self, number: Slot) -> Option<&Known> {
        self.known.get(number)?.as_deref()
    }

    fn at_mut(&mut self, number: Slot) -> Option<&mut Known> {
        self.known.get_mut(number)?.as_deref_mut()
    }

    /// The volatile part of a lock, if it has one.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&Volatile> {
        self.number(db, key).and_then(|number| self.at(number)).map(|known| &known.volatile)
    }

    /// The volatile part of a lock; an empty one if it has none.
    pub fn get_or_empty(&self, db: i32, key: &[u8]) -> &Volatile {
        self.get(db, key).unwrap_or(&self.scratch.volatile)
    }

    /// Changes the volatile part of a lock. `work` gets the time at which the lock was due, and
    /// also returns the time at which it is due now.
    pub fn change<T>(
        &mut self,
        db: i32,
        key: &[u8],
        work: impl FnOnce(&mut Volatile, Option<EpochMs>) -> (T, Option<EpochMs>),
    ) -> T {
        let name = || LockId { db, key: key.into() };
        match self.number(db, key) {
            Some(number) => self.change_at(number, work),
            None => self.begin(name, work),
        }
    }

    /// Like [`Locks::change`], in a step. `name` returns the lock's name, and is called only if a
    /// volatile part begins.
    pub fn change_named<T>(
        &mut self,
        db: i32,
        key: &[u8],
        name: impl FnOnce() -> LockId,
        work: impl FnOnce(&mut Volatile, Option<EpochMs>) -> (T, Option<EpochMs>),
    ) -> T {
        let Some(number) = self.number(db, key) else { return self.begin(name, work) };
        if let Some(known) = self.at_mut(number) {
            known.renews_later = false;
        }
        self.change_at(number, work)
    }

    fn begin<T>(
        &mut self,
        name: impl FnOnce() -> LockId,
        work: impl FnOnce(&mut Volatile, Option<EpochMs>) -> (T, Option<EpochMs>),
    ) -> T {
        let (result, alarm) = work(&mut self.scratch.volatile, None);
        if !self.scratch.volatile.is_empty() {
            self.keep(name(), alarm);
        }
        result
    }

    /// Like `begin`, for a lock whose index is known.
    fn change_at<T>(
        &mut self,
        number: Slot,
        work: impl FnOnce(&mut Volatile, Option<EpochMs>) -> (T, Option<EpochMs>),
    ) -> T {
        let Some(known) = self.at_mut(number) else {
            return work(&mut self.scratch.volatile, None).0;
        };
        let before = Totals::of(&known.volatile);
        let (result, alarm) = work(&mut known.volatile, known.times.alarm);
        self.index(number, before, alarm);
        result
    }

    /// Indexes a lock after a change. `before` are its totals before that.
    fn index(&mut self, number: Slot, before: Totals, alarm: Option<EpochMs>) {
        let Some(known) = self.at_mut(number) else { return };
        let (db, is_over) = (known.id.db, known.volatile.is_empty());
        let (after, tied) = (Totals::of(&known.volatile), known.volatile.sessions.take_touched());
        let times = Times {
            alarm: alarm.filter(|_| !is_over),
            renewal: known.next_renewal(),
            session_end: known.volatile.sessions.next_end(),
        };
        let previous = std::mem::replace(&mut known.times, times);
        self.totals = self.totals.moved(before, after);
        self.reindex(number, previous, times);
        if before.has_blocked() != after.has_blocked() {
            self.index_waiters(db, number, after.has_blocked());
        }
        self.count_queue(db, before, after);
        self.index_sessions(number, tied);
        if is_over {
            self.forget_if_empty(number);
        }
    }

    fn reindex(&mut self, number: Slot, before: Times, after: Times) {
        move_in(&mut self.alarms, number, before.alarm, after.alarm);
        move_in(&mut self.renewals, number, before.renewal, after.renewal);
        move_in(&mut self.session_ends, number, before.session_end, after.session_end);
    }

    /// Turns the contents of the scratch space into the volatile part of this lock.
    fn keep(&mut self, id: LockId, alarm: Option<EpochMs>) {
        let next = self.spare.take().unwrap_or_default();
        let mut known = std::mem::replace(&mut self.scratch, next);
        known.id = id;
        let number = self.free.pop().unwrap_or(self.known.len());
        if number == self.known.len() {
            self.known.push(None);
        }
        self.names.insert(known.id.db, &known.id.key, number);
        if let Some(place) = self.known.get_mut(number) {
            *place = Some(known);
        }
        self.index(number, Totals::default(), alarm);
    }

    /// A marked lock is kept until it is swept.
    fn forget_if_empty(&mut self, number: Slot) {
        let Some(place) = self.known.get_mut(number) else { return };
        let Some(mut known) =
            place.take_if(|known| known.volatile.is_empty() && known.mark.is_none())
        else {
            return;
        };
        self.free.push(number);
        self.reindex(number, std::mem::take(&mut known.times), Times::default());
        self.names.remove(known.id.db, &known.id.key, number);
        known.volatile.reset();
        known.renews_later = false;
        self.spare = Some(known);
        if self.free.len() == self.known.len() && self.known.len() > KEPT {
            self.known = Vec::new();
            self.free = Vec::new();
            self.names = LockIndex::default();
        }
    }

    /// The gate is shut: the sessions of this lock are renewed by its next step.
    pub fn renew_with_next_step(&mut self, id: &LockId) {
        let Some(number) = self.number(id.db, &id.key) else { return };
        let Some(known) = self.at_mut(number) else { return };
        known.renews_later = true;
        let renewal = known.times.renewal.take();
        move_in(&mut self.renewals, number, renewal, None);
    }

    /// When the first session is lost, unless it is renewed.
    pub fn next_session_end(&self) -> Option<EpochMs> {
        self.session_ends.first().map(|(at, _)| *at)
    }

    /// Ends the sessions whose last known deadline has passed as lost. Their holds end with the
    /// next sweep of their locks. Returns their connections.
    pub fn end_overdue(&mut self, now: Now) -> Vec<ClientId> {
        let mut lost = Vec::new();
        while let Some((at, number)) = self.session_ends.first().copied()
            && at.is_over_at(now)
        {
            // Marked first, so that it is kept until it is swept.
            self.mark_number(number, Mark::Due, Some(now.ms()));
            lost.extend(
                self.change_at(number, |volatile, alarm| (volatile.end_overdue(now), alarm)),
            );
        }
        lost
    }

    fn index_waiters(&mut self, db: i32, number: Slot, is_crowded: bool) {
        if is_crowded {
            self.with_waiters.insert((db, number));
        } else {
            self.with_waiters.remove(&(db, number));
        }
    }

    #[inline]
    fn count_queue(&mut self, db: i32, before: Totals, after: Totals) {
        if before.has_queue() == after.has_queue() {
            return;
        }
        let count = self.queued.entry(db).or_default();
        *count = if after.has_queue() { count.saturating_add(1) } else { less(*count, 1) };
    }

    fn index_sessions(&mut self, number: Slot, touched: SmallVec<[ClientId; 1]>) {
        for client in touched {
            let is_tied =
                self.at(number).is_some_and(|known| known.volatile.sessions.has_client(client));
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
        [self.next_to_end(), self.renewals.first().map(|(at, _)| *at)].into_iter().flatten().min()
    }

    /// The same, without the renewals of sessions.
    pub fn next_to_end(&self) -> Option<EpochMs> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// The lock that has been due for longest, without regard to the renewals of sessions.
    pub fn first_due(&self, now: Now) -> Option<(EpochMs, LockId)> {
        self.first_of(&self.alarms, now)
    }

    /// The lock with the session that has to be renewed first.
    pub fn first_renewal(&self, now: Now) -> Option<(EpochMs, LockId)> {
        self.first_of(&self.renewals, now)
    }

    fn first_of(&self, index: &BTreeSet<(EpochMs, Slot)>, now: Now) -> Option<(EpochMs, LockId)> {
        let (at, number) = index.first()?;
        let known = self.at(*number).filter(|_| at.is_over_at(now))?;
        Some((*at, known.id.clone()))
    }

    /// Marks a lock to be swept soon, if it has a volatile part. It counts as due since `at`; if
    /// `None`, it is swept before everything except locks marked earlier.
    pub fn mark(&mut self, db: i32, key: &[u8], why: Mark, at: Option<EpochMs>) {
        if let Some(number) = self.number(db, key) {
            self.mark_number(number, why, at);
        }
    }

    fn mark_number(&mut self, number: Slot, why: Mark, at: Option<EpochMs>) {
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

    /// Since when the first marked lock is due.
    pub fn first_marked(&self) -> Option<EpochMs> {
        self.marked.front().map(|(at, _)| *at)
    }

    /// Takes the next marked lock, with the time since which it is due, and the reason. Its
    /// volatile part is dropped if it is empty.
    pub fn take_marked(&mut self) -> Option<(LockId, EpochMs, Mark)> {
        let (at, number) = self.marked.pop_front()?;
        let known = self.at_mut(number)?;
        let (id, why) = (known.id.clone(), known.mark.take()?);
        self.forget_if_empty(number);
        Some((id, at, why))
    }

    /// The number of slots: with [`Locks::in_place`], it allows an iteration over all locks that
    /// can pause.
    pub fn places(&self) -> usize {
        self.known.len()
    }

    /// The lock in this slot.
    pub fn in_place(&self, place: usize) -> Option<LockId> {
        self.at(place).map(|known| known.id.clone())
    }

    /// A connection closed: its sessions end with the next sweep of their locks.
    pub fn disconnect(&mut self, client: ClientId, now: Now) {
        let locks = self.sessions.remove(&client).unwrap_or_default();
        for number in locks.keys() {
            // Marked first, so that it is kept until it is swept.
            self.mark_number(number, Mark::Due, Some(now.ms()));
            self.change_at(number, |volatile, alarm| (volatile.disconnect(client), alarm));
        }
    }

    /// Changes the volatile part of a lock without changing its alarm.
    pub fn change_keeping_alarm<T>(
        &mut self,
        db: i32,
        key: &[u8],
        work: impl FnOnce(&mut Volatile) -> T,
    ) -> T {
        self.change(db, key, |volatile, alarm| (work(volatile), alarm))
    }

    /// Changes the volatile part of a lock after acknowledgments, without opening the lock.
    pub fn change_acks<T>(&mut self, id: &LockId, work: impl FnOnce(&mut Volatile) -> T) -> T {
        self.change(id.db, &id.key, |volatile, before| {
            let result = work(volatile);
            // The lock's own deadlines matter for the next sweep only if somebody is in the queue.
            let is_awaited = !volatile.queue.is_empty() || volatile.queue.has_covered();
            let before = before.filter(|_| is_awaited);
            // While the gate is shut, no renewal precedes a session's end.
            let session_end = volatile.sessions.next_end();
            let next = [before, volatile.next_to_end(), session_end].into_iter().flatten().min();
            (result, volatile.unfinished.or(next))
        })
    }

    /// The connections with sessions in this database, or in all if `None`, in an order that is the
    /// same on every machine, because waiters are served in that order.
    pub fn tied_in(&self, db: Option<i32>) -> Vec<ClientId> {
        let is_there = |number: Slot| {
            self.at(number).is_some_and(|known| db.is_none_or(|db| db == known.id.db))
        };
        let tied = self.sessions.iter().filter(|(_, locks)| locks.keys().any(is_there));
        tied.map(|(client, _)| *client).collect()
    }

    /// The locks of a database with blocked connections; `None` if there are more than `most`.
    pub fn with_waiters(&self, db: i32, most: usize) -> Option<Vec<LockId>> {
        let all = self.with_waiters.range((db, 0)..=(db, Slot::MAX));
        let some: Vec<LockId> = all
            .take(most.saturating_add(1))
            .filter_map(|(_, number)| self.in_place(*number))
            .collect();
        (some.len() <= most).then_some(some)
    }

    /// Drops one waiter or, once its waiters are dropped, one volatile part, so that many can be
    /// dropped in portions. False if there is none.
    pub fn drop_one(&mut self) -> bool {
        let last = self.known.last_mut().and_then(Option::as_mut);
        if last.is_some_and(|known| known.volatile.queue.remove_last().is_some()) {
            return true;
        }
        self.alarms.pop_first();
        self.renewals.pop_first();
        self.session_ends.pop_first();
        self.known.pop().is_some()
    }
}

/// Moves a lock within an index that is sorted by time.
fn move_in(
    index: &mut BTreeSet<(EpochMs, Slot)>,
    number: Slot,
    before: Option<EpochMs>,
    after: Option<EpochMs>,
) {
    if before != after {
        before.map(|before| index.remove(&(before, number)));
        after.map(|after| index.insert((after, number)));
    }
}
