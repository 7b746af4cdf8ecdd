//! What a step tells the world, in a form in which two implementations can be compared.

use rlock_core::{ClientId, Event, Refusal, WaiterId};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said {
    Granted { token: u64, left_ms: u64 },
    NotNow { wait_ms: Option<u64> },
    MustWait { wait_ms: Option<u64> },
    Count(u64),
    Error(String),
}

/// What one step tells the world, in whatever order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub reply: Option<Said>,
    pub wakes: Vec<(WaiterId, Said)>,
    pub events: Vec<&'static str>,
    pub turns: Vec<Vec<u8>>,
    pub lost: Vec<ClientId>,
}

impl Told {
    pub fn sorted(mut self) -> Self {
        self.wakes.sort();
        self.events.sort_unstable();
        self.turns.sort();
        self.lost.sort();
        self
    }
}

/// The code of an error.
pub fn error(refusal: &Refusal) -> Said {
    let line = refusal.line(b"k", b"o");
    Said::Error(line.split(' ').next().unwrap_or_default().into())
}

pub fn name(event: Event) -> &'static str {
    event.name().to_str().unwrap_or_default()
}
