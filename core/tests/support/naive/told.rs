//! The visible results of a step, in a form in which two implementations can be compared.

use rlock_core::{ClientId, Effects, Event, Refusal, Reply, WaiterId, Wake};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said {
    Granted { token: u64, remaining_ms: u64 },
    NotNow { wait_ms: Option<u64> },
    MustWait { wait_ms: Option<u64> },
    Count(u64),
    Error(String),
}

/// The visible results of one step, regardless of their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub reply: Option<Said>,
    pub wakes: Vec<(WaiterId, Said)>,
    pub events: Vec<&'static str>,
    pub turns: Vec<Vec<u8>>,
    pub lost: Vec<ClientId>,
}

impl Told {
    /// The visible results of a step of the core.
    pub fn of(effects: &Effects<'_>) -> Self {
        Self {
            reply: Some(said(&effects.reply)),
            wakes: wakes(&effects.wakes),
            events: effects.events.iter().map(|event| name(*event)).collect(),
            turns: effects.turns.iter().map(|owner| owner.as_bytes().to_vec()).collect(),
            lost: effects.lost.clone(),
        }
        .sorted()
    }

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

pub fn wakes(wakes: &[Wake]) -> Vec<(WaiterId, Said)> {
    wakes.iter().map(|wake| (wake.waiter, said(&wake.reply))).collect()
}

fn said(reply: &Reply) -> Said {
    match reply {
        Reply::Granted { token, remaining_ms } => {
            Said::Granted { token: token.get(), remaining_ms: *remaining_ms }
        }
        Reply::NotNow { wait_ms } => Said::NotNow { wait_ms: *wait_ms },
        Reply::MustWait { wait_ms } => Said::MustWait { wait_ms: *wait_ms },
        Reply::MustConfirm | Reply::Pending => Said::Error("acks".into()),
        Reply::Renewed => Said::Count(1),
        Reply::Count(count) => Said::Count(*count),
        Reply::Refused(refusal) => error(refusal),
    }
}
