//! What comes due without a command: leases, sessions and waits that end, and sessions to be
//! renewed.

use crate::volatile::queue::Entry;
use crate::{End, Step, Volatile};

impl<'a> Step<'_, 'a> {
    /// Handles what came due before anything new: departed waiters are not granted, and what has
    /// timed out ends. If `serves`, every waiter that can enter has entered afterward.
    pub(crate) fn catch_up(&mut self, owner: Option<&[u8]>, serves: bool) {
        let grace_is_over = self.volatile.grace.is_some() && self.moment.grace.is_none();
        self.volatile.grace = self.moment.grace;
        self.end_expired(owner);
        self.catch_up_waiters(serves);
        if grace_is_over {
            self.grant_parked_reentries();
        }
    }

    fn catch_up_waiters(&mut self, serves: bool) {
        if self.volatile.is_empty() {
            return;
        }
        let late = self.volatile.refuse_late(self.moment.now, &mut self.moment.portion);
        self.effects.wakes.extend(late);
        // However many are late: nothing that has ended by now affects a decision.
        self.revoke();
        for token in self.volatile.sessions.take_gone() {
            self.end(token, End::Disconnected);
        }
        self.end_unacknowledged();
        let portion = self.moment.portion;
        self.time_out();
        self.go_on_entering();
        if serves {
            self.serve();
        }
        // Then nobody can enter.
        if self.effects.unchecked.is_none() {
            self.renew_sessions(portion);
        }
    }

    fn time_out(&mut self) {
        let now = self.moment.now;
        let lock = &*self.lock;
        let wait_ms = |volatile: &Volatile, place, entry: &Entry| {
            lock.estimated_wait_at(volatile, place, entry, now)
        };
        let wakes =
            self.volatile.time_out(now, self.moment.slow, &mut self.moment.portion, wait_ms);
        self.effects.wakes.extend(wakes);
    }

    /// Renews at most this many of the sessions that are due. A session whose hold was removed
    /// without notice is lost.
    fn renew_sessions(&mut self, most: usize) {
        let mut left = most;
        let now = self.moment.now;
        while self.volatile.sessions.next_renewal().is_some_and(|at| at.is_over_at(now)) {
            let Some(fewer) = left.checked_sub(1) else { return };
            left = fewer;
            let Some((token, lease)) = self.volatile.sessions.renew_next(now) else { return };
            match self.lock.holders.by_token(token).map(|(.., hold)| hold) {
                Some(hold) if !hold.deadline.is_over_at(now) => {
                    let deadline = hold.deadline.max(now.after(lease));
                    self.update_hold(hold, hold.depth, deadline);
                    self.volatile.renewed(token, deadline);
                }
                Some(_) => {}
                None => self.effects.lost.extend(self.volatile.lose(token)),
            }
        }
    }

    /// Ends sessions, with their holds, whose last deadline that replicas acknowledged has passed.
    fn end_unacknowledged(&mut self) {
        while self.volatile.sessions.next_end_by_acks().is_some()
            && let Some(token) = self.volatile.sessions.first_ended(self.moment.now)
        {
            self.end_session(token);
        }
    }
}
