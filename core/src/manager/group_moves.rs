//! How groups move from one of their locks to the next, and back.

use super::group::AtLock;
use super::group_work::GroupWork;
use super::groups::{Groups, bit};
use super::{LockId, Manager};
use crate::{GroupStand, Now, WaiterId};

/// Groups whose place at one lock a step has changed.
pub(super) struct TouchedGroups {
    /// The place of each group now; `None` if it no longer stands there.
    pub stands: Vec<(WaiterId, Option<GroupStand>)>,
    /// False if that may change again before the step has ended and the queue is served.
    pub is_settled: bool,
}

impl Manager {
    /// Sets whether several locks change together from now on: if groups wait, the queues of these
    /// locks are served afterward, as work for groups.
    pub fn several_change(&mut self, is_on: bool) {
        self.groups.several_change = is_on;
    }

    /// Whether there is work for groups that may be done now.
    pub fn has_group_work(&self) -> bool {
        let Groups { works, commits, unheard, leaving, .. } = &self.groups;
        !leaving.is_empty() || !works.is_empty() || !commits.is_empty() || !unheard.is_empty()
    }

    /// The lock at which the next work for groups begins; in any case, one of the group's locks.
    pub fn group_work_at(&self) -> Option<LockId> {
        let Groups { all, works, commits, unheard, leaving, .. } = &self.groups;
        let leaving = leaving.front().and_then(|(_, group)| group.places().next());
        let unheard = unheard.values().next().and_then(|ids| ids.first());
        let first = leaving.as_ref().or(unheard);
        first.or_else(|| works.first().map(|(id, _)| id)).cloned().or_else(|| {
            let group = all.get(commits.first()?)?;
            Some(group.id(group.next_key().or(group.keys.first())?))
        })
    }

    /// The next work for groups.
    pub fn next_group_work(&mut self, now: Now) -> Option<GroupWork> {
        if let Some((waiter, group)) = self.groups.leaving.pop_front() {
            return Some(GroupWork::Leave(waiter, Box::new(group)));
        }
        if let Some(work) = self.next_revocation() {
            return Some(work);
        }
        while let Some(waiter) = self.groups.commits.pop_first() {
            if self.groups.is_over(waiter, now) {
                return Some(GroupWork::Over(waiter));
            }
            if self.grace_of(self.grace_ms, now).is_none() {
                return Some(GroupWork::Commit(waiter));
            }
            self.groups.in_grace.insert(waiter);
        }
        let next = self.groups.next_at_a_lock(now);
        if next.is_none() {
            (self.groups.freed_at, self.groups.freed) = (None, 0);
        }
        next
    }

    /// The next grant of several locks of which a part has ended, so that its other parts must be
    /// revoked.
    pub fn next_revocation(&mut self) -> Option<GroupWork> {
        let (waiter, ids) = self.groups.unheard.pop_first()?;
        Some(GroupWork::Revoke(waiter, ids))
    }

    /// Postpones this work until the gate opens.
    pub fn group_work_later(&mut self, work: GroupWork) {
        match work {
            GroupWork::Serve(id) => self.groups.serve(id),
            GroupWork::Leave(waiter, group) => self.groups.leaving.push_front((waiter, *group)),
            GroupWork::Revoke(waiter, ids) => drop(self.groups.unheard.insert(waiter, ids)),
            GroupWork::Back(id, waiter) => {
                self.groups.works.insert((id, AtLock::Back(waiter)));
            }
            GroupWork::Commit(waiter) | GroupWork::Over(waiter) => self.groups.goes_on(waiter),
            GroupWork::Join(_, waiters) => {
                waiters.into_iter().for_each(|waiter| self.groups.goes_on(waiter));
            }
        }
    }

    /// A step touched these groups at one lock. Once that is settled, they continue from where they
    /// are.
    pub(super) fn groups_are(&mut self, db: i32, key: &[u8], touched: TouchedGroups) {
        let TouchedGroups { stands, is_settled } = touched;
        for (waiter, stand) in stands {
            let Some(group) = self.groups.waiting(waiter) else { continue };
            let (Some(number), Some(stand)) = (group.number_of(key), stand) else { continue };
            let (reached, others) = (group.reached, group.turns & !bit(number));
            let own = if stand == GroupStand::Turn { bit(number) } else { 0 };
            self.groups.set_turns(waiter, others | own);
            if !is_settled {
                continue;
            }
            match stand {
                GroupStand::Line if number < reached => {
                    let work = (LockId { db, key: key.into() }, AtLock::Back(waiter));
                    self.groups.works.insert(work);
                }
                GroupStand::Line => self.comes_to_stand(waiter, LockId { db, key: key.into() }),
                GroupStand::Turn | GroupStand::Covered if number == reached => {
                    self.moves_on(waiter);
                }
                GroupStand::Turn | GroupStand::Covered => self.has_again(waiter),
            }
        }
    }

    /// A group regained a lock that it had lost while it was about to be granted.
    fn has_again(&mut self, waiter: WaiterId) {
        let has_all = self.group(waiter).is_some_and(|group| group.next_key().is_none());
        if has_all && !self.groups.in_grace.contains(&waiter) {
            self.groups.commits.insert(waiter);
        }
    }

    /// A group that has lost this lock stands in line there again, and gives up its turns at later
    /// locks, unless it has regained the lock already. Returns how many locks it gives up.
    pub fn goes_back(&mut self, id: &LockId, waiter: WaiterId) -> usize {
        let stand = self.group_stand(id.db, &id.key, waiter);
        let Some(group) = self.groups.waiting(waiter) else { return 0 };
        let number = group.number_of(&id.key).filter(|number| *number < group.reached);
        let Some(number) = number.filter(|_| stand == Some(GroupStand::Line)) else { return 0 };
        let before = bit(number).saturating_sub(1);
        let (last, turns) = (group.reached, group.turns & before);
        let left = group.keys.iter().take(last.saturating_add(1)).skip(number.saturating_add(1));
        let left: Vec<LockId> = left.map(|key| group.id(key)).collect();
        self.groups.stays(waiter);
        if let Some(group) = self.groups.all.get_mut(&waiter) {
            group.reached = number;
        }
        self.groups.set_turns(waiter, turns);
        self.groups.in_grace.remove(&waiter);
        let count = left.len();
        for id in left {
            self.leave_lock(&id, waiter);
            self.groups.works.remove(&(id.clone(), AtLock::Back(waiter)));
            self.groups.serve(id);
        }
        self.comes_to_stand(waiter, id.clone());
        count
    }

    /// Grants groups that waited for the end of the grace period, if it has ended.
    pub(super) fn end_grace_of_groups(&mut self, now: Now) {
        if !self.groups.in_grace.is_empty() && self.grace_of(self.grace_ms, now).is_none() {
            let Groups { commits, in_grace, .. } = &mut self.groups;
            commits.append(in_grace);
        }
    }
}
