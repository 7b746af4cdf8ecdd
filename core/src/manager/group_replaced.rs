//! A request for several locks replaces one of the same owner that waits already.

use super::{Group, LockId, Manager};
use crate::WaiterId;

impl Manager {
    /// Another request of its owner, which would wait as the group `by`, replaces a waiting group
    /// and keeps its places.
    pub fn replace_group(&mut self, waiter: WaiterId, by: Group) {
        let Some(group) = self.groups.all.get_mut(&waiter).filter(|group| group.waits()) else {
            return;
        };
        let others = self.groups.by_message.saturating_sub(group.is_told.into());
        self.groups.by_message = others.saturating_add(by.is_told.into());
        group.entry.ends_at.map(|before| self.groups.ends.remove(&(before, waiter)));
        by.entry.ends_at.map(|ends_at| self.groups.ends.insert((ends_at, waiter)));
        let (client, lease) = (by.entry.client, by.entry.lease);
        group.is_told = by.is_told;
        group.entry.continue_as(by.entry);
        self.tells.asks_for(waiter, group);
        let places: Vec<LockId> = group.places().collect();
        for id in &places {
            self.change_known(id, waiter, |volatile| {
                volatile.queue.replace_group(waiter, client, lease);
            });
        }
    }

    /// The lock at which a group stands, or its last lock.
    pub fn stands_at(&self, waiter: WaiterId) -> Option<LockId> {
        let group = self.group(waiter)?;
        Some(group.id(group.next_key().or(group.keys.last())?))
    }
}
