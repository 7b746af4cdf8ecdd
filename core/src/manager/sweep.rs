//! Work outside commands, one lock at a time and in the order of deadlines. While the gate is shut,
//! this work waits.

use std::collections::BTreeMap;

use super::groups::Groups;
use super::locks::Locks;
use super::observers::Observers;
use super::{At, LockId, Manager, Mark};
use crate::{EpochMs, Lock, Now, StepContext, WaiterId};

/// The next step for one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Open its key for writing, and call [`Manager::decide`] with [`crate::Input::Tick`] or
    /// [`crate::Input::Changed`].
    Sweep(LockId, EpochMs, Mark),
    /// The gate is shut: open the lock's key for reading, and call [`Manager::see`].
    See(LockId, Mark),
    /// Groups have work, beginning at this lock: do it if the gate is open.
    Groups(LockId),
    /// The wait of this group has timed out: call [`Manager::end_group_with`].
    GroupOver(WaiterId),
}

/// While a due task may let a waiter in, one task in this many may renew a session.
const ONE_RENEWAL_IN: u64 = 4;

/// What is due at other locks may free them, so it is done before a queue is served: at this many
/// locks at most.
const FREED_TOGETHER: usize = 1000;

/// Waiters, sessions, groups and observers from before this server became a replica.
pub(super) struct Forgotten {
    pub(super) locks: Locks,
    pub(super) groups: Groups,
    pub(super) observers: Observers,
}

/// When to ask the manager for tasks again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// Ask in this loop iteration or the next.
    pub soon: bool,
    /// Ask as soon as the gate may have opened.
    pub when_open: bool,
    /// At this moment.
    pub at: Option<EpochMs>,
    /// Ask for observers in this many milliseconds ([`Manager::next_observer_task`]).
    pub observers_in_ms: Option<u64>,
}

impl Manager {
    /// Whether the server would let a client's write through now. While it would not, no request is
    /// granted, no session is renewed, and nothing is written. Waits still time out, and sessions
    /// end with their leases; everything else is done when the gate opens again.
    pub fn gate_is(&mut self, is_open: bool, now: Now) {
        self.shut_since = if is_open { None } else { self.shut_since.or(Some(now.ms())) };
        self.is_presumed_open = false;
    }

    /// Assumes an open gate for the next task: the caller checks the gate for that task itself.
    pub fn presume_open(&mut self) {
        self.is_presumed_open = true;
    }

    /// The caller is about to ask for tasks.
    pub fn sweep_begins(&mut self, now: Now) {
        // No load has replaced the flushed locks.
        let flushed = self.closing.take_flushed();
        self.lose(flushed, now);
        self.groups.left = 0;
        self.free_some();
    }

    /// Since when the gate is known to be shut.
    pub fn shut_since(&self) -> Option<EpochMs> {
        self.shut_since
    }

    /// The next task: the one that has been due for longest. `None` if nothing is due.
    pub fn next_task(&mut self, now: Now) -> Option<Task> {
        if !self.decides() {
            return None;
        }
        if let Some(waiter) = self.first_group_over(now) {
            return Some(Task::GroupOver(waiter));
        }
        match self.shut_since {
            Some(_) if !self.is_presumed_open => self.next_of_shut(now),
            _ => self.next_of_open(now),
        }
    }

    fn next_of_open(&mut self, now: Now) -> Option<Task> {
        self.end_grace_of_groups(now);
        match self.group_work_at() {
            // Everything that came due together is done before a queue is served.
            Some(_) if self.frees_more() => {
                self.groups.freed = self.groups.freed.saturating_add(1);
            }
            Some(id) => return Some(Task::Groups(id)),
            None => {}
        }
        // A lock where a waiter may be let in comes before renewals, however late those are; but
        // some renewals are done all the same.
        self.tasks = self.tasks.wrapping_add(1);
        let mut due = self.locks.first_due(now);
        if self.tasks.is_multiple_of(ONE_RENEWAL_IN) {
            due = [due, self.locks.first_renewal(now)].into_iter().flatten().min();
        }
        let (postponed, marked) = (self.postponed.first(), self.locks.first_marked());
        let is_first = |at: Option<EpochMs>, others: [Option<EpochMs>; 2]| {
            at.is_some_and(|at| others.into_iter().flatten().all(|other| at <= other))
        };
        let due_at = due.as_ref().map(|(at, _)| *at);
        if is_first(postponed, [marked, due_at])
            && let Some((at, id, why)) = self.postponed.pop()
        {
            return Some(Task::Sweep(id, at, why));
        }
        if is_first(marked, [due_at, None])
            && let Some((id, at, why)) = self.locks.take_marked()
        {
            return Some(Task::Sweep(id, at, why));
        }
        // A lock that is due for two reasons is swept only once.
        let due = due.or_else(|| self.expiries.pop_due(now));
        if let Some((at, id)) = due.or_else(|| self.locks.first_renewal(now)) {
            return Some(Task::Sweep(id, at, Mark::Due));
        }
        let next = self.next_of_upheaval(now).map(|(id, at, why)| Task::Sweep(id, at, why));
        next.or_else(|| self.group_work_at().map(Task::Groups))
    }

