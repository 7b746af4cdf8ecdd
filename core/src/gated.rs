//! Grants whose reply waits for acknowledgements, and which are taken back if those do not come.
//! The hold exists from its grant on, but nobody is told of it before.

use std::borrow::Cow;

use crate::acks::{Ack, Acks, Confirmation, Turn};
use crate::fresh::{Gate, Grant};
use crate::input::{Acquire, Effects, Moment, Parking, Patience, Reply, Wake};
use crate::queue::{Entry, Kind};
use crate::sessions::Session;
use crate::{
    Change, End, EpochMs, Hold, LeaseMs, Lock, Memory, Now, Owner, Refusal, Token, WaiterId,
};

/// The result of an acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acked {
    /// A blocked connection gets its reply.
    Tells(Wake),
    /// The ticket of this owner has its turn.
    Turn(Owner),
    /// Nothing to report.
    Nothing,
}

/// A grant whose reply waits for this many replicas.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) acks: u8,
    /// What the owner held before.
    pub(crate) held: Option<Hold>,
    /// How the caller is blocked; `None` if it is not.
    pub(crate) parking: Option<Parking>,
}

impl Lock {
    /// Grants an `RLOCK.ACQUIRE`, and replies when replicas have acknowledged the grant.
    pub(crate) fn acquire_gated<'a>(
        &mut self,
        ask: Acquire<'a>,
        told: Told,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        let now = moment.now;
        let turn = told.held.and_then(|hold| Some((hold, memory.turn(hold.token)?)));
        if let Some((hold, Turn { is_acked: true, acks, deadline, .. })) = turn
            && *acks >= told.acks
            && *deadline >= now.after(ask.lease)
        {
            let deadline = *deadline;
            return self.tell_turn(ask, told.acks, (hold, deadline), memory, now, effects);
        }
        if let Patience::Ticket(window) = ask.patience {
            if let Some((hold, Turn { deadline, .. })) = turn {
                let late_at = late_at(moment, None, *deadline);
                let acks = memory.acks_mut();
                acks.keep_turn(hold.token, now.after(window));
                acks.raise_turn(hold.token, told.acks, late_at);
                return Reply::NotNow { wait_ms: None };
            }
            // Its own blocked connection gets its reply first.
            if told.held.is_some_and(|hold| memory.untold(hold.token).is_some()) {
                return Reply::NotNow { wait_ms: None };
            }
            return self.take_turn(ask, told, window, memory, moment, effects);
        }
        let Some(Parking { waiter, ends_at, .. }) = told.parking else {
            return Reply::MustConfirm;
        };
        let adds = turn.map(|(_, turn)| turn.adds);
        let depth = match told.held {
            Some(hold) if adds.is_some() => Some(hold.depth),
            _ => ask.depth,
        };
        let reply = match told.held {
            Some(hold) => self.enter_again(depth, ask.lease, hold, moment, effects),
            None => {
                let owner = Cow::Borrowed(ask.owner);
                self.enter(owner, ask.mode, ask.lease, memory, moment, effects)
            }
        };
        let Reply::Granted { token, .. } = reply else { return reply };
        if adds.is_some() {
            memory.acks_mut().take_turn(token);
        }
        let (after, deadline) = self.levels(token, now);
        let gate = Gate {
            acks: told.acks,
            until: late_at(moment, ends_at, deadline),
            deadline,
            since: now,
            granted_at: now,
            session: ask.session.map(|client| (client, ask.lease)),
            is_renewal: false,
        };
        let adds = adds.unwrap_or(after > told.held.map_or(0, |before| before.depth));
        memory.gate(waiter, Grant { token, adds }, gate, told.held.is_none());
        self.granted(ask.owner, memory, moment, effects);
        Reply::Pending
    }

    /// The depth and the deadline of a hold; 0 and `now` if there is none.
    pub(crate) fn levels(&self, token: Token, now: Now) -> (u16, EpochMs) {
        let hold = self.holders.by_token(token);
        hold.map_or((0, now.ms()), |(_, hold)| (hold.depth, hold.deadline))
    }

    /// A ticket's owner asks again for the hold that it was granted: it gets the token, and no
    /// level is added.
    fn tell_turn<'a>(
        &mut self,
        ask: Acquire<'a>,
        acks: u8,
        (hold, deadline): (Hold, EpochMs),
        memory: &mut Memory,
        now: Now,
        effects: &mut Effects<'a>,
    ) -> Reply {
        let Hold { token, depth, .. } = hold;
        self.record(Change::Held { token, depth, deadline: hold.deadline }, effects);
        memory.acks_mut().take_turn(token);
        memory.acks_mut().tell(token);
        memory.acks_mut().take_turn(token);
        if let Some(client) = ask.session {
            let session = Session::new(client, ask.lease, now).by_acks(acks, deadline);
            memory.sessions.tie(token, session);
        }
        Reply::Granted { token, left_ms: deadline.left_at(now) }
    }

    /// Grants a ticket whose owner asks in its turn: the hold begins, and the owner gets the token
    /// when it asks again.
    fn take_turn<'a>(
        &mut self,
        ask: Acquire<'a>,
        told: Told,
        window: LeaseMs,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        // The owner counts the lease from when it asks again.
        let lease = LeaseMs::new(ask.lease.get().saturating_add(window.get()));
        let lease = lease.unwrap_or(LeaseMs::MAX);
        let reply = match told.held {
            Some(hold) => self.enter_again(ask.depth, lease, hold, moment, effects),
            None => {
                let owner = Cow::Borrowed(ask.owner);
                self.enter(owner, ask.mode, lease, memory, moment, effects)
            }
        };
        let Reply::Granted { token, .. } = reply else { return reply };
        let (depth, deadline) = self.levels(token, moment.now);
        let ends_at = moment.now.after(window);
        let turn = Turn {
            ticket: Entry::new(&ask, Kind::Ticket, Some(ends_at), moment.now),
            adds: depth > told.held.map_or(0, |before| before.depth),
            begins: told.held.is_none(),
            acks: told.acks,
            is_acked: false,
            late_at: late_at(moment, None, deadline),
            told_by: ends_at,
            deadline,
            look_at: deadline,
        };
        let acks = memory.acks_mut();
        if turn.begins {
            acks.begin(token, told.acks);
        }
        acks.give_turn(token, turn);
        acks.ask(told.acks, Ack::Ticket(token, told.acks));
        self.granted(ask.owner, memory, moment, effects);
        Reply::NotNow { wait_ms: None }
    }

    /// Takes back the levels of grants that can no longer be confirmed: the acknowledgements did
    /// not come in time, or the ticket's owner did not ask. False when the portion is used up.
    pub(crate) fn be_late(
        &self,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'_>,
    ) -> bool {
        while memory.next_late().is_some_and(|at| at.is_over_at(moment.now)) {
            if !moment.take() {
                memory.unfinished = Some(moment.now.ms());
                return false;
            }
            match memory.fresh.first_over(moment.now) {
                Some((waiter, since)) => {
                    memory.leave(waiter);
                    effects.wakes.push(no_acks(waiter, since, Refusal::NoAcks, moment.now));
                }
                None if memory.turn_is_over(moment.now) => {}
                None => return true,
            }
        }
        true
    }

    /// Something other than RLOCK changed the key: refuses the pending callers whose hold no longer
    /// exists.
    pub fn lost_grants(&self, memory: &mut Memory, now: Now) -> Vec<Wake> {
        let is_there = |token: Token| {
            let hold = self.holders.by_token(token);
            hold.is_some_and(|(_, hold)| !hold.deadline.is_over_at(now))
        };
        let mut wakes = Vec::new();
        for token in memory.fresh.gated_tokens().into_iter().filter(|token| !is_there(*token)) {
            let why = match memory.fresh.lasts(token, now) {
                true => Refusal::NoAcksMoved,
                false => Refusal::NoAcks,
            };
            let gated = memory.fresh.remove_gated(token).into_iter();
            wakes.extend(gated.map(|(waiter, since)| no_acks(waiter, since, why.clone(), now)));
        }
        memory.forget_acks(is_there);
        wakes
    }
}

