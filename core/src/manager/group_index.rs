//! Groups by owner, and tickets for several locks by key.

use super::group::Group;
use super::groups::Groups;
use super::{LockId, Manager};
use crate::{Owner, WaiterId};

impl Groups {
    fn ticket_keys_of(
        waiter: WaiterId,
        group: &Group,
    ) -> impl Iterator<Item = (u64, LockId, WaiterId)> {
        let hash = Owner::hash_of(group.owner.as_bytes());
        group.keys.iter().map(move |key| (hash, group.id(key), waiter))
    }

    pub(super) fn ticket_begins(&mut self, waiter: WaiterId, group: &Group) {
        self.tickets = self.tickets.saturating_add(1);
        self.ticket_keys.extend(Self::ticket_keys_of(waiter, group));
    }

    pub(super) fn ticket_ends(&mut self, waiter: WaiterId, group: &Group) {
        self.tickets = self.tickets.saturating_sub(1);
        for key in Self::ticket_keys_of(waiter, group) {
            self.ticket_keys.remove(&key);
        }
    }
}

impl Manager {
    /// The locks at which this group has a place, or may have one.
    pub fn places_of_group(&self, waiter: WaiterId) -> Vec<LockId> {
        self.groups.waiting(waiter).map_or_else(Vec::new, |group| group.places().collect())
    }

    /// The groups of this owner that wait.
    pub(super) fn group_waits_of<'a>(
        &'a self,
        db: i32,
        owner: &'a [u8],
    ) -> impl Iterator<Item = (WaiterId, &'a Group)> {
        let hash = Owner::hash_of(owner);
        let all = (db, hash, WaiterId::from(1))..=(db, hash, WaiterId::from(u64::MAX));
        let all = self.groups.by_owner.range(all).map(|(_, _, waiter)| *waiter);
        all.filter_map(|waiter| Some((waiter, self.groups.all.get(&waiter)?)))
            .filter(move |(_, group)| !group.is_granted && group.owner.as_bytes() == owner)
    }
}
