//! Grants whose reply waits for acknowledgments: what is remembered of them, and what becomes of
//! them.

use crate::step::input::{Reply, Wake};
use crate::volatile::confirmations::{Ack, Confirmation, Confirmations, TicketGrant};
use crate::volatile::sessions::Session;
use crate::volatile::unsent::{AckWait, HeldBack, OwnLevels};
use crate::{End, EpochMs, Hold, Now, Owner, Refusal, Token, Volatile, WaiterId};

/// The result of an acknowledgment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acked {
    /// A blocked connection gets its reply.
    Tells(Wake),
    /// The ticket of this owner has its turn.
    Turn(Owner),
    /// Nothing to report.
    Nothing,
}

impl Volatile {
    pub(crate) fn acks_mut(&mut self) -> &mut Confirmations {
        self.acks.get_or_insert_default()
    }

    pub(crate) fn turn(&self, token: Token) -> Option<&TicketGrant> {
        self.acks.as_deref()?.turn(token)
    }

    /// How many acknowledgments a pending hold needs.
    pub(crate) fn pending_acks(&self, token: Token) -> Option<u8> {
        self.acks.as_deref()?.pending_acks(token)
    }

    /// The owner says that it is at a lower depth, by so many levels: those of which nobody was
    /// told end first.
    pub(crate) fn end_pending(&mut self, token: Token, levels: u16) {
        for _ in 0..levels {
            let acks = self.acks.as_deref_mut();
            let is_one = self.unsent.end_pending_level(token)
                || acks.is_some_and(|acks| acks.end_level(token));
            if !is_one {
                return;
            }
        }
    }

    /// How many levels of this hold wait for acknowledgments, and the most that one of them needs.
    fn pending_levels(&self, token: Token) -> (u16, u8) {
        let turn = self.turn(token).filter(|turn| turn.adds()).map(|turn| turn.acks);
        let levels = self.unsent.pending_levels(token).chain(turn);
        levels.fold((0, 0), |(count, most): (u16, u8), acks| {
            (count.saturating_add(1), most.max(acks))
        })
    }

    /// Levels were released or revoked, and so many are left. If the owner was told of none of
    /// them, the hold is pending again.
    pub(crate) fn levels_remain(&mut self, token: Token, left: u16) {
        self.unsent.lower(token, left);
        let Some(acks) = self.acks.as_deref_mut() else { return };
        acks.lower_turn(token, left);
        let (unheard, most) = self.pending_levels(token);
        if unheard >= left {
            self.acks_mut().begin(token, most);
        }
    }

    /// How many acknowledgments a request of the owner of `held` needs: as many as it asks for,
    /// and at least as many as the hold if that is pending, or as the pending levels without which
    /// the hold is not as deep as the request asks.
    pub(crate) fn acks_for(&self, asked: u8, held: Option<Hold>, depth: Option<u16>) -> u8 {
        let Some(hold) = held.filter(|_| self.acks.is_some()) else { return asked };
        let pending = self.pending_acks(hold.token).unwrap_or(0);
        // If the first level is pending, the hold is.
        let shared = depth.filter(|depth| *depth > 1).map_or(0, |depth| {
            let (count, most) = self.pending_levels(hold.token);
            if depth > hold.depth.saturating_sub(count) { most } else { 0 }
        });
        asked.max(pending).max(shared)
    }

    /// Whether replicas have acknowledged the hold with this token.
    pub fn confirmation(&self, token: Token) -> Confirmation {
        self.acks.as_deref().map_or(Confirmation::None, |acks| acks.of(token))
    }

    /// A blocked connection was granted, but replicas have not acknowledged that yet.
    pub fn is_pending(&self, waiter: WaiterId) -> bool {
        self.unsent.ack_wait(waiter).is_some()
    }

    /// Number of callers whose reply waits for acknowledgments.
    pub fn pending_count(&self) -> usize {
        self.unsent.pending()
    }

    /// Number of those whose request is for this lock alone.
    pub fn pending_alone(&self) -> usize {
        self.unsent.pending_alone()
    }

    /// Holds back the reply to a grant until replicas have acknowledged it.
    pub(crate) fn await_acks(
        &mut self,
        waiter: WaiterId,
        (token, levels): (Token, OwnLevels),
        wait: AckWait,
        begins: bool,
    ) {
        let acks = self.acks_mut();
        if begins {
            acks.begin(token, wait.acks);
        }
        if !wait.is_of_several {
            acks.ask(wait.acks, Ack::Wait(waiter));
        }
        self.unsent.insert_pending(waiter, (token, levels), wait);
    }

