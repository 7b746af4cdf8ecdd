//! Grants and renewals whose reply is sent later, perhaps after acknowledgments; a grant is revoked
//! if these do not arrive. The hold exists from its grant on, but is reported to nobody before.

use crate::step::input::{Acquire, Parking};
use crate::volatile::levels::Asked;
use crate::volatile::unsent::{AckWait, HeldBack};
use crate::{Hold, Step, Token};

impl Step<'_, '_> {
    /// Records that the reply to the grant of `ask` is sent later. The owner had the hold `held`
    /// before it. Returns whether replicas must acknowledge the grant first.
    pub(crate) fn reply_to_grant_later(
        &mut self,
        caller: Parking,
        ask: &Acquire<'_>,
        token: Token,
        held: Option<Hold>,
    ) -> bool {
        let (asked, reply) = (Asked::new(held, ask.depth), HeldBack::grant(ask.session, ask.lease));
        if ask.acks > 0 {
            self.hold_back(caller, ask.acks, token, asked, reply);
            return true;
        }
        self.volatile.unsent.insert(caller.waiter, token, asked, None);
        if let Some(session) = reply.session(self.moment.now) {
            self.volatile.tie_unsent(token, caller.waiter, session);
        }
        false
    }

    /// Holds a reply back until this many replicas have acknowledged what it says.
    pub(crate) fn hold_back(
        &mut self,
        caller: Parking,
        acks: u8,
        token: Token,
        asked: Asked,
        reply: HeldBack,
    ) {
        let (now, deadline) = (self.moment.now, self.deadline_of(token));
        let until = self.moment.late_at(caller.ends_at, deadline);
        let Parking { waiter, since, is_of_several, .. } = caller;
        let wait = AckWait { acks, until, deadline, since, granted_at: now, reply, is_of_several };
        self.volatile.await_acks(waiter, token, asked, wait);
        self.effects.awaits_acks = true;
    }
}