/// When a confirmation is too late: the earliest of the caller's patience, the setting, and the
/// hold's deadline.
pub(crate) fn late_at(moment: &Moment<'_>, ends_at: Option<EpochMs>, deadline: EpochMs) -> EpochMs {
    let late_at = moment.now.after_ms(moment.confirm_ms).min(deadline);
    ends_at.map_or(late_at, |ends_at| ends_at.min(late_at))
}

fn no_acks(waiter: WaiterId, since: Now, why: Refusal, now: Now) -> Wake {
    let waited_us = now.us().saturating_sub(since.us());
    Wake { waiter, reply: Reply::Refused(why), waited_us, acks_us: None }
}

impl Memory {
    /// Number of holds that are tied to a connection, or will be once they are confirmed.
    pub fn session_count(&self) -> usize {
        self.sessions.len().saturating_add(self.fresh.sessions())
    }

    pub(crate) fn acks_mut(&mut self) -> &mut Acks {
        self.acks.get_or_insert_default()
    }

    fn turn(&self, token: Token) -> Option<&Turn> {
        self.acks.as_deref()?.turn(token)
    }

    /// How many acknowledgements a pending hold needs.
    pub(crate) fn untold(&self, token: Token) -> Option<u8> {
        self.acks.as_deref()?.untold(token)
    }