    /// Holds back the reply to a renewal until replicas have acknowledged it.
    pub(crate) fn await_acks_of_renewal(
        &mut self,
        waiter: WaiterId,
        Hold { token, depth, .. }: Hold,
        (acks, is_of_several): (u8, bool),
        (deadline, until): (EpochMs, EpochMs),
        now: Now,
    ) {
        let (since, granted_at, reply) = (now, now, HeldBack::Renewal);
        let wait = AckWait { acks, until, deadline, since, granted_at, reply, is_of_several };
        let levels = OwnLevels::new([depth; 2], Some(1));
        self.await_acks(waiter, (token, levels), wait, false);
    }

    /// What replicas are to acknowledge, since the last call.
    pub fn take_asked(&mut self) -> Vec<(u8, Ack)> {
        self.acks.as_deref_mut().map_or_else(Vec::new, Confirmations::take_asked)
    }

    /// Enough replicas have acknowledged this.
    pub fn acked(&mut self, ack: Ack, now: Now) -> Acked {
        match ack {
            Ack::Wait(waiter) => self.tell(waiter, now).map_or(Acked::Nothing, Acked::Tells),
            Ack::Ticket(token, number) => {
                let turn = self.acks.as_deref_mut().and_then(|acks| acks.acked(token, number));
                turn.map_or(Acked::Nothing, |turn| Acked::Turn(turn.ticket.owner.clone()))
            }
            // Its owner asked for more meanwhile: they are asked for once more.
            Ack::Deadline(token, until, by) => {
                match self.sessions.acks_of(token) {
                    acks if acks > by => self.ask_deadline(token, until, acks),
                    // An old one that comes late takes nothing back.
                    _ => self.sessions.lasts_at_least(token, until),
                }
                Acked::Nothing
            }
            // The manager tells at all of its locks.
            Ack::Several(_) => Acked::Nothing,
        }
    }

    /// Whether the reply to this caller may leave when replicas have acknowledged it: its hold has
    /// not expired.
    pub(crate) fn can_tell(&self, waiter: WaiterId, now: Now) -> bool {
        self.unsent.ack_wait(waiter).is_some_and(|wait| !wait.deadline.is_over_at(now))
    }

    /// The reply to this caller, which replicas have acknowledged.
    pub(crate) fn tell(&mut self, waiter: WaiterId, now: Now) -> Option<Wake> {
        // Otherwise the hold has expired and is about to be ended.
        if !self.can_tell(waiter, now) {
            return None;
        }
        let (token, wait) = self.unsent.open(waiter)?;
        self.is_told(token, waiter);
        if let HeldBack::Session(client, lease) = wait.reply {
            let session = Session::new(client, lease, now).by_acks(wait.acks, wait.deadline);
            self.tie_unsent(token, waiter, session);
        } else if wait.acks >= self.sessions.acks_of(token) {
            self.sessions.lasts_at_least(token, wait.deadline);
        }
        let reply = match wait.reply {
            HeldBack::Renewal => Reply::Renewed,
            _ => Reply::Granted { token, remaining_ms: wait.deadline.left_at(now) },
        };
        let since = |at: Now| now.us().saturating_sub(at.us());
        let (waited_us, acks_us) = (since(wait.since), Some(since(wait.granted_at)));
        Some(Wake { waiter, reply, waited_us, holds: 1, acks_us })
    }

    /// The owner of this hold is told of it. What was confirmed stays: if other grants are taken
    /// back, the hold keeps the levels on which this one counts.
    fn is_told(&mut self, token: Token, waiter: WaiterId) {
        self.acks_mut().tell(token);
        let turn = self.turn(token).map_or(0, |turn| turn.level);
        if self.unsent.takes_levels(token, waiter, turn) {
            self.acks_mut().take_turn(token);
            self.unsent.add_level(waiter);
        }
    }

    /// The owner of a ticket for several locks asked again and is told of its hold here. Returns
    /// the hold, and the deadline that replicas have acknowledged.
    pub(crate) fn tell_ticket(&mut self, grant: WaiterId) -> Option<(Token, EpochMs)> {
        let (token, wait) = self.unsent.open(grant)?;
        self.is_told(token, grant);
        self.unsent.remove(grant);
        Some((token, wait.deadline))
    }

    /// Replicas have acknowledged the hold of a ticket for several locks, or are asked anew: its
    /// owner is to be told by then.
    pub(crate) fn ticket_lasts(&mut self, grant: WaiterId, until: EpochMs) {
        let deadline = self.unsent.ack_wait(grant).map(|wait| wait.deadline);
        if let Some(deadline) = deadline {
            self.unsent.wait_until(grant, until.min(deadline));
        }
    }

