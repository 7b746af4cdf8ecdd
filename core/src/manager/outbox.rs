//! Replies to blocked connections.

use super::{Manager, WaitEnd};
use crate::{Reply, Wake};

impl Manager {
    /// Sets the reply of a blocked connection. False if it has a reply already, or has departed.
    pub fn answer(&mut self, wake: &Wake) -> bool {
        self.answer_told(wake)
            || self.waits.end_with(wake.waiter, WaitEnd::Replied(wake.reply.clone()))
    }

    /// Takes the replies that came due outside a transition.
    pub fn take_answers(&mut self) -> Vec<Wake> {
        std::mem::take(&mut self.outbox)
    }

    /// Keeps replies that came due outside a transition, until they are taken.
    pub(super) fn post(&mut self, wakes: Vec<Wake>) {
        for wake in &wakes {
            if let Reply::Refused(refusal) = &wake.reply {
                self.waits.expect(wake.waiter, refusal.clone());
            }
            self.groups.revoke(wake.waiter);
        }
        self.outbox.extend(wakes);
    }
}
