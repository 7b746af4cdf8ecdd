//! What replicas must acknowledge before a reply, for the holds of one lock.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::Entry;
use crate::{EpochMs, Now, Token, WaiterId};

/// What waits for acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ack {
    /// The grant or renewal of a blocked connection.
    Wait(WaiterId),
    /// A hold that was granted to a ticket, by so many replicas.
    Ticket(Token, u8),
    /// A session's deadline.
    Deadline(Token, EpochMs),
}

/// Whether replicas have acknowledged a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// Nobody asked for acknowledgements.
    None,
    /// They have not, so nobody was told of the hold yet.
    Pending,
    /// They have.
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

/// A hold of a ticket's owner, who has not asked again since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// As the ticket stands in the queue, should it have to stand there again.
    pub(crate) ticket: Entry,
    /// A level of the hold is the ticket's own.
    pub(crate) adds: bool,
    /// The hold began with it.
    pub(crate) begins: bool,
    /// So many replicas are to have it.
    pub(crate) acks: u8,
    /// The owner may be told.
    pub(crate) is_acked: bool,
    /// When the acknowledgements are too late.
    pub(crate) late_at: EpochMs,
    /// The owner is told no later than this: a whole lease is left of the hold then.
    pub(crate) told_by: EpochMs,
    /// The deadline that is told.
    pub(crate) deadline: EpochMs,
    /// As in [`Acks::by_look`].
    pub(crate) look_at: EpochMs,
}

impl Turn {
    /// When it is over: the acknowledgements are too late, or its owner is.
    pub(crate) fn ends_at(&self) -> EpochMs {
        let asks = self.told_by.min(self.deadline);
        if self.is_acked { asks } else { asks.min(self.late_at) }
    }
}

/// Confirmations of the holds of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acks {
    /// How many acknowledgements each hold needs that nobody was told of.
    untold: BTreeMap<Token, u8>,
    told: BTreeSet<Token>,
    turns: BTreeMap<Token, Turn>,
    /// When to look whether a turn is over: at its end, or earlier where that was put off since.
    by_look: BTreeSet<(EpochMs, Token)>,
    /// What was not asked of replicas yet.
    asked: Vec<(u8, Ack)>,
}

impl Acks {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { untold, told, turns, asked, by_look: _ } = self;
        untold.is_empty() && told.is_empty() && turns.is_empty() && asked.is_empty()
    }

    /// So many replicas are to have this.
    pub(crate) fn ask(&mut self, acks: u8, what: Ack) {
        self.asked.push((acks, what));
    }

    pub(crate) fn take_asked(&mut self) -> Vec<(u8, Ack)> {
        std::mem::take(&mut self.asked)
    }

    /// A hold began that is told when so many replicas have it.
    pub(crate) fn begin(&mut self, token: Token, acks: u8) {
        self.untold.insert(token, acks);
    }

    /// How many acknowledgements a hold needs that nobody was told of.
    pub(crate) fn untold(&self, token: Token) -> Option<u8> {
        self.untold.get(&token).copied()
    }

    pub(crate) fn of(&self, token: Token) -> Confirmation {
        if self.untold.contains_key(&token) {
            Confirmation::Pending
        } else if self.told.contains(&token) {
            Confirmation::Done
        } else {
            Confirmation::None
        }
    }

    /// The owner is told that it holds. True if nobody was told before.
    pub(crate) fn tell(&mut self, token: Token) -> bool {
        let is_first = self.untold.remove(&token).is_some();
        if is_first {
            self.told.insert(token);
        }
        is_first
    }

    /// The hold has ended. The ticket that it was given, if its owner had not asked again.
    pub(crate) fn end(&mut self, token: Token) -> Option<Turn> {
        self.untold.remove(&token);
        self.told.remove(&token);
        self.take_turn(token)
    }

    /// Forgets the holds that are not there any more.
    pub(crate) fn retain(&mut self, is_there: impl Fn(Token) -> bool) {
        let all = self.untold.keys().chain(&self.told).chain(self.turns.keys()).copied();
        let gone: Vec<Token> = all.filter(|token| !is_there(*token)).collect();
        for token in gone {
            self.end(token);
        }
    }

    pub(crate) fn give_turn(&mut self, token: Token, mut turn: Turn) {
        turn.look_at = turn.ends_at();
        self.by_look.insert((turn.look_at, token));
        self.turns.insert(token, turn);
    }

    pub(crate) fn turn(&self, token: Token) -> Option<&Turn> {
        self.turns.get(&token)
    }

    /// The ticket's owner asked again, and keeps its place until then.
    pub(crate) fn keep_turn(&mut self, token: Token, ends_at: EpochMs) {
        if let Some(turn) = self.turns.get_mut(&token) {
            turn.ticket.ends_at = turn.ticket.ends_at.max(Some(ends_at));
        }
    }

    /// The ticket's owner asked for more acknowledgements than before.
    pub(crate) fn raise_turn(&mut self, token: Token, acks: u8, late_at: EpochMs) {
        if let Some(turn) = self.turns.get_mut(&token).filter(|turn| turn.acks < acks) {
            (turn.acks, turn.is_acked, turn.late_at) = (acks, false, late_at);
            self.ask(acks, Ack::Ticket(token, acks));
        }
    }

    /// The owner of this turn may be told, as far as so many replicas go; `None` if there is no
    /// such turn.
    pub(crate) fn acked(&mut self, token: Token, acks: u8) -> Option<&Turn> {
        let is_it = |turn: &&mut Turn| !turn.is_acked && turn.acks <= acks;
        let turn = self.turns.get_mut(&token).filter(is_it)?;
        turn.is_acked = true;
        Some(turn)
    }

    pub(crate) fn take_turn(&mut self, token: Token) -> Option<Turn> {
        let turn = self.turns.remove(&token)?;
        self.by_look.remove(&(turn.look_at, token));
        Some(turn)
    }

    /// A turn that is over.
    pub(crate) fn first_over(&mut self, now: Now) -> Option<Token> {
        while let Some((look_at, token)) = self.by_look.first().copied()
            && look_at.is_over_at(now)
        {
            let turn = self.turns.get_mut(&token)?;
            let ends_at = turn.ends_at();
            if ends_at.is_over_at(now) {
                return Some(token);
            }
            self.by_look.remove(&(look_at, token));
            self.by_look.insert((ends_at, token));
            turn.look_at = ends_at;
        }
        None
    }

    pub(crate) fn next_look(&self) -> Option<EpochMs> {
        self.by_look.first().map(|(look_at, _)| *look_at)
    }
}
