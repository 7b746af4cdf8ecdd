//! What is done outside of commands, one lock at a time and in the order of deadlines; and the
//! gate, behind which it waits while nothing may be written.

use std::collections::BTreeMap;

use super::{At, LockId, Manager, Mark};
use crate::{EpochMs, Lock, Moment, Now};

/// Whole databases were emptied, swapped or read anew: any lock may be another one now. The way
/// through them may be left and taken up again.
#[derive(Debug)]
pub(super) struct Upheaval {
    db: Option<i32>,
    next: usize,
    end: usize,
}

/// What is to be done next with one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Its key is to be opened for writing, and [`Manager::decide`] to be called with
    /// [`crate::Input::Tick`], or [`crate::Input::Changed`].
    Sweep(LockId, EpochMs, Mark),
    /// Nothing may be written: its key is to be opened for reading, and [`Manager::see`] to be
    /// called.
    See(LockId, Mark),
}

/// When the manager wants to be asked again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// In this iteration of the server's loop or the next.
    pub soon: bool,
    /// As soon as the gate may be open.
    pub when_open: bool,
    /// At this moment.
    pub at: Option<EpochMs>,
}

impl Manager {
    pub(super) fn upheaval(&mut self, db: Option<i32>) {
        let end = self.locks.places();
        if end > 0 {
            self.upheavals.push_back(Upheaval { db, next: 0, end });
        }
    }

    /// Whether the server would let a client's write through now. While it would not, nobody is
    /// granted, no session is renewed, and nothing is written: waits end at their time, sessions
    /// with their lease, and the rest is done when the gate is open again.
    pub fn gate_is(&mut self, is_open: bool, now: Now) {
        self.shut_since = if is_open { None } else { self.shut_since.or(Some(now.ms())) };
        self.is_presumed_open = false;
    }

    /// The next task is said as if the gate were open: it is going to be asked for that task.
    pub fn presume_open(&mut self) {
        self.is_presumed_open = true;
    }

    /// Tasks are going to be asked for.
    pub fn sweep_begins(&mut self, now: Now) {
        // Nothing was loaded in the place of what was flushed.
        let flushed = std::mem::take(&mut self.flushed);
        self.lose(flushed, now);
        self.free_some();
    }

    /// Since when nothing may be written outside of commands, as far as that was asked.
    pub fn shut_since(&self) -> Option<EpochMs> {
        self.shut_since
    }

    /// The next thing to be done, the one that came due first. `None` when all is done for now.
    pub fn next_task(&mut self, now: Now) -> Option<Task> {
        if !self.is_primary || self.is_loading {
            return None;
        }
        match self.shut_since {
            Some(_) if !self.is_presumed_open => self.next_of_shut(now),
            _ => self.next_of_open(now),
        }
    }

    fn next_of_open(&mut self, now: Now) -> Option<Task> {
        let due = self.locks.first_due(now);
        if let Some(at) = self.postponed.first()
            && due.as_ref().is_none_or(|(other, _)| at <= *other)
            && let Some((at, id, why)) = self.postponed.pop()
        {
            return Some(Task::Sweep(id, at, why));
        }
        if let Some((at, id)) = due {
            return Some(Task::Sweep(id, at, Mark::Due));
        }
        self.next_marked().map(|(id, why)| Task::Sweep(id, now.ms(), why))
    }

    fn next_marked(&mut self) -> Option<(LockId, Mark)> {
        self.locks.take_marked().or_else(|| self.next_of_upheaval().map(|id| (id, Mark::Changed)))
    }

    fn next_of_upheaval(&mut self) -> Option<LockId> {
        while let Some(upheaval) = self.upheavals.front_mut() {
            while upheaval.next < upheaval.end {
                let place = upheaval.next;
                upheaval.next = place.saturating_add(1);
                let id = self.locks.in_place(place);
                if let Some(id) = id.filter(|id| upheaval.db.is_none_or(|db| db == id.db)) {
                    return Some(id);
                }
            }
            self.upheavals.pop_front();
        }
        None
    }

    /// What needs nothing written is done at once, the rest is postponed.
    fn next_of_shut(&mut self, now: Now) -> Option<Task> {
        if let Some((at, id)) = self.locks.first_due(now) {
            let slow = self.slow;
            let (wakes, over) = self.locks.change(id.db, &id.key, |memory| {
                let wakes = memory.time_out_alone(now, slow, Moment::PORTION);
                ((wakes, memory.take_over(slow, now)), memory.next_end())
            });
            self.note(At { db: id.db, key: &id.key, now }, over);
            self.outbox.extend(wakes);
            self.postpone(id.clone(), at, Mark::Due);
            return Some(Task::See(id, Mark::Due));
        }
        let (id, why) = self.next_marked()?;
        self.postpone(id.clone(), now.ms(), why);
        Some(Task::See(id, why))
    }

    /// This lock may not be written now, though the gate is open: it is one of a cluster's slot
    /// that is served nowhere. It is tried again with whatever waits for the gate.
    pub fn postpone(&mut self, id: LockId, at: EpochMs, why: Mark) {
        self.postponed.add(id, at, why);
    }

    /// Nothing may be written: sessions of this lock that are lost are found.
    pub fn see(&mut self, id: &LockId, why: Mark, lock: &Lock, now: Now) {
        let lost = self.locks.change(id.db, &id.key, |memory| {
            let lost = match why {
                Mark::Changed => lock.lost_sessions(memory, now),
                Mark::Due => lock.ended_sessions(memory, now),
            };
            (lost, memory.next_end())
        });
        self.lose(lost, now);
    }

    /// Frees a portion of what was remembered before this server became a replica.
    fn free_some(&mut self) {
        const PORTION: usize = 1000;
        let Some(locks) = self.forgotten.last_mut() else { return };
        if !(0..PORTION).all(|_| locks.drop_one()) {
            self.forgotten.pop();
        }
    }

    /// When to ask for tasks again.
    pub fn next_call(&self) -> Next {
        let works = self.is_primary && !self.is_loading;
        let is_open = self.shut_since.is_none();
        let has_postponed = works && !self.postponed.is_empty();
        let has_more = self.locks.has_marked() || !self.upheavals.is_empty();
        let tells = !self.removed.is_empty() || !self.flushed.is_empty();
        Next {
            soon: works && has_more
                || has_postponed && is_open
                || tells
                || !self.forgotten.is_empty(),
            when_open: has_postponed && !is_open,
            at: self.locks.next_alarm().filter(|_| works),
        }
    }
}

/// What came due while nothing may be written, each lock once.
#[derive(Default)]
pub(super) struct Postponed {
    by_time: BTreeMap<(EpochMs, LockId), Mark>,
    by_lock: BTreeMap<LockId, EpochMs>,
}

impl Postponed {
    /// A lock that is postponed already stays where it is.
    fn add(&mut self, id: LockId, at: EpochMs, why: Mark) {
        let at = *self.by_lock.entry(id.clone()).or_insert(at);
        let known = self.by_time.entry((at, id)).or_insert(why);
        *known = why.max(*known);
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