    /// The owner says that it is at a lower depth, by so many levels: those of which nobody was
    /// told end first.
    pub(crate) fn end_unheard(&mut self, token: Token, levels: u16) {
        for _ in 0..levels {
            let acks = self.acks.as_deref_mut();
            let is_one =
                self.fresh.end_gated_level(token) || acks.is_some_and(|acks| acks.end_level(token));
            if !is_one {
                return;
            }
        }
    }

    /// Levels were released or taken back, and so many are left. If the owner was told of none of
    /// them, the hold is pending again.
    pub(crate) fn left_with(&mut self, token: Token, left: u16) {
        if self.acks.is_none() {
            return;
        }
        let turn = self.turn(token).filter(|turn| turn.adds).map(|turn| turn.acks);
        let (mut unheard, mut most): (u16, u8) = (0, 0);
        for acks in self.fresh.gated_levels(token).chain(turn) {
            (unheard, most) = (unheard.saturating_add(1), most.max(acks));
        }
        if unheard >= left {
            self.acks_mut().begin(token, most);
        }
    }

    /// How many acknowledgements a request of the owner of `held` needs: as many as it asks for,
    /// and at least as many as the hold if that is pending.
    pub(crate) fn acks_for(&self, asked: u8, held: Option<Hold>) -> u8 {
        let untold = held.and_then(|hold| self.untold(hold.token));
        asked.max(untold.unwrap_or(0))
    }

    /// Whether replicas have acknowledged the hold with this token.
    pub fn confirmation(&self, token: Token) -> Confirmation {
        self.acks.as_deref().map_or(Confirmation::None, |acks| acks.of(token))
    }

    /// A blocked connection was granted, but replicas have not acknowledged that yet.
    pub fn is_gated(&self, waiter: WaiterId) -> bool {
        self.fresh.gate(waiter).is_some()
    }

    /// Number of callers whose reply waits for acknowledgements.
    pub fn gated_count(&self) -> usize {
        self.fresh.gated()
    }

    /// Holds back the reply to a grant until replicas have acknowledged it.
    pub(crate) fn gate(&mut self, waiter: WaiterId, grant: Grant, gate: Gate, begins: bool) {
        let acks = self.acks_mut();
        if begins {
            acks.begin(grant.token, gate.acks);
        }
        acks.ask(gate.acks, Ack::Wait(waiter));
        self.fresh.insert_gated(waiter, grant, gate);
    }

    /// Holds back the reply to a renewal until replicas have acknowledged it.
    pub(crate) fn gate_renewal(
        &mut self,
        waiter: WaiterId,
        token: Token,
        acks: u8,
        deadline: EpochMs,
        moment: &Moment<'_>,
    ) {
        let (until, now) = (late_at(moment, None, deadline), moment.now);
        let (since, granted_at, session) = (now, now, None);
        let gate = Gate { acks, until, deadline, since, granted_at, session, is_renewal: true };
        self.gate(waiter, Grant { token, adds: false }, gate, false);
    }

    /// What replicas are to acknowledge, since the last call.
    pub fn take_asked(&mut self) -> Vec<(u8, Ack)> {
        self.acks.as_deref_mut().map_or_else(Vec::new, Acks::take_asked)
    }

