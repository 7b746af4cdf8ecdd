//! A seat: one owner at one key in one mode, at one server. Whoever has it may send requests under that name.

use super::*;

/// Whether a seat is free.
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
    /// It waits until that time, and then fails with that result.
    Wait(Ms, Tell),
}

/// Decides a request for a seat. An owner does one thing at a time, so a request that does not wait for the lock waits only
/// a moment for a seat that is taken; but undoing ends by itself, so it waits for that as long as its patience lasts.
#[must_use]
pub fn decide_seat(now: Ms, state: SeatState, wait: Ms, patience: Ms) -> SeatDecision {
    let (least, tell) = match state {
        SeatState::Free => return SeatDecision::Take,
        SeatState::Taken => (SOON, Tell::Nil),
        SeatState::Undone => (patience, Tell::Unavailable),
    };
    let waits = if wait > 0 { wait } else { least };
    SeatDecision::Wait(now.saturating_add(waits), tell)
}

/// The names of owners in one process image.
#[derive(Clone, Debug)]
pub struct Names {
    process: u64,
    count: u64,
}

impl Names {
    /// With a random number of its own.
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

    /// What all names of this image have in common.
    #[must_use]
    pub fn image(&self) -> u64 {
        self.process
    }

    /// A name that nobody has.
    pub fn draw(&mut self) -> (u64, u64) {
        self.count += 1;
        (self.process, self.count)
    }
}
