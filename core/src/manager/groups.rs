//! Waits for several locks. A group stands at one of its locks at a time, in key order; it moves on
//! from a lock when it has its turn there, and is granted when it has reached all of them. The
//! caller opens the keys: [`Manager::next_group_work`] says which step is next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::group::{AtLock, Group, Stage};
use super::{At, HashMap, LockId, Manager, Mark};
use crate::volatile::endings::wake;
use crate::volatile::queue::Arrival;
use crate::volatile::slow::{Ended, Outcome};
use crate::{EpochMs, GroupStand, Now, Owner, Reply, Volatile, WaiterId, Wake};

/// If many connections close in one loop iteration, groups with at most this many locks in total
/// end at once: to remove a group's names costs as much as to give up its places.
const LEFT_AT_ONCE: usize = 256;

/// The names of this many locks are removed in the time that it takes to give up one place.
const NAMES_PER_PLACE: usize = 16;

/// All groups, until their connections have got the reply.
#[derive(Default)]
pub(super) struct Groups {
    pub(super) all: HashMap<WaiterId, Group>,
    /// Those that wait, by database and a hash of their owner.
    pub(super) by_owner: BTreeSet<(i32, u64, WaiterId)>,
    pub(super) ends: BTreeSet<(EpochMs, WaiterId)>,
    /// Work to be done at locks.
    pub(super) works: BTreeSet<(LockId, AtLock)>,
    /// Groups that have reached all of their locks and are about to be granted.
    pub(super) commits: BTreeSet<WaiterId>,
    /// As in [`Manager::several_change`].
    pub(super) several_change: bool,
    /// Since when a lock that was freed together with others waits to be served.
    pub(super) freed_at: Option<EpochMs>,
    /// How many locks were swept since then.
    pub(super) freed: usize,
    /// Groups whose connections closed, and their places, which are given up in portions.
    pub(super) leaving: VecDeque<(WaiterId, Group)>,
    /// How many locks the groups had that ended at once since the last sweep.
    pub(super) left: usize,
    /// Groups that have reached all of their locks and are granted when the grace period has ended.
    pub(super) in_grace: BTreeSet<WaiterId>,
    /// Granted groups whose callers departed before their reply, and their locks.
    pub(super) unheard: BTreeMap<WaiterId, Vec<LockId>>,
    /// Groups that came to stand at a lock, and for which a cycle is still to be searched.
    stood: Vec<WaiterId>,
    /// How many locks are reserved for groups.
    pub(super) turns: usize,
    /// How many groups get their reply as a message.
    pub(super) by_message: usize,
    /// How many groups wait for acknowledgments of their grant or renewal.
    pub(super) pending: usize,
    /// As in [`Manager::take_told_groups`].
    pub(super) told: usize,
}

impl Groups {
    pub(super) fn index_of(waiter: WaiterId, group: &Group) -> (i32, u64, WaiterId) {
        (group.db, Owner::hash_of(group.entry.owner.as_bytes()), waiter)
    }

    /// How many groups wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.by_owner.len()
    }

    /// Drops one group that waits, so that many can be dropped in portions. False if there is
    /// none.
    pub(super) fn drop_one(&mut self) -> bool {
        self.ends.pop_first();
        self.works.pop_first();
        let first = self.by_owner.pop_first();
        first.is_some_and(|(_, _, waiter)| self.all.remove(&waiter).is_some())
    }

    /// Ends the wait of the group.
    fn stop(&mut self, waiter: WaiterId) {
        let Some(group) = self.all.get_mut(&waiter).filter(|group| group.waits()) else {
            return;
        };
        group.stage = Stage::Replied;
        self.by_message = self.by_message.saturating_sub(group.is_told.into());
        let (ends_at, index) = (group.entry.ends_at, Self::index_of(waiter, group));
        ends_at.map(|ends_at| self.ends.remove(&(ends_at, waiter)));
        self.by_owner.remove(&index);
        self.set_turns(waiter, 0);
        self.stays(waiter);
        self.in_grace.remove(&waiter);
    }

    /// Forgets a group that waits.
    fn take_waiting(&mut self, waiter: WaiterId) -> Option<Group> {
        self.waiting(waiter)?;
        self.stop(waiter);
        self.all.remove(&waiter)
    }

    /// Forgets a group that waits no more for its locks.
    pub(super) fn take_granted(&mut self, grant: WaiterId) -> Option<Group> {
        let group = self.all.remove(&grant)?;
        self.pending = self.pending.saturating_sub(group.is_pending().into());
        Some(group)
    }

    /// Records at which locks the group has its turn.
    pub(super) fn set_turns(&mut self, waiter: WaiterId, turns: u128) {
        let Some(group) = self.all.get_mut(&waiter) else { return };
        let count = |bits: u128| usize::try_from(bits.count_ones()).unwrap_or(0);
        self.turns = self.turns.saturating_sub(count(group.turns)).saturating_add(count(turns));
        group.turns = turns;
    }
}

