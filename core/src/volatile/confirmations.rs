//! What replicas must acknowledge before a reply, for the holds of one lock.

use std::collections::{BTreeMap, BTreeSet};

use crate::volatile::queue::Entry;
use crate::{EpochMs, Now, Token, WaiterId};

/// What waits for acknowledgments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ack {
    /// The grant or renewal of a blocked connection.
    Wait(WaiterId),
    /// A hold that was granted to a ticket, as of the request with this number.
    Ticket(Token, u64),
    /// A session's deadline, by this many replicas.
    Deadline(Token, EpochMs, u8),
    /// The grant or renewal of several locks, once for all of them.
    Several(WaiterId),
}

/// Whether replicas have acknowledged a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// The hold needs no acknowledgments.
    None,
    /// Not yet, so nobody has been told of the hold.
    Pending,
    /// Enough of them have.
    Done,
}

impl Confirmation {
    /// As in `RLOCK.INFO`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pending => "pending",
            Self::Done => "done",
        }
    }
}

/// A hold that was granted to a ticket whose owner has not asked again since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TicketGrant {
    /// The ticket's entry, in case it must go back into the queue.
    pub(crate) ticket: Entry,
    /// Its request for levels, as [`crate::volatile::levels::LevelRequests`] counts them.
    pub(crate) request: u64,
    /// How deep the hold was with it; no more than is left of that.
    pub(crate) level: u16,
    /// How many replicas must acknowledge it.
    pub(crate) acks: u8,
    /// The number of the request that asked for them: what was acknowledged of an earlier grant of
    /// the same hold says nothing of this one.
    pub(crate) asked: u64,
    /// When the acknowledgments are too late; `None` once enough replicas have acknowledged it, so
    /// that the owner may be told.
    pub(crate) late_at: Option<EpochMs>,
    /// The owner must ask by then: a whole lease of the hold remains at that moment.
    pub(crate) told_by: EpochMs,
    /// The deadline in the reply.
    pub(crate) deadline: EpochMs,
    /// As in [`Confirmations::by_check`].
    pub(crate) check_at: EpochMs,
}

impl TicketGrant {
    /// The depth that it is granted: the one that it asked for, or that of its own level.
    pub(crate) fn depth(&self) -> u16 {
        self.ticket.depth.unwrap_or(self.level)
    }

    /// When the turn ends, because the acknowledgments or the owner came too late.
    pub(crate) fn ends_at(&self) -> EpochMs {
        let asks = self.told_by.min(self.deadline);
        self.late_at.map_or(asks, |late_at| asks.min(late_at))
    }
}

/// Confirmations of the holds of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirmations {
    /// How many acknowledgments each pending hold needs; `None` once its owner was told of it.
    pending: BTreeMap<Token, Option<u8>>,
    turns: BTreeMap<Token, TicketGrant>,
    /// When to check whether a turn has ended: at its end, or earlier if the end was postponed
    /// since.
    by_check: BTreeSet<(EpochMs, Token)>,
    /// What the replicas have not been asked for yet.
    asked: Vec<(u8, Ack)>,
}

