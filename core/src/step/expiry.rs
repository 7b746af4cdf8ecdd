//! What comes due by itself: leases, sessions and waits that end, and sessions to renew.

use crate::step::input::{Effects, StepContext};
use crate::volatile::confirm::no_acks;
use crate::volatile::queue::Entry;
use crate::{End, Lock, Refusal, Volatile};

impl Lock {
    /// What came due, before anything new: who left is not granted, what is over has ended.
    pub(crate) fn catch_up<'a>(
        &mut self,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        owner: Option<&[u8]>,
        effects: &mut Effects<'a>,
    ) {
        self.end_expired(volatile, moment, owner, effects);
        if volatile.is_empty() {
            return;
        }
        if !self.expire_unconfirmed(volatile, moment, effects) {
            return;
        }
        self.revoke(volatile, moment, effects);
        for token in volatile.sessions.take_gone() {
            self.end(token, End::Disconnected, volatile, moment, effects);
        }
        self.renew_sessions(volatile, moment, effects);
        self.end_unacknowledged(volatile, moment, effects);
        self.time_out(volatile, moment, effects);
        self.go_on_entering(volatile, moment, effects);
        self.serve(volatile, moment, effects);
    }

    fn time_out(
        &self,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'_>,
    ) {
        let now = moment.now;
        let wait_ms = |volatile: &Volatile, place, entry: &Entry| {
            self.estimated_wait_at(volatile, place, entry, now)
        };
        let wakes = volatile.time_out(now, moment.slow, &mut moment.portion, wait_ms);
        effects.wakes.extend(wakes);
    }

    /// Renews the sessions that are due. One whose hold was removed without notice is lost.
    fn renew_sessions(
        &mut self,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'_>,
    ) {
        let now = moment.now;
        while volatile.sessions.next_renewal().is_some_and(|at| at.is_over_at(now)) {
            if !moment.take() {
                volatile.unfinished = Some(moment.now.ms());
                return;
            }
            let Some((token, lease)) = volatile.sessions.renew_next(now) else { return };
            match self.holders.by_token(token).map(|(_, hold)| hold) {
                Some(hold) if !hold.deadline.is_over_at(now) => {
                    let deadline = hold.deadline.max(now.after(lease));
                    self.update_hold(hold, hold.depth, deadline, effects);
                    volatile.renewed(token, deadline);
                }
                Some(_) => {}
                None => effects.lost.extend(volatile.lose(token)),
            }
        }
    }

    /// Sessions whose last deadline that replicas acknowledged is over: they are lost, and their
    /// holds end with them.
    fn end_unacknowledged(
        &mut self,
        volatile: &mut Volatile,
        moment: &StepContext<'_>,
        effects: &mut Effects<'_>,
    ) {
        while volatile.sessions.next_end_by_acks().is_some_and(|at| at.is_over_at(moment.now)) {
            let Some(token) = volatile.sessions.first_ended(moment.now) else { return };
            self.end_session(token, volatile, moment, effects);
        }
    }

    /// Takes back the levels of grants that can no longer be confirmed: the acknowledgements did
    /// not come in time, or the ticket's owner did not ask. False when the portion is used up.
    pub(crate) fn expire_unconfirmed(
        &self,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'_>,
    ) -> bool {
        while volatile.next_late().is_some_and(|at| at.is_over_at(moment.now)) {
            if !moment.take() {
                volatile.unfinished = Some(moment.now.ms());
                return false;
            }
            match volatile.unsent.first_over(moment.now) {
                Some((waiter, since)) => {
                    volatile.leave(waiter);
                    effects.wakes.push(no_acks(waiter, since, Refusal::NoAcks, moment.now));
                }
                None if volatile.turn_is_over(moment.now) => {}
                None => return true,
            }
        }
        true
    }
}