pub(super) fn bit(number: usize) -> u128 {
    u32::try_from(number).ok().and_then(|number| 1_u128.checked_shl(number)).unwrap_or(0)
}

impl Manager {
    /// A request begins to wait for several locks.
    pub fn group_begins(&mut self, waiter: WaiterId, mut group: Group) {
        self.arrivals = self.arrivals.saturating_add(1);
        group.entry.arrival = Arrival::new(self.arrivals);
        self.groups.by_owner.insert(Groups::index_of(waiter, &group));
        self.groups.ends.extend(group.entry.ends_at.map(|ends_at| (ends_at, waiter)));
        let by_message = &mut self.groups.by_message;
        *by_message = by_message.saturating_add(group.is_told.into());
        self.tells.asks_for(waiter, &group);
        self.groups.all.insert(waiter, group);
        self.groups.goes_on(waiter);
    }

    /// A group that waits.
    pub fn group(&self, waiter: WaiterId) -> Option<&Group> {
        self.groups.waiting(waiter)
    }

    /// The locks of a group that waits.
    pub fn locks_of(&self, waiter: WaiterId) -> Vec<LockId> {
        self.group(waiter).map_or_else(Vec::new, Group::ids)
    }

    /// The number of waiting groups, and of locks reserved for them.
    pub fn group_totals(&self) -> [usize; 2] {
        [self.groups.waiting_count(), self.groups.turns]
    }

    /// The waiting groups of this owner that include this lock.
    pub fn groups_of(&self, db: i32, key: &[u8], owner: &[u8]) -> Vec<WaiterId> {
        let hash = Owner::hash_of(owner);
        let all = (db, hash, WaiterId::from(1))..=(db, hash, WaiterId::from(u64::MAX));
        let waiters = self.groups.by_owner.range(all).map(|(_, _, waiter)| *waiter);
        let is_it =
            |group: &Group| group.entry.owner.as_bytes() == owner && group.number_of(key).is_some();
        waiters.filter(|waiter| self.group(*waiter).is_some_and(is_it)).collect()
    }

    pub(super) fn comes_to_stand(&mut self, waiter: WaiterId, id: LockId) {
        let entry = self.locks.get(id.db, &id.key);
        let entry = entry.and_then(|volatile| volatile.queue.blocked(waiter));
        let in_the_way = entry.and_then(|entry| entry.in_the_way.clone());
        if let Some(group) = self.groups.all.get_mut(&waiter) {
            (group.stands, group.waited_at) = (true, Some(group.reached));
            group.entry.in_the_way = group.entry.in_the_way.take().or(in_the_way);
        }
        self.tells.stands_at(waiter, &id);
        self.waits.stands_at(waiter, id);
        self.groups.stood.push(waiter);
    }

    pub(super) fn moves_on(&mut self, waiter: WaiterId) {
        if let Some(group) = self.groups.all.get_mut(&waiter) {
            group.stands = false;
            group.reached = group.reached.saturating_add(1);
            self.groups.goes_on(waiter);
        }
    }

    /// The first lock that this group had reached and has lost: it now only stands in line there.
    fn lost_by(&self, waiter: WaiterId) -> Option<usize> {
        let group = self.groups.waiting(waiter)?;
        group.keys.iter().take(group.reached).position(|key| {
            let stand = self.group_stand(group.db, &key.key, waiter);
            !matches!(stand, Some(GroupStand::Turn | GroupStand::Covered))
        })
    }

