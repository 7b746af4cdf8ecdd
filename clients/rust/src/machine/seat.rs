//! One owner at one key in one mode, at one server: who may ask there under that name.

use super::*;

/// How it stands with a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// Nobody has it.
    Free,
    /// One request of the owner has it.
    Taken,
    /// What the last request left is being undone.
    Undone,
}

/// What becomes of who comes to a seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Come {
    /// It has the seat.
    Take,
    /// It waits until then, and is told that.
    Wait(Ms, Tell),
}

/// What becomes of who comes to a seat now. An owner does one thing at a time, so that who does not wait stays only for
/// a moment; but what is undone passes.
#[must_use]
pub fn come(now: Ms, stand: Stand, wait: Ms, patience: Ms) -> Come {
    let (least, tell) = match stand {
        Stand::Free => return Come::Take,
        Stand::Taken => (SOON, Tell::Nil),
        Stand::Undone => (patience, Tell::Unavailable),
    };
    let waits = if wait > 0 { wait } else { least };
    Come::Wait(now.saturating_add(waits), tell)
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

    /// A fork, or a restored image, is somebody else.
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
