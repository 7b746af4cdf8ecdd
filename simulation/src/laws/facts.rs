//! What happens to a promise.

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
    /// Something else changed its key.
    Taken,
}

/// What happened to a promise, with an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A reply gave it this deadline.
    Until(u64),
    /// A user shortened the key's time to live: the hold ends at this time.
    Tampered(u64),
    /// It has ended.
    Ended(How),
}

/// How long a promise binds a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its deadline.
    pub until: u64,
    /// A user shortened the key's time to live: the hold ends at this time.
    pub cut: Option<u64>,
}

impl Bound {
    /// When it no longer binds the server.
    pub fn end(self) -> u64 {
        self.cut.map_or(self.until, |cut| self.until.min(cut.saturating_add(1)))
    }
}

/// A renewal.
#[derive(Clone, Copy)]
pub struct Renewal<'r> {
    /// The owner.
    pub owner: &'r Owner,
    /// Only holds in this mode; `None` means both.
    pub mode: Option<Mode>,
    /// Only the hold with this token; `None` means any.
    pub only: Option<Token>,
    /// Its deadline, by its server's clock in milliseconds.
    pub until: u64,
    /// Whether it was reported.
    pub is_told: bool,
}
