//! Grants whose reply waits for acknowledgments, and which are revoked if those do not come. The
//! hold exists from its grant on, but nobody learns of it before.

use std::borrow::Cow;

use crate::step::input::{Acquire, Confirm, Enter, Parking, Patience, Reply};
use crate::volatile::confirmations::{Ack, TicketGrant};
use crate::volatile::levels::Asked;
use crate::volatile::queue::{Entry, Kind};
use crate::volatile::sessions::Session;
use crate::volatile::unsent::{AckWait, HeldBack};
use crate::{Change, EpochMs, Hold, LeaseMs, Step, Token, WaiterId};

/// A grant whose reply waits for this many replicas.
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
    pub(crate) fn acquire_pending(&mut self, ask: Acquire<'a>, told: AckRequest) -> Reply {
        let now = self.moment.now;
        let turn = told.held.and_then(|hold| Some((hold, self.volatile.turn(hold.token)?)));
        // What the ticket was granted is what is asked for now, if the hold is as deep by it.
        let levels = &self.volatile.unsent.levels;
        let own = turn.filter(|(hold, turn)| {
            levels.depth_with(hold.token, turn.request, ask.depth) == hold.depth
        });
        if let Some((hold, TicketGrant { late_at: None, acks, deadline, .. })) = own
            && *acks >= told.acks
            && *deadline >= now.after(ask.lease)
        {
            let deadline = *deadline;
            return self.tell_turn(ask, told, (hold, deadline));
        }
        let Patience::Ticket(window) = ask.patience else {
            // It takes over what the ticket was granted, unless that is more than it asks for.
            let taken = turn.map(|(hold, turn)| match own {
                Some(_) => (hold.depth, Some(turn.request)),
                None => (levels.depth_instead(hold.token, turn.request, ask.depth), None),
            });
            let taken = taken.filter(|(depth, _)| told.held.is_some_and(|it| *depth >= it.depth));
            return self.enter_pending(ask, told, taken);
        };
        if let Some((hold, TicketGrant { deadline, .. })) = own {
            let late_at = self.moment.late_at(None, *deadline);
            let (asks, lasts) = ((told.acks, self.moment.arrival), now.after(window));
            self.volatile.keep_turn(hold.token, lasts, asks, late_at);
            return Reply::NotNow { wait_ms: None };
        }
        // Its ticket is told first; if it has lost its level, it is granted anew.
        if turn.is_some_and(|(_, turn)| turn.ticket.depth != ask.depth) {
            return Reply::NotNow { wait_ms: None };
        }
        self.take_turn(ask, told, window)
    }

    /// Grants a blocked connection what it asks for; its reply is held back. `taken`: it takes over
    /// what its owner's ticket was granted; the depth that the hold has then, and the ticket's
    /// request if it is the same.
    fn enter_pending(
        &mut self,
        ask: Acquire<'a>,
        told: AckRequest,
        taken: Option<(u16, Option<u64>)>,
    ) -> Reply {
        let Some(Parking { waiter, ends_at, .. }) = told.parking else {
            return Reply::MustConfirm;
        };
        let depth = taken.map(|(depth, _)| depth).or(ask.depth);
        let reply = match told.held {
            Some(hold) => self.reenter(depth, ask.lease, hold),
            None => {
                let owner = Cow::Borrowed(ask.owner);
                self.begin_hold(owner, ask.mode, ask.lease)
            }
        };
        let Reply::Granted { token, .. } = reply else { return reply };
        let (_, deadline) = self.levels(token);
        let wait = AckWait {
            acks: told.acks,
            until: self.moment.late_at(ends_at, deadline),
            deadline,
            since: self.moment.now,
            granted_at: self.moment.now,
            reply: HeldBack::grant(ask.session, ask.lease),
            is_of_several: false,
        };
        let before = told.held.map_or(0, |before| before.depth);
        let instead = taken.and_then(|(_, request)| request);
        let asked = Asked { instead, ..Asked::new(before, ask.depth) };
        self.volatile.await_acks(waiter, (token, asked), wait, told.held.is_none());
        match taken {
            Some((_, Some(_))) => drop(self.volatile.acks_mut().take_turn(token)),
            Some((_, None)) => drop(self.volatile.forget_turn(token)),
            None => {}
        }
        self.grant_reentries(ask.owner);
        Reply::Pending
    }

    /// A ticket's owner asks again for the hold that it was granted: it gets the token, and no
    /// level is added.
    fn tell_turn(
        &mut self,
        ask: Acquire<'a>,
        told: AckRequest,
        (hold, deadline): (Hold, EpochMs),
    ) -> Reply {
        let (now, Hold { token, depth, .. }) = (self.moment.now, hold);
        self.record(Change::Updated { token, depth, deadline: hold.deadline });
        let waiter = told.parking.map(|parking| parking.waiter);
        self.volatile.tell_turn(token, ask.depth, waiter);
        if let Some(client) = ask.session {
            let session = Session::new(client, ask.lease, now).by_acks(told.acks, deadline);
            match waiter {
                Some(waiter) => self.volatile.tie_unsent(token, waiter, session),
                None => self.volatile.sessions.tie(token, session),
            }
        }
        Reply::Granted { token, remaining_ms: deadline.left_at(now) }
    }

    /// Grants a ticket whose owner asks in its turn: the hold begins, and the owner gets the token
    /// when it asks again.
    fn take_turn(&mut self, ask: Acquire<'a>, told: AckRequest, window: LeaseMs) -> Reply {
        // The owner counts the lease from when it asks again.
        let lease = ask.lease.with_window(window);
        let reply = match told.held {
            Some(hold) => self.reenter(ask.depth, lease, hold),
            None => {
                let owner = Cow::Borrowed(ask.owner);
                self.begin_hold(owner, ask.mode, lease)
            }
        };
        let Reply::Granted { token, .. } = reply else { return reply };
        let (level, deadline) = self.levels(token);
        let ends_at = self.moment.now.after(window);
        let asked = Asked::new(told.held.map_or(0, |before| before.depth), ask.depth);
        let request = self.volatile.unsent.levels.insert(token, (None, told.acks), asked);
        drop(self.volatile.forget_turn(token));
        let turn = TicketGrant {
            ticket: Entry::new(&ask, Kind::Ticket, Some(ends_at), self.moment.now),
            request,
            level,
            acks: told.acks,
            asked: self.moment.arrival,
            late_at: Some(self.moment.late_at(None, deadline)),
            told_by: ends_at,
            deadline,
            check_at: deadline,
        };
        let acks = self.volatile.acks_mut();
        if told.held.is_none() {
            acks.begin(token, told.acks);
        }
        acks.give_turn(token, turn);
        acks.ask(told.acks, Ack::Ticket(token, self.moment.arrival));
        self.grant_reentries(ask.owner);
        Reply::NotNow { wait_ms: None }
    }

    /// One lock of a grant of several whose reply is held back. Its replicas are asked once for all
    /// of them.
    pub(crate) fn await_acks_of_several(
        &mut self,
        ask: &Enter<'_>,
        (waiter, confirm): (WaiterId, Confirm),
        (token, held): (Token, Option<Hold>),
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
        self.volatile.await_acks(waiter, (token, asked), wait, held.is_none());
        self.effects.pending.push(waiter);
        self.effects.awaits_acks = true;
        self.grant_reentries(ask.owner);
        Reply::Pending
    }
}
