//! The connections to one server.

use super::*;

/// What a request for a connection gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dial {
    /// It dials, for all.
    Now,
    /// Somebody dials already.
    Join,
    /// A dial failed a moment ago, or the client is closed: the request fails as unsent.
    Rest,
}

/// The dials of one server.
#[derive(Debug, Default)]
pub struct Server {
    planted: Planted,
    is_dialling: bool,
    is_closed: bool,
    rests_until: Ms,
}

impl Server {
    /// A server that has not been dialed yet.
    #[must_use]
    pub fn new(planted: Planted) -> Self {
        Self { planted, ..Self::default() }
    }

    /// Somebody needs a connection.
    pub fn need(&mut self, now: Ms) -> Dial {
        if self.is_closed || now < self.rests_until {
            return Dial::Rest;
        }
        if std::mem::replace(&mut self.is_dialling, true) { Dial::Join } else { Dial::Now }
    }

    /// Notes that it is connected.
    pub fn dialled(&mut self) {
        self.is_dialling = false;
    }

    /// The server could not be reached; `random` is below 1000.
    pub fn failed(&mut self, now: Ms, random: u64) {
        self.is_dialling = false;
        if self.planted != Planted::DialsUnrested {
            self.rests_until = now.saturating_add(DIALS * (500 + random) / 1000);
        }
    }

    /// No more connections are dialed.
    pub fn close(&mut self) {
        self.is_closed = true;
    }
}

/// Whether a connection that was last heard from at `heard` must be closed, since a request that
/// was sent at `sent` went unanswered.
#[must_use]
pub fn is_condemned(heard: Ms, sent: Ms, planted: Planted) -> bool {
    heard < sent && planted != Planted::SilenceTrusted
}
