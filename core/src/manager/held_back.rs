//! Groups that have reached all of their locks and are held back: a hold of their owner there waits
//! for acknowledgments.

use super::{LockId, Manager};
use crate::WaiterId;

impl Manager {
    /// This group has reached all of its locks, and cannot be granted before something changes at
    /// one of them: a hold of its owner there waits for acknowledgments.
    pub fn hold_back(&mut self, waiter: WaiterId) {
        let Some(group) = self.groups.waiting(waiter) else { return };
        let ids: Vec<LockId> = group.keys.iter().map(|key| group.id(key)).collect();
        for id in ids {
            self.groups.held_at.entry(id).or_default().insert(waiter);
        }
        self.groups.ready.remove(&waiter);
        self.groups.held_back.insert(waiter);
    }

    /// Something changed at this lock for which groups may be held back.
    pub(super) fn retry_held_back(&mut self, db: i32, key: &[u8]) {
        if self.groups.held_back.is_empty() {
            return;
        }
        let held = self.groups.held_at.get(&LockId { db, key: key.into() });
        for waiter in held.cloned().into_iter().flatten() {
            self.groups.hold_no_more(waiter);
            self.groups.goes_on(waiter);
        }
    }
}