    /// Whether something is still to be done that came due before a queue was to be served. It may
    /// free other locks, at which a group may be ahead of this queue's waiters.
    fn frees_more(&self) -> bool {
        let Some(freed_at) = self.groups.freed_at else { return false };
        self.groups.freed <= FREED_TOGETHER
            && (!self.upheavals.is_empty()
                || self.first_due_at().is_some_and(|due_at| due_at <= freed_at))
    }

    /// The earliest time at which something that is due came due.
    fn first_due_at(&self) -> Option<EpochMs> {
        let all = [self.postponed.first(), self.locks.first_marked(), self.locks.next_to_end()];
        all.into_iter().flatten().min()
    }

    /// Does at once what needs no write, and postpones the rest.
    fn next_of_shut(&mut self, now: Now) -> Option<Task> {
        let due = [self.locks.first_due(now), self.locks.first_renewal(now)];
        if let Some((at, id)) = due.into_iter().flatten().min() {
            let slow = self.slow;
            let (wakes, over) = self.locks.change(id.db, &id.key, |volatile, _| {
                let wakes = volatile.time_out_alone(now, slow, StepContext::PORTION);
                ((wakes, volatile.drain_ended(slow, now)), volatile.next_end())
            });
            self.locks.renew_with_next_step(&id);
            self.log_slow(At { db: id.db, key: &id.key, now }, over);
            self.post(wakes);
            self.postpone(id.clone(), at, Mark::Due);
            return Some(Task::See(id, Mark::Due));
        }
        let marked = self.locks.take_marked();
        let (id, at, why) = marked.or_else(|| self.next_of_upheaval(now))?;
        self.postpone(id.clone(), at, why);
        Some(Task::See(id, why))
    }

    /// Postpones a lock that cannot be written although the gate is open, because its cluster slot
    /// is not served. It is retried together with what waits for the gate.
    pub fn postpone(&mut self, id: LockId, at: EpochMs, why: Mark) {
        self.postponed.add(id, at, why);
    }

    /// Finds lost sessions of this lock while nothing may be written.
    pub fn see(&mut self, id: &LockId, why: Mark, lock: &Lock, now: Now) {
        let slow = self.slow;
        let (lost, wakes, over) = self.locks.change(id.db, &id.key, |volatile, _| {
            let (lost, wakes) = match why {
                Mark::Changed => {
                    (lock.lost_sessions(volatile, now), lock.lost_grants(volatile, now))
                }
                Mark::Due => (lock.ended_sessions(volatile, now), Vec::new()),
            };
            ((lost, wakes, volatile.drain_ended(slow, now)), volatile.next_end())
        });
        self.log_slow(At { db: id.db, key: &id.key, now }, over);
        self.post(wakes);
        self.lose(lost, now);
    }

    /// Frees a portion of what is from before this server became a replica.
    fn free_some(&mut self) {
        const PORTION: usize = 1000;
        let Some(all) = self.forgotten.last_mut() else { return };
        let mut drop_one =
            || all.groups.drop_one() || all.locks.drop_one() || all.observers.drop_one();
        if !(0..PORTION).all(|_| drop_one()) {
            self.forgotten.pop();
        }
    }

    /// When to ask for tasks again.
    pub fn next_call(&self) -> Next {
        let works = self.decides();
        let is_open = self.shut_since.is_none();
        let has_postponed = works && !self.postponed.is_empty();
        let has_more = self.locks.first_marked().is_some() || !self.upheavals.is_empty();
        let has_groups = works && self.has_group_work();
        let has_expiries = works && !self.expiries.is_empty();
        let tells = !self.removed.is_empty() || !self.closing.just_flushed().is_empty();
        Next {
            soon: works && has_more
                || (has_postponed || has_groups) && is_open
                || tells
                || !self.forgotten.is_empty(),
            when_open: (has_postponed || has_groups || has_expiries) && !is_open,
            at: [
                self.locks.next_alarm(),
                self.observers.next_alarm(),
                self.next_group_end(),
                self.expiries.next().filter(|_| is_open),
            ]
            .into_iter()
            .flatten()
            .min()
            .filter(|_| works),
            observers_in_ms: self.observers.marked_in_ms().filter(|_| works),
        }
    }
}

/// Locks that came due while the gate was shut, each of them once.
#[derive(Default)]
pub(super) struct Postponed {
    by_time: BTreeMap<(EpochMs, LockId), Mark>,
    by_lock: BTreeMap<LockId, EpochMs>,
}

impl Postponed {
    /// A lock that is already postponed keeps its place.
    fn add(&mut self, id: LockId, at: EpochMs, why: Mark) {
        let at = *self.by_lock.entry(id.clone()).or_insert(at);
        let known = self.by_time.entry((at, id)).or_insert(why);
        *known = why.max(*known);
    }

    pub(super) fn is_changed(&self, db: i32, key: &[u8]) -> bool {
        // Locks are rarely postponed.
        if self.is_empty() {
            return false;
        }
        let id = LockId { db, key: key.into() };
        let why = self.by_lock.get(&id).and_then(|at| self.by_time.get(&(*at, id)));
        why == Some(&Mark::Changed)
    }

    fn first(&self) -> Option<EpochMs> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    fn pop(&mut self) -> Option<(EpochMs, LockId, Mark)> {
        let ((at, id), why) = self.by_time.pop_first()?;
        self.by_lock.remove(&id);
        Some((at, id, why))
    }

    fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
