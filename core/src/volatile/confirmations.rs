//! What replicas must acknowledge before a reply, for the holds of one lock.

use std::collections::BTreeMap;

use crate::{EpochMs, Token, WaiterId};

/// What waits for acknowledgments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ack {
    /// A request: its grant or renewal, once for all of its locks.
    Wait(WaiterId),
    /// A session's deadline, by this many replicas.
    Deadline(Token, EpochMs, u8),
}

/// Whether replicas have acknowledged a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// The hold needs no acknowledgments.
    None,
    /// Not yet, so no reply has named the hold.
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

/// Confirmations of the holds of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirmations {
    /// How many acknowledgments each pending hold needs; `None` once a reply has named it.
    pending: BTreeMap<Token, Option<u8>>,
    /// What the replicas have not been asked for yet.
    asked: Vec<(u8, Ack)>,
}

impl Confirmations {
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.asked.is_empty()
    }

    /// No hold is pending, and nothing is to be asked for.
    pub(crate) fn are_done(&self) -> bool {
        self.asked.is_empty() && self.pending.values().all(Option::is_none)
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

    /// The hold is confirmed.
    pub(crate) fn confirm(&mut self, token: Token) {
        if let Some(pending) = self.pending.get_mut(&token) {
            *pending = None;
        }
    }

    /// The hold has ended.
    pub(crate) fn end(&mut self, token: Token) {
        self.pending.remove(&token);
    }

    /// Forgets the holds that no longer exist.
    pub(crate) fn forget_gone(&mut self, is_there: impl Fn(Token) -> bool) {
        self.pending.retain(|token, _| is_there(*token));
    }
}
