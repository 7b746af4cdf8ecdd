//! What becomes of requests that wait for messages, where it concerns more than them.

use super::{LockId, Manager};
use crate::volatile::slow::Outcome;
use crate::{EpochMs, Now, Reply, WaiterId};

impl Manager {
    /// The caller of a pending grant asks again, for more acknowledgments than before; they have
    /// until `late_at`.
    pub fn raise_acks(&mut self, waiter: WaiterId, acks: u8, late_at: EpochMs) {
        if self.groups.held_back_replies.contains_key(&waiter) {
            return self.raise_acks_of_group(waiter, acks, late_at);
        }
        let Some(id) = self.waits_at(waiter) else { return };
        let asked = self.locks.change_acks(&id, |volatile| {
            volatile.raise_acks(waiter, acks, late_at);
            volatile.take_asked()
        });
        self.acks.ask(id, asked);
    }

    /// Nobody listens: the wait of a group ends as if its connection had closed, and those behind
    /// it are served with the next work for groups.
    pub fn group_is_unheard(&mut self, waiter: WaiterId, now: Now) {
        let reply = Reply::NotNow { wait_ms: None };
        self.tells.end(waiter);
        self.end_group_with(waiter, reply, Outcome::Disconnected, now);
    }

    /// The locks at which this connection is blocked.
    pub fn locks_of(&self, waiter: WaiterId) -> Vec<LockId> {
        match self.group(waiter) {
            Some(group) => group.keys.iter().map(|key| group.id(key)).collect(),
            None => self.parked(waiter).map(|parked| parked.lock.clone()).into_iter().collect(),
        }
    }
}