    /// Enough replicas have acknowledged this.
    pub fn acked(&mut self, ack: Ack, now: Now) -> Acked {
        match ack {
            Ack::Wait(waiter) => self.tell(waiter, now).map_or(Acked::Nothing, Acked::Tells),
            Ack::Ticket(token, by) => {
                let turn = self.acks.as_deref_mut().and_then(|acks| acks.acked(token, by));
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
        }
    }

    fn tell(&mut self, waiter: WaiterId, now: Now) -> Option<Wake> {
        // Otherwise the hold has expired and is about to be ended.
        self.fresh.gate(waiter).filter(|gate| !gate.deadline.is_over_at(now))?;
        let (Grant { token, adds }, gate) = self.fresh.open(waiter)?;
        let is_first = self.acks_mut().tell(token);
        // What was confirmed stays: if another grant is taken back, the hold keeps its first level.
        if is_first
            && !adds
            && !self.fresh.take_level(token, waiter)
            && self.acks_mut().take_turn(token).is_some_and(|turn| turn.adds)
        {
            self.fresh.add_level(waiter);
        }
        if let Some((client, lease)) = gate.session {
            let session = Session::new(client, lease, now).by_acks(gate.acks, gate.deadline);
            self.sessions.tie_untold(token, waiter, session);
        } else if gate.acks >= self.sessions.acks_of(token) {
            self.sessions.lasts_at_least(token, gate.deadline);
        }
        let reply = match gate.is_renewal {
            true => Reply::Count(1),
            false => Reply::Granted { token, left_ms: gate.deadline.left_at(now) },
        };
        let since = |at: Now| now.us().saturating_sub(at.us());
        let (waited_us, acks_us) = (since(gate.since), Some(since(gate.granted_at)));
        Some(Wake { waiter, reply, waited_us, acks_us })
    }

    /// Whether an acknowledgement of this still matters.
    pub(crate) fn awaits(&self, what: Ack) -> bool {
        match what {
            Ack::Wait(waiter) => self.is_gated(waiter),
            Ack::Ticket(token, by) => self.turn(token).is_some_and(|turn| turn.acks <= by),
            Ack::Deadline(token, ..) => self.sessions.acks_of(token) > 0,
        }
    }

    /// When to sweep next, as far as the lock itself does not say so.
    pub(crate) fn next_alarm(&self) -> Option<EpochMs> {
        let next = [
            self.queue.next_look(),
            self.sessions.next_renewal(),
            self.sessions.next_end_by_acks(),
            self.next_late(),
            self.grace.filter(|_| !self.queue.is_empty()),
        ];
        next.into_iter().flatten().min()
    }

    /// When the next confirmation is too late.
    pub(crate) fn next_late(&self) -> Option<EpochMs> {
        let turn = self.acks.as_deref().and_then(Acks::next_look);
        [self.fresh.next_over(), turn].into_iter().flatten().min()
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
        while let Some((waiter, since)) = self.fresh.first_over(now) {
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

    /// Forgets all acknowledgements, and so many of the callers that wait for them; returns those.
    pub(crate) fn forget_gated(&mut self, portion: &mut usize) -> Vec<(WaiterId, Now)> {
        self.acks = None;
        let gated = self.fresh.take_gated(*portion);
        *portion = portion.saturating_sub(gated.len());
        gated
    }

    /// Ends one ticket's turn whose time is up, and takes its level back. False if there is none.
    fn turn_is_over(&mut self, now: Now) -> bool {
        let Some(acks) = self.acks.as_deref_mut() else { return false };
        let Some(token) = acks.first_over(now) else { return false };
        if let Some(turn) = acks.take_turn(token) {
            if turn.adds && !self.fresh.pass_on(token) {
                self.take_back_later(token, End::Unconfirmed);
            }
            self.stand_again(turn, now);
        }
        true
    }

    /// Puts a ticket whose hold ended before its owner was told back in front of the queue, for the
    /// rest of its window.
    pub(crate) fn stand_again(&mut self, turn: Turn, now: Now) {
        let lasts = turn.ticket.ends_at.is_some_and(|ends_at| !ends_at.is_over_at(now));
        if turn.begins && lasts {
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
        let gated = self.fresh.remove_gated(token).into_iter();
        gated.map(|(waiter, since)| no_acks(waiter, since, Refusal::NoAcks, now)).collect()
    }

    /// Gives up a ticket's turn that its owner has not been told of, and takes its level back.
    /// False if there is none.
    pub(crate) fn give_up_turn(&mut self, token: Token) -> bool {
        let turn = self.acks.as_deref_mut().and_then(|acks| acks.take_turn(token));
        if turn.as_ref().is_some_and(|turn| turn.adds) && !self.fresh.pass_on(token) {
            self.take_back_later(token, End::Unconfirmed);
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
