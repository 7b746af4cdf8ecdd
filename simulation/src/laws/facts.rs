//! What becomes of a promise.

use rlock_core::{Mode, Owner, Token};

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Its time was over.
    Expired,
    /// By its owner.
    Released,
    /// By an operator.
    Forced,
    /// With its connection.
    Disconnected,
    /// Something else was done to its key.
    Taken,
}

/// What became of a promise, with an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A reply gave it that deadline.
    Until(u64),
    /// A user shortened the time to live of the key: it ends at that time.
    Tampered(u64),
    /// It has ended.
    Ended(How),
}

/// Until when a promise binds a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its deadline.
    pub until: u64,
    /// A user shortened the time to live of the key: it ends at that time.
    pub cut: Option<u64>,
}

impl Bound {
    /// When it binds no more.
    pub fn end(self) -> u64 {
        self.cut.map_or(self.until, |cut| self.until.min(cut.saturating_add(1)))
    }
}

/// A renewal.
#[derive(Clone, Copy)]
pub struct Renewal<'r> {
    /// Whose.
    pub owner: &'r Owner,
    /// Only holds in this mode, or in both.
    pub mode: Option<Mode>,
    /// Only the hold with this token, or any.
    pub only: Option<Token>,
    /// Until when, by its server's clock in milliseconds.
    pub until: u64,
    /// It was reported.
    pub is_told: bool,
}
