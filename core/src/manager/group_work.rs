//! The order of work for groups. It is done in key order, and a group moves on only to later keys.
//! So even if several locks are freed at once, no waiter is served at a key while a group that
//! arrived earlier may still reach that key.

use super::LockId;
use super::group::{AtLock, Group};
use super::groups::Groups;
use crate::{Now, WaiterId};

/// A piece of work for groups.
#[derive(Clone, Debug)]
pub enum GroupWork {
    /// Serve the queue of this lock: a waiter left it, or the lock was freed together with others.
    Serve(LockId),
    /// These groups reach this lock, in the order of arrival; then its queue is served.
    Join(LockId, Vec<WaiterId>),
    /// This group has lost this lock, which it had reached: call [`Manager::goes_back`].
    Back(LockId, WaiterId),
    /// This group has reached all of its locks: examine all, then change all.
    Commit(WaiterId),
    /// The wait of this group, which was about to move on, has timed out: it ends now. It does not
    /// wait for the next sweep, because the clock may be set back before that.
    Over(WaiterId),
    /// The connection of this group has closed, and the group still has these places: call
    /// [`Manager::group_left`].
    Leave(WaiterId, Box<Group>),
    /// The caller of a granted group departed before its reply: revoke all of the grant.
    Revoke(WaiterId, Vec<LockId>),
}

impl Groups {
    pub(super) fn waiting(&self, waiter: WaiterId) -> Option<&Group> {
        self.all.get(&waiter).filter(|group| group.waits())
    }

    /// The group moves on to its next lock, or has reached all of them.
    pub(super) fn goes_on(&mut self, waiter: WaiterId) {
        let Some(group) = self.waiting(waiter) else { return };
        match group.coming(waiter) {
            Some(work) => self.works.insert(work),
            None => self.commits.insert(waiter),
        };
    }

    /// The group does not move on. Its next lock must be the same as when it was about to.
    pub(super) fn stays(&mut self, waiter: WaiterId) {
        self.commits.remove(&waiter);
        if let Some(work) = self.all.get(&waiter).and_then(|group| group.coming(waiter)) {
            self.works.remove(&work);
        }
    }

    /// Whether the group is about to move on.
    pub(super) fn is_moving(&self, waiter: WaiterId) -> bool {
        let work = self.waiting(waiter).and_then(|group| group.coming(waiter));
        self.commits.contains(&waiter) || work.is_some_and(|work| self.works.contains(&work))
    }

    /// Whether the group is about to go back.
    pub(super) fn is_going_back(&self, waiter: WaiterId) -> bool {
        let lost = |(_, what): &(LockId, AtLock)| *what == AtLock::Back(waiter);
        self.works.iter().any(lost)
    }

    /// Notes that the queue of this lock must be served.
    pub(super) fn serve(&mut self, id: LockId) {
        self.works.insert((id, AtLock::Serve));
    }

    /// Notes that the queue of this lock, which was freed together with others, must be served
    /// after all of them are.
    pub(super) fn serve_later(&mut self, id: LockId, now: Now) {
        self.freed_at = self.freed_at.or(Some(now.ms()));
        self.serve(id);
    }

    /// A step has served this queue.
    pub(super) fn is_served(&mut self, db: i32, key: &[u8]) {
        if !self.works.is_empty() {
            self.works.remove(&(LockId { db, key: key.into() }, AtLock::Serve));
        }
    }

    /// The first piece of work at a lock. Groups that reach the same lock are combined, up to a
    /// limit.
    pub(super) fn next_at_a_lock(&mut self, now: Now) -> Option<GroupWork> {
        const COME_TOGETHER: usize = 64;
        while let Some((id, what)) = self.works.pop_first() {
            let first = match what {
                AtLock::Serve => return Some(GroupWork::Serve(id)),
                AtLock::Back(waiter) => return Some(GroupWork::Back(id, waiter)),
                AtLock::Come(_, waiter) => waiter,
            };
            if self.is_over(first, now) {
                return Some(GroupWork::Over(first));
            }
            let mut waiters = vec![first];
            while waiters.len() < COME_TOGETHER
                && let Some((next, AtLock::Come(_, waiter))) = self.works.first()
                && *next == id
                && !self.is_over(*waiter, now)
            {
                waiters.push(*waiter);
                self.works.pop_first();
            }
            waiters.retain(|waiter| self.waiting(*waiter).is_some_and(|group| !group.stands));
            if !waiters.is_empty() {
                return Some(GroupWork::Join(id, waiters));
            }
        }
        None
    }

    /// Whether the group's wait has timed out.
    pub(super) fn is_over(&self, waiter: WaiterId, now: Now) -> bool {
        let ends_at = self.waiting(waiter).and_then(|group| group.entry.ends_at);
        ends_at.is_some_and(|ends_at| ends_at.is_over_at(now))
    }
}
