//! Grants whose reply waits for acknowledgments: what is remembered of them, and what becomes of
//! them.

use crate::step::input::{Reply, Wake};
use crate::volatile::confirmations::{Ack, Confirmation, Confirmations, TicketGrant};
use crate::volatile::levels::Asked;
use crate::volatile::sessions::Session;
use crate::volatile::unsent::{AckWait, HeldBack};
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

    /// The owner released one level, or all but so many (`is_down_to`), and so many are left.
    pub(crate) fn released(&mut self, token: Token, left: u16, is_down_to: bool) {
        if !is_down_to {
            self.unsent.levels.release_one(token, left);
        } else {
            self.unsent.levels.cap(token, left);
            // The ticket's owner asks for its level anew.
            if self.turn(token).is_some_and(|turn| turn.depth() > left) {
                self.revoke_turn(token);
            }
        }
        if let Some(acks) = self.acks.as_deref_mut() {
            acks.lower_turn(token, left);
        }
        self.levels_remain(token);
    }

    /// Levels were released or revoked. If the owner was told of none that are left, the hold is
    /// pending again.
    pub(crate) fn levels_remain(&mut self, token: Token) {
        let Some(acks) = self.acks.as_deref_mut() else { return };
        if let Some((0, most @ 1..)) = self.unsent.levels.told_depth(token) {
            acks.begin(token, most);
        }
    }

    /// How many acknowledgments a request of the owner of `held` needs: as many as it asks for,
    /// and at least as many as the hold if that is pending, or as the pending levels without which
    /// the hold is not as deep as the request asks.
    pub(crate) fn acks_for(&self, asked: u8, held: Option<Hold>, depth: Option<u16>) -> u8 {
        let Some(hold) = held.filter(|_| self.acks.is_some()) else { return asked };
        let pending = self.pending_acks(hold.token).unwrap_or(0);
        // If the first level is pending, the hold is.
        let shared = depth.filter(|depth| *depth > 1).and_then(|depth| {
            let (told, most) = self.unsent.levels.told_depth(hold.token)?;
            (depth > told).then_some(most)
        });
        asked.max(pending).max(shared.unwrap_or(0))
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
        (token, asked): (Token, Asked),
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
        self.unsent.insert_pending(waiter, (token, asked), wait);
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
        self.await_acks(waiter, (token, Asked::new(depth, Some(1))), wait, false);
    }

    /// What replicas are to acknowledge, since the last call.
    pub fn take_asked(&mut self) -> Vec<(u8, Ack)> {
        self.acks.as_deref_mut().map_or_else(Vec::new, Confirmations::take_asked)
    }

    /// So many replicas have acknowledged this.
    pub fn acked(&mut self, ack: Ack, acks: u8, now: Now) -> Acked {
        match ack {
            // It may need more acknowledgments than when they were asked for.
            Ack::Wait(waiter) if self.unsent.ack_wait(waiter).is_some_and(|it| it.acks > acks) => {
                Acked::Nothing
            }
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
        self.acks_mut().tell(token);
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
        Some(Wake { waited_us, acks_us, ..Wake::of(waiter, reply) })
    }

    /// The owner of a ticket asked again before it may be told: the ticket lasts until then, and
    /// more acknowledgments may be asked for than before.
    pub(crate) fn keep_turn(
        &mut self,
        token: Token,
        lasts: EpochMs,
        asks: (u8, u64),
        late_at: EpochMs,
    ) {
        let acks = self.acks_mut();
        acks.keep_turn(token, lasts);
        acks.raise_turn(token, asks, late_at);
        if let Some(turn) = acks.turn(token) {
            let (request, acks) = (turn.request, turn.acks);
            self.unsent.levels.needs(token, request, acks);
        }
    }

    /// The owner of a ticket asked again, for this depth, and is told of its hold here; a blocked
    /// connection, `waiter`, hears of it later.
    pub(crate) fn tell_turn(&mut self, token: Token, asked: Option<u16>, waiter: Option<WaiterId>) {
        let acks = self.acks_mut();
        acks.tell(token);
        let Some(turn) = acks.take_turn(token) else { return };
        let asked = Asked { instead: Some(turn.request), ..Asked::new(0, asked) };
        if let Some(waiter) = waiter {
            return self.unsent.insert(waiter, token, asked);
        }
        self.unsent.levels.insert(token, (None, 0), asked);
        // What others were granted of it and have not heard of does not end it any more.
        self.unsent.owner_knows(token);
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
        for (token, request) in self.acks.take().map_or_else(Vec::new, |acks| acks.requests()) {
            self.unsent.levels.remove(token, request);
        }
        let pending = self.unsent.take_pending(*portion);
        *portion = portion.saturating_sub(pending.len());
        pending
    }

    /// Ends one ticket's turn whose time is up, and takes its level back. False if there is none.
    pub(crate) fn turn_is_over(&mut self, now: Now) -> bool {
        let Some(acks) = self.acks.as_deref_mut() else { return false };
        let Some(token) = acks.first_over(now) else { return false };
        let is_pending = acks.pending_acks(token).is_some();
        let turn = self.revoke_turn(token);
        if let Some(turn) = turn.filter(|_| is_pending) {
            self.stand_again(turn, now);
        }
        true
    }

    /// Ends a ticket's turn, and takes back the levels that the hold has only by it.
    fn revoke_turn(&mut self, token: Token) -> Option<TicketGrant> {
        let turn = self.acks.as_deref_mut()?.take_turn(token)?;
        self.unsent.revoke(token, turn.request, End::Unconfirmed);
        Some(turn)
    }

    /// Forgets a ticket's turn: its hold has ended, or another request has its levels now.
    pub(crate) fn forget_turn(&mut self, token: Token) -> Option<TicketGrant> {
        let turn = self.acks.as_deref_mut()?.take_turn(token)?;
        self.unsent.levels.remove(token, turn.request);
        Some(turn)
    }

    /// Puts a ticket whose hold ended before its owner was told back in front of the queue, for the
    /// rest of its window.
    pub(crate) fn stand_again(&mut self, turn: TicketGrant, now: Now) {
        let lasts = turn.ticket.ends_at.is_some_and(|ends_at| !ends_at.is_over_at(now));
        // An owner whose READ and WRITE both ended has one place.
        let has_place = self.queue.ticket_of(turn.ticket.owner.as_bytes()).is_some();
        if lasts && !has_place {
            self.queue.push_front(turn.ticket);
        }
    }

    /// A hold has ended: refuses the pending callers, and may put a ticket back into the queue.
    pub(crate) fn end_acks(&mut self, token: Token, by: End, now: Now) -> Vec<Wake> {
        let Some(acks) = self.acks.as_deref_mut() else { return Vec::new() };
        let is_pending = acks.end(token);
        if let Some(turn) = self.forget_turn(token)
            && is_pending
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
        self.revoke_turn(token).is_some()
    }

    /// Forgets confirmations of holds that no longer exist.
    pub(crate) fn forget_acks(&mut self, is_there: impl Fn(Token) -> bool) {
        let gone = self.acks.as_deref().map_or_else(Vec::new, |acks| acks.gone(is_there));
        for token in gone {
            self.forget_turn(token);
            self.acks_mut().end(token);
        }
    }
}

pub(crate) fn no_acks(waiter: WaiterId, since: Now, why: Refusal, now: Now) -> Wake {
    let waited_us = now.us().saturating_sub(since.us());
    Wake { waited_us, ..Wake::of(waiter, Reply::Refused(why)) }
}
