//! What becomes of a promise.

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
    /// A user had the key live until then only.
    Tampered(u64),
    /// It has ended.
    Ended(How),
}

/// Until when a promise binds a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its deadline.
    pub until: u64,
    /// A user had the key live until then only.
    pub cut: Option<u64>,
}

impl Bound {
    /// When it binds no more.
    pub fn end(self) -> u64 {
        self.cut.map_or(self.until, |cut| self.until.min(cut.saturating_add(1)))
    }
}
