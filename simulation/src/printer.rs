//! Hashes the state of a world: everything that its future depends on. Times are relative to now,
//! and tokens are replaced by their rank.

use std::hash::{DefaultHasher, Hash};

use rlock_core::Mode;

/// Collects a world's state in one hash.
pub(crate) struct Printer {
    pub hasher: DefaultHasher,
    pub now_ms: u64,
    pub tokens: Vec<u64>,
}

impl Printer {
    /// Adds a value.
    pub fn add(&mut self, what: impl Hash) {
        what.hash(&mut self.hasher);
    }

    /// Adds a time, relative to now; 0 if it has passed.
    pub fn moment(&mut self, ms: u64) {
        self.add((ms + 1).saturating_sub(self.now_ms));
    }

    /// Adds the rank of a token.
    pub fn token(&mut self, token: u64) {
        self.add(self.tokens.binary_search(&token).ok());
    }

    pub fn mode(&mut self, mode: Mode) {
        self.add(mode == Mode::Write);
    }
}