    /// Whether an acknowledgment of this still matters.
    pub(crate) fn awaits(&self, what: Ack) -> bool {
        match what {
            Ack::Wait(waiter) => self.is_pending(waiter),
            Ack::Ticket(token, number) => self.turn(token).is_some_and(|it| it.asked == number),
            Ack::Deadline(token, ..) => self.sessions.acks_of(token) > 0,
            Ack::Several(waiter) => self.is_pending(waiter),
        }
    }

    /// A session was renewed: the new deadline counts once enough replicas have acknowledged it.
    pub(crate) fn renewed(&mut self, token: Token, deadline: EpochMs) {
        match self.sessions.acks_of(token) {
            0 => self.sessions.lasts_until(token, deadline),
            acks => self.ask_deadline(token, deadline, acks),
        }
    }

    fn ask_deadline(&mut self, token: Token, deadline: EpochMs, acks: u8) {
        self.acks_mut().ask(acks, Ack::Deadline(token, deadline, acks));
    }

    /// Refuses pending callers whose time is up, without opening the lock: their grants are taken
    /// back with the next input.
    pub(crate) fn late_alone(&mut self, now: Now, portion: &mut usize) -> Vec<Wake> {
        let mut wakes = Vec::new();
        while let Some((waiter, since)) = self.unsent.first_over(now) {
            let Some(left) = portion.checked_sub(1) else {
                self.unfinished = Some(now.ms());
                break;
            };
            *portion = left;
            self.leave(waiter);
            wakes.push(no_acks(waiter, since, Refusal::NoAcks, now));
        }
        wakes
    }

    /// Forgets all acknowledgments, and so many of the callers that wait for them; returns those.
    pub(crate) fn forget_pending(&mut self, portion: &mut usize) -> Vec<(WaiterId, Now)> {
        self.acks = None;
        let pending = self.unsent.take_pending(*portion);
        *portion = portion.saturating_sub(pending.len());
        pending
    }

    /// Ends one ticket's turn whose time is up, and takes its level back. False if there is none.
    pub(crate) fn turn_is_over(&mut self, now: Now) -> bool {
        let Some(acks) = self.acks.as_deref_mut() else { return false };
        let Some(token) = acks.first_over(now) else { return false };
        if let Some(turn) = acks.take_turn(token) {
            if turn.adds() {
                self.unsent.revoke_turn(token, turn.level);
            }
            self.stand_again(turn, now);
        }
        true
    }

    /// Puts a ticket whose hold ended before its owner was told back in front of the queue, for the
    /// rest of its window.
    pub(crate) fn stand_again(&mut self, turn: TicketGrant, now: Now) {
        let lasts = turn.ticket.ends_at.is_some_and(|ends_at| !ends_at.is_over_at(now));
        // An owner whose READ and WRITE both ended has one place.
        let has_place = self.queue.ticket_of(turn.ticket.owner.as_bytes()).is_some();
        if turn.begins && lasts && !has_place {
            self.queue.push_front(turn.ticket);
        }
    }

    /// A hold has ended: refuses the pending callers, and may put a ticket back into the queue.
    pub(crate) fn end_acks(&mut self, token: Token, by: End, now: Now) -> Vec<Wake> {
        let Some(acks) = self.acks.as_deref_mut() else { return Vec::new() };
        if let Some(turn) = acks.end(token)
            && by == End::Expired
        {
            self.stand_again(turn, now);
        }
        let pending = self.unsent.remove_pending(token).into_iter();
        pending.map(|(waiter, since)| no_acks(waiter, since, Refusal::NoAcks, now)).collect()
    }

    /// Gives up a ticket's turn that its owner has not been told of, and takes its level back.
    /// False if there is none.
    pub(crate) fn give_up_turn(&mut self, token: Token) -> bool {
        let turn = self.acks.as_deref_mut().and_then(|acks| acks.take_turn(token));
        if let Some(turn) = turn.as_ref().filter(|turn| turn.adds()) {
            self.unsent.revoke_turn(token, turn.level);
        }
        turn.is_some()
    }

    /// Forgets confirmations of holds that no longer exist.
    pub(crate) fn forget_acks(&mut self, is_there: impl Fn(Token) -> bool) {
        if let Some(acks) = self.acks.as_deref_mut() {
            acks.retain(is_there);
        }
    }
}

pub(crate) fn no_acks(waiter: WaiterId, since: Now, why: Refusal, now: Now) -> Wake {
    let waited_us = now.us().saturating_sub(since.us());
    Wake { waiter, reply: Reply::Refused(why), waited_us, holds: 1, acks_us: None }
}