    /// Where a group is at this lock; `None` if it is not there.
    pub(super) fn group_stand(&self, db: i32, key: &[u8], waiter: WaiterId) -> Option<GroupStand> {
        self.locks.get(db, key)?.queue.group_stand(waiter)
    }

    /// Changes the volatile part of a lock that knows of this waiter.
    pub(super) fn change_known(
        &mut self,
        id: &LockId,
        waiter: WaiterId,
        work: impl FnOnce(&mut Volatile),
    ) {
        if self.locks.get(id.db, &id.key).is_some_and(|volatile| volatile.knows(waiter)) {
            self.locks.change_keeping_alarm(id.db, &id.key, work);
        }
    }

    /// A waiter leaves a lock that knows of it: the waiters behind it may be able to enter now, and
    /// a grant may have to be revoked.
    pub(super) fn leave_and_sweep(&mut self, id: &LockId, waiter: WaiterId, at: Option<EpochMs>) {
        if self.locks.get(id.db, &id.key).is_some_and(|volatile| volatile.knows(waiter)) {
            // Marked first, so that it is kept until it is swept.
            self.locks.mark(id.db, &id.key, Mark::Due, at);
            self.leave_lock(id, waiter);
        }
    }

    pub(super) fn leave_lock(&mut self, id: &LockId, waiter: WaiterId) {
        self.change_known(id, waiter, |volatile| {
            volatile.leave(waiter);
        });
    }

    /// Ends the wait of a group, or its grant if that was not reported, at all of its locks. The
    /// waiters behind it are served with the next steps. False if there is no such group.
    pub(super) fn end_group(&mut self, waiter: WaiterId, by: Outcome, now: Now) -> bool {
        self.log_group(waiter, by, now);
        if self.leave_all(waiter, Some(now.ms())) {
            return true;
        }
        let Some(group) = self.groups.take_granted(waiter) else {
            return self.groups.unheard.contains_key(&waiter);
        };
        let ids = group.ids();
        // The connection ends next, and must not end the session of another grant with it.
        for id in &ids {
            self.change_known(id, waiter, |volatile| volatile.withdraw_tie(waiter));
        }
        self.groups.unheard.insert(waiter, ids);
        true
    }

    /// Revokes an unheard grant at its locks. Their next steps do that, as one unit.
    pub fn revoke_group(&mut self, waiter: WaiterId, ids: &[LockId], now: Now) {
        for id in ids {
            self.leave_and_sweep(id, waiter, Some(now.ms()));
        }
    }

    /// Ends the wait of a group. False if it does not wait.
    fn leave_all(&mut self, waiter: WaiterId, at: Option<EpochMs>) -> bool {
        let Some(group) = self.groups.take_waiting(waiter) else { return false };
        self.groups.left = self.groups.left.saturating_add(group.keys.len());
        if self.groups.left > LEFT_AT_ONCE {
            self.groups.leaving.push_back((waiter, group));
            return true;
        }
        group.places().for_each(|id| self.leave_and_sweep(&id, waiter, at));
        true
    }

    /// The group no longer waits: gives up its places. The waiters behind it are served with the
    /// next work. Returns the amount of work, counted in places.
    pub fn group_left(&mut self, waiter: WaiterId, group: &Group) -> usize {
        for id in group.places() {
            self.leave_lock(&id, waiter);
            self.groups.serve(id);
        }
        let names = group.keys.len() / NAMES_PER_PLACE;
        group.reached.saturating_add(names).saturating_add(1)
    }

    /// Ends the wait of a group with this reply. The waiters behind it are served with the next
    /// work for groups.
    pub fn end_group_with(&mut self, waiter: WaiterId, reply: Reply, by: Outcome, now: Now) {
        self.end_group_but_at(waiter, None, reply, by, now);
    }

    /// A group has no listener: its wait ends as if its connection had closed.
    pub fn group_is_unheard(&mut self, waiter: WaiterId, now: Now) {
        self.tells.end(waiter);
        let reply = Reply::NotNow { wait_ms: None };
        self.end_group_with(waiter, reply, Outcome::Disconnected, now);
    }

