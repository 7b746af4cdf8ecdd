//! Grants whose reply waits for acknowledgments, and which are revoked if these do not arrive. The
//! hold exists from its grant on, but is reported to nobody before.

use std::borrow::Cow;

use crate::step::input::{Acquire, Confirm, Enter, Parking, Reply};
use crate::volatile::levels::Asked;
use crate::volatile::unsent::{AckWait, HeldBack};
use crate::{Hold, Step, Token, WaiterId};

/// How many replicas must acknowledge a grant before its reply, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct AckRequest {
    pub(crate) acks: u8,
    /// What the owner held before.
    pub(crate) held: Option<Hold>,
    /// How the caller is blocked; `None` if it is not.
    pub(crate) parking: Option<Parking>,
}

impl<'a> Step<'_, 'a> {
    /// Grants an `RLOCK.ACQUIRE`, and replies when replicas have acknowledged the grant.
    pub(crate) fn acquire_pending(&mut self, ask: Acquire<'a>, request: AckRequest) -> Reply {
        let AckRequest { acks, held, parking } = request;
        let Some(Parking { waiter, ends_at, .. }) = parking else { return Reply::MustConfirm };
        let reply = match held {
            Some(hold) => self.reenter(ask.depth, ask.lease, hold),
            None => {
                let owner = Cow::Borrowed(ask.owner);
                self.begin_hold(owner, ask.mode, ask.lease)
            }
        };
        let Reply::Granted { token, .. } = reply else { return reply };
        let (_, deadline) = self.levels(token);
        let wait = AckWait {
            acks,
            until: self.moment.late_at(ends_at, deadline),
            deadline,
            since: self.moment.now,
            granted_at: self.moment.now,
            reply: HeldBack::grant(ask.session, ask.lease),
            is_of_several: false,
        };
        let asked = Asked::new(held.map_or(0, |before| before.depth), ask.depth);
        self.volatile.await_acks(waiter, token, asked, wait, held.is_none());
        self.grant_reentries(ask.owner);
        Reply::Pending
    }

    /// Grants one of several locks while the reply to the request is held back. The replicas are
    /// asked once, for all of the locks.
    pub(crate) fn await_acks_of_several(
        &mut self,
        ask: &Enter<'_>,
        waiter: WaiterId,
        confirm: Confirm,
        token: Token,
        held: Option<Hold>,
    ) -> Reply {
        let Confirm { acks, since, ends_at } = confirm;
        let (_, deadline) = self.levels(token);
        let wait = AckWait {
            acks,
            until: self.moment.late_at(ends_at, deadline),
            deadline,
            since,
            granted_at: self.moment.now,
            reply: HeldBack::grant(ask.session, ask.lease),
            is_of_several: true,
        };
        let before = held.map_or(0, |before| before.depth);
        let asked = Asked::new(before, Some(1));
        self.volatile.await_acks(waiter, token, asked, wait, held.is_none());
        self.effects.pending.push(waiter);
        self.effects.awaits_acks = true;
        self.grant_reentries(ask.owner);
        Reply::Pending
    }
}
