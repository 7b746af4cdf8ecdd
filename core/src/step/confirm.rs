//! Grants and renewals whose reply is sent later, perhaps after acknowledgments; a grant is revoked
//! if these do not arrive. The hold exists from its grant on, but is reported to nobody before.

use crate::step::input::{Acquire, Parking};
use crate::volatile::levels::Asked;
use crate::volatile::unsent::{AckWait, HeldBack};
use crate::{Hold, Step, Token};

/// What was decided for a caller whose reply is sent later.
pub(crate) struct LateReply {
    pub(crate) caller: Parking,
    /// How many replicas must acknowledge it first.
    pub(crate) acks: u8,
    pub(crate) token: Token,
    pub(crate) asked: Asked,
    pub(crate) reply: HeldBack,
}

impl LateReply {
    /// The reply to a grant of what the owner asks for, which had this hold before.
    pub(crate) fn grant(
        caller: Parking,
        ask: &Acquire<'_>,
        token: Token,
        held: Option<Hold>,
    ) -> Self {
        let (asked, reply) = (Asked::new(held, ask.depth), HeldBack::grant(ask.session, ask.lease));
        Self { caller, acks: ask.acks, token, asked, reply }
    }
}

impl Step<'_, '_> {
    /// Records a late reply. Returns whether replicas must acknowledge the decision first.
    pub(crate) fn reply_later(&mut self, late: LateReply) -> bool {
        let LateReply { caller, acks, token, asked, reply } = late;
        let (waiter, now) = (caller.waiter, self.moment.now);
        if acks == 0 {
            self.volatile.unsent.insert(waiter, token, asked, None);
            if let Some(session) = reply.session(now) {
                self.volatile.tie_unsent(token, waiter, session);
            }
            return false;
        }
        let (_, deadline) = self.levels(token);
        let until = self.moment.late_at(caller.ends_at, deadline);
        let Parking { since, is_of_several, .. } = caller;
        let wait = AckWait { acks, until, deadline, since, granted_at: now, reply, is_of_several };
        self.volatile.await_acks(waiter, token, asked, wait);
        self.effects.awaits_acks = true;
        true
    }
}