    /// The wait of a group is canceled with this reply. Its place at `key` is given up by the step
    /// that cancels its owner's other waits there, since none of those may be granted before.
    pub fn cancel_group(&mut self, waiter: WaiterId, key: &[u8], reply: Reply, now: Now) {
        self.end_group_but_at(waiter, Some(key), reply, Outcome::Cancelled, now);
    }

    fn end_group_but_at(
        &mut self,
        waiter: WaiterId,
        but: Option<&[u8]>,
        reply: Reply,
        by: Outcome,
        now: Now,
    ) {
        self.log_group(waiter, by, now);
        let Some(group) = self.groups.take_waiting(waiter) else { return };
        for id in group.places() {
            let volatile = self.locks.get(id.db, &id.key);
            let stands = volatile.is_some_and(|volatile| volatile.queue.blocked(waiter).is_some());
            if but != Some(&*id.key) || !stands {
                self.leave_lock(&id, waiter);
                self.groups.serve(id);
            }
        }
        let wake = wake(waiter, reply, &group.entry, now);
        let is_withdrawn = by == Outcome::Cancelled;
        self.post(vec![Wake { holds: 0, is_withdrawn, ..wake }]);
    }

    /// A group is granted, and no longer waits. Returns how long it waited, in microseconds.
    pub fn group_granted(&mut self, waiter: WaiterId, now: Now) -> u64 {
        let since = self.group(waiter).map_or(now, |group| group.entry.since);
        self.log_group(waiter, Outcome::Granted, now);
        self.groups.stop(waiter);
        now.us().saturating_sub(since.us())
    }

    fn log_group(&mut self, waiter: WaiterId, outcome: Outcome, now: Now) {
        let Some(group) = self.groups.waiting(waiter) else { return };
        let waited_at = group.waited_at.and_then(|number| group.keys.get(number));
        let Some(key) = waited_at.or(group.next_key()).or(group.keys.last()) else { return };
        let over = group.entry.ended(self.slow, outcome, now);
        let (mode, limit, keys) = (key.mode, key.limit, group.keys.len());
        let LockId { db, key } = group.id(key);
        let over = over.map(|over| Ended { mode, limit, keys, ..over });
        self.log_slow(At { db, key: &key, now }, over);
    }

    /// The server has unblocked the connection of a group. False if the waiter is no group.
    pub(super) fn group_heard_or_forgotten(&mut self, waiter: WaiterId) -> bool {
        // If it waits, something else sent it a reply.
        if self.leave_all(waiter, None) {
            return true;
        }
        // If the grant is held back, another caller's reply has reported it.
        self.groups.revoke(waiter);
        let Some(group) = self.groups.all.remove(&waiter) else {
            return self.groups.unheard.contains_key(&waiter);
        };
        for id in group.ids() {
            self.change_known(&id, waiter, |volatile| volatile.heard(waiter));
        }
        true
    }

    /// A group whose wait has timed out.
    pub fn first_group_over(&self, now: Now) -> Option<WaiterId> {
        let (ends_at, waiter) = self.groups.ends.first()?;
        ends_at.is_over_at(now).then_some(*waiter)
    }

    /// When the next group times out, or the grace period ends that holds groups back.
    pub(super) fn next_group_end(&self) -> Option<EpochMs> {
        let end = self.groups.ends.first().map(|(ends_at, _)| *ends_at);
        let grace = self.grace_end(self.grace_ms).filter(|_| !self.groups.in_grace.is_empty());
        [end, grace].into_iter().flatten().min()
    }

    /// Whether this group has reached all of its locks, and has not lost one since.
    pub fn has_reached_all(&self, waiter: WaiterId) -> bool {
        let has_all = |group: &Group| group.next_key().is_none();
        self.group(waiter).is_some_and(has_all) && self.lost_by(waiter).is_none()
    }

    /// Takes the groups that came to stand at a lock and still wait.
    pub fn take_stood(&mut self) -> Vec<WaiterId> {
        let stood = std::mem::take(&mut self.groups.stood);
        let stands = |waiter: &WaiterId| self.group(*waiter).is_some_and(|group| group.stands);
        stood.into_iter().filter(stands).collect()
    }
}
