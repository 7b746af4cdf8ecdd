//! Ends of waits with `TELL` that affect other requests, too.

use super::{LockId, Manager};
use crate::volatile::slow::Outcome;
use crate::{Now, Reply, WaiterId};

impl Manager {
    /// A group has no listener: its wait ends as if its connection had closed, and the waiters
    /// behind it are served with the next work for groups.
    pub fn group_is_unheard(&mut self, waiter: WaiterId, now: Now) {
        let reply = Reply::NotNow { wait_ms: None };
        self.tells.end(waiter);
        self.end_group_with(waiter, reply, Outcome::Disconnected, now);
    }

    /// The locks at which this connection is blocked.
    pub fn locks_of(&self, waiter: WaiterId) -> Vec<LockId> {
        match self.group(waiter) {
            Some(group) => group.ids(),
            None => self.parked(waiter).map(|parked| parked.lock.clone()).into_iter().collect(),
        }
    }
}
