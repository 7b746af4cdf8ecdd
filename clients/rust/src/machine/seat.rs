//! A seat: one owner of one key in one mode, at one server. The request that has it may use that
//! owner's name.

use super::*;

/// The state of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatState {
    /// No request has it.
    Free,
    /// One request of the owner has it.
    Taken,
    /// What the last request left is being undone.
    Undone,
}

/// What a request for a seat gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeatDecision {
    /// The seat.
    Take,
    /// It waits until that time, and then fails with that error.
    Wait(Ms, Tell),
}

/// Decides a request for a seat. An owner does one thing at a time, so a request that does not wait
/// for the lock waits only a moment for an occupied seat. But undoing ends by itself, so the
/// request waits for that until its patience ends, or for as long as it waits without a server.
#[must_use]
pub fn decide_seat(now: Ms, state: SeatState, wait: Ms, patience: Ms, outage: Ms) -> SeatDecision {
    let (least, most, tell) = match state {
        SeatState::Free => return SeatDecision::Take,
        SeatState::Taken => (SOON, FOREVER, Tell::Nil),
        SeatState::Undone => (patience, outage, Tell::Unavailable),
    };
    let waits = if wait > 0 { wait } else { least };
    SeatDecision::Wait(now.saturating_add(waits.min(most)), tell)
}

/// The names of owners in one process image.
#[derive(Clone, Debug)]
pub struct Names {
    process: u64,
    count: u64,
}

impl Names {
    /// Creates them with a random number of its own.
    #[must_use]
    pub fn new(random: u64) -> Self {
        Self { process: random, count: 0 }
    }

    /// A fork or a restored image draws other names.
    pub fn forked(&mut self, random: u64, planted: Planted) {
        if planted != Planted::NamesKept {
            *self = Self::new(random);
        }
    }

    /// The number that all names of this process image share.
    #[must_use]
    pub fn image(&self) -> u64 {
        self.process
    }

    /// Draws a name that nobody else has.
    pub fn draw(&mut self) -> (u64, u64) {
        self.count += 1;
        (self.process, self.count)
    }
}
