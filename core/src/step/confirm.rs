//! Grants whose reply waits for acknowledgments, and which are revoked if those do not come. The
//! hold exists from its grant on, but nobody learns of it before.

use std::borrow::Cow;

use crate::step::input::{Acquire, Confirm, Enter, Parking, Patience, Reply};
use crate::volatile::confirmations::{Ack, TicketGrant};
use crate::volatile::queue::{Entry, Kind};
use crate::volatile::sessions::Session;
use crate::volatile::unsent::{AckWait, HeldBack, OwnLevels};
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
        // A level that it shares may have ended: then what is asked for is granted anew.
        let turn = turn.filter(|(hold, turn)| turn.adds() || turn.depth() <= hold.depth);
        // What the ticket was granted is what is asked for now, unless that is another level.
        let is_deeper = ask.depth > told.held.map(|hold| hold.depth);
        let is_no_lower = |turn: &TicketGrant| {
            ask.depth.is_none_or(|depth| depth >= turn.level.max(turn.depth()))
        };
        let own = turn.filter(|(_, turn)| !is_deeper && is_no_lower(turn));
        if let Some((hold, TicketGrant { late_at: None, acks, deadline, .. })) = own
            && *acks >= told.acks
            && *deadline >= now.after(ask.lease)
        {
            let deadline = *deadline;
            return self.tell_turn(ask, told.acks, (hold, deadline));
        }
        if let Patience::Ticket(window) = ask.patience {
            if let Some((hold, TicketGrant { deadline, .. })) = own {
                let late_at = self.moment.late_at(None, *deadline);
                let asks = (told.acks, self.moment.arrival);
                let acks = self.volatile.acks_mut();
                acks.keep_turn(hold.token, now.after(window));
                acks.raise_turn(hold.token, asks, late_at);
                return Reply::NotNow { wait_ms: None };
            }
            // Its blocked connection gets its reply first, and so does the ticket.
            if turn.is_some()
                || told.held.is_some_and(|hold| self.volatile.pending_acks(hold.token).is_some())
            {
                return Reply::NotNow { wait_ms: None };
            }
            return self.take_turn(ask, told, window);
        }
        let Some(Parking { waiter, ends_at, .. }) = told.parking else {
            return Reply::MustConfirm;
        };
        // It takes over the level that the ticket was granted, if it counts on that.
        let is_over = turn.is_none_or(|(_, turn)| is_no_lower(turn));
        let turn_level: u16 = turn.is_some_and(|(_, turn)| is_over && turn.adds()).into();
        let depth = own.map_or(ask.depth, |(hold, _)| Some(hold.depth));
        let counts_on = ask.depth.or(own.and_then(|(_, turn)| turn.ticket.depth));
        let reply = match told.held {
            Some(hold) => self.reenter(depth, ask.lease, hold),
            None => {
                let owner = Cow::Borrowed(ask.owner);
                self.begin_hold(owner, ask.mode, ask.lease)
            }
        };
        let Reply::Granted { token, .. } = reply else { return reply };
        if is_over {
            self.volatile.acks_mut().take_turn(token);
        }
        let (after, deadline) = self.levels(token);
        let wait = AckWait {
            acks: told.acks,
            until: self.moment.late_at(ends_at, deadline),
            deadline,
            since: now,
            granted_at: now,
            reply: HeldBack::grant(ask.session, ask.lease),
            is_of_several: false,
        };
        let before = told.held.map_or(0, |before| before.depth).saturating_sub(turn_level);
        let levels = OwnLevels::new([before, after], counts_on);
        self.volatile.await_acks(waiter, (token, levels), wait, told.held.is_none());
        self.grant_reentries(ask.owner);
        Reply::Pending
    }

    /// A ticket's owner asks again for the hold that it was granted: it gets the token, and no
    /// level is added.
    fn tell_turn(
        &mut self,
        ask: Acquire<'a>,
        acks: u8,
        (hold, deadline): (Hold, EpochMs),
    ) -> Reply {
        let (now, Hold { token, depth, .. }) = (self.moment.now, hold);
        self.record(Change::Updated { token, depth, deadline: hold.deadline });
        self.volatile.acks_mut().take_turn(token);
        self.volatile.acks_mut().tell(token);
        if let Some(client) = ask.session {
            let session = Session::new(client, ask.lease, now).by_acks(acks, deadline);
            self.volatile.sessions.tie(token, session);
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
        let (depth, deadline) = self.levels(token);
        let ends_at = self.moment.now.after(window);
        let turn = TicketGrant {
            ticket: Entry::new(&ask, Kind::Ticket, Some(ends_at), self.moment.now),
            level: if told.held.is_none_or(|before| before.depth < depth) { depth } else { 0 },
            begins: told.held.is_none(),
            acks: told.acks,
            asked: self.moment.arrival,
            late_at: Some(self.moment.late_at(None, deadline)),
            told_by: ends_at,
            deadline,
            check_at: deadline,
        };
        let acks = self.volatile.acks_mut();
        if turn.begins {
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
        let Confirm::Await { acks, since, ends_at } = confirm else { return Reply::Pending };
        let (depth, deadline) = self.levels(token);
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
        let levels = OwnLevels::new([before, depth], Some(1));
        self.volatile.await_acks(waiter, (token, levels), wait, held.is_none());
        self.effects.pending.push(waiter);
        self.effects.awaits_acks = true;
        self.grant_reentries(ask.owner);
        Reply::Pending
    }

    /// The owner of a ticket for several locks asks again for what it was granted: it gets the
    /// token, and no level is added.
    pub(crate) fn ticket_is_told(
        &mut self,
        ask: &Enter<'a>,
        held: Option<Hold>,
        (grant, acks): (WaiterId, u8),
    ) -> Reply {
        let told = self.volatile.tell_ticket(grant);
        let (Some(hold), Some((token, deadline))) = (held, told) else {
            return Reply::NotNow { wait_ms: None };
        };
        // Others who were granted the same hold, and have not heard of it, end it no more.
        self.volatile.unsent.owner_knows(token);
        self.record(Change::Updated { token, depth: hold.depth, deadline: hold.deadline });
        let now = self.moment.now;
        if let Some(client) = ask.session {
            let session = Session::new(client, ask.lease, now).by_acks(acks, deadline);
            self.volatile.sessions.tie(token, session);
        }
        Reply::Granted { token, remaining_ms: deadline.left_at(now) }
    }
}