impl Confirmations {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { pending, turns, asked, by_check: _ } = self;
        pending.is_empty() && turns.is_empty() && asked.is_empty()
    }

    /// Asks for this many acknowledgments.
    pub(crate) fn ask(&mut self, acks: u8, what: Ack) {
        self.asked.push((acks, what));
    }

    pub(crate) fn take_asked(&mut self) -> Vec<(u8, Ack)> {
        std::mem::take(&mut self.asked)
    }

    /// A hold began that needs this many acknowledgments.
    pub(crate) fn begin(&mut self, token: Token, acks: u8) {
        self.pending.insert(token, Some(acks));
    }

    /// How many acknowledgments a pending hold needs.
    pub(crate) fn pending_acks(&self, token: Token) -> Option<u8> {
        self.pending.get(&token).copied().flatten()
    }

    pub(crate) fn of(&self, token: Token) -> Confirmation {
        match self.pending.get(&token) {
            Some(Some(_)) => Confirmation::Pending,
            Some(None) => Confirmation::Done,
            None => Confirmation::None,
        }
    }

    /// The owner is told of its hold. True if nobody was told before.
    pub(crate) fn tell(&mut self, token: Token) -> bool {
        self.pending.get_mut(&token).is_some_and(|pending| pending.take().is_some())
    }

    /// The hold has ended. True if nobody was told of it.
    pub(crate) fn end(&mut self, token: Token) -> bool {
        self.pending.remove(&token).flatten().is_some()
    }

    /// The holds that no longer exist.
    pub(crate) fn gone(&self, is_there: impl Fn(Token) -> bool) -> Vec<Token> {
        let all = self.pending.keys().chain(self.turns.keys()).copied();
        all.filter(|token| !is_there(*token)).collect()
    }

    /// The requests for levels of the turns.
    pub(crate) fn requests(&self) -> Vec<(Token, u64)> {
        self.turns.iter().map(|(token, turn)| (*token, turn.request)).collect()
    }

    pub(crate) fn give_turn(&mut self, token: Token, mut turn: TicketGrant) {
        self.take_turn(token);
        turn.check_at = turn.ends_at();
        self.by_check.insert((turn.check_at, token));
        self.turns.insert(token, turn);
    }

    /// So many levels of the hold are left.
    pub(crate) fn lower_turn(&mut self, token: Token, left: u16) {
        if let Some(turn) = self.turns.get_mut(&token) {
            turn.level = turn.level.min(left);
        }
    }

    pub(crate) fn turn(&self, token: Token) -> Option<&TicketGrant> {
        self.turns.get(&token)
    }

    /// The ticket's owner asked again, so the ticket lasts until then.
    pub(crate) fn keep_turn(&mut self, token: Token, ends_at: EpochMs) {
        if let Some(turn) = self.turns.get_mut(&token) {
            turn.ticket.ends_at = turn.ticket.ends_at.max(Some(ends_at));
        }
    }

    /// The ticket's owner asked for more acknowledgments than before.
    pub(crate) fn raise_turn(&mut self, token: Token, (acks, asked): (u8, u64), late_at: EpochMs) {
        if let Some(turn) = self.turns.get_mut(&token).filter(|turn| turn.acks < acks) {
            (turn.acks, turn.asked, turn.late_at) = (acks, asked, Some(late_at));
            // After a step back of the clock it may end earlier than it would have.
            let check_at = turn.ends_at().min(turn.check_at);
            self.by_check.remove(&(turn.check_at, token));
            self.by_check.insert((check_at, token));
            turn.check_at = check_at;
            self.ask(acks, Ack::Ticket(token, asked));
        }
    }

    /// Enough replicas have acknowledged the turn, as of this request. Returns it if its owner may
    /// now be told.
    pub(crate) fn acked(&mut self, token: Token, asked: u64) -> Option<&TicketGrant> {
        let is_it = |turn: &&mut TicketGrant| turn.late_at.is_some() && turn.asked == asked;
        let turn = self.turns.get_mut(&token).filter(is_it)?;
        turn.late_at = None;
        Some(turn)
    }

    pub(crate) fn take_turn(&mut self, token: Token) -> Option<TicketGrant> {
        let turn = self.turns.remove(&token)?;
        self.by_check.remove(&(turn.check_at, token));
        Some(turn)
    }

    /// A turn that has ended.
    pub(crate) fn first_over(&mut self, now: Now) -> Option<Token> {
        while let Some((check_at, token)) = self.by_check.first().copied()
            && check_at.is_over_at(now)
        {
            let turn = self.turns.get_mut(&token)?;
            let ends_at = turn.ends_at();
            if ends_at.is_over_at(now) {
                return Some(token);
            }
            self.by_check.remove(&(check_at, token));
            self.by_check.insert((ends_at, token));
            turn.check_at = ends_at;
        }
        None
    }

    pub(crate) fn next_check(&self) -> Option<EpochMs> {
        self.by_check.first().map(|(check_at, _)| *check_at)
    }

    /// Checks that the index agrees with the turns.
    ///
    /// # Errors
    /// What is wrong, for tests.
    pub(crate) fn check(&self) -> Result<(), String> {
        let turns = self.turns.iter().map(|(token, turn)| (turn.check_at, *token));
        let is_late = |turn: &TicketGrant| turn.check_at > turn.ends_at();
        let is_right = self.by_check == turns.collect() && !self.turns.values().any(is_late);
        if is_right { Ok(()) } else { Err(format!("turns disagree with {self:?}")) }
    }
}
