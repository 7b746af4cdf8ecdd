//! Waits and holds that lasted long: recorded when they end, for the slow log.

use std::num::NonZeroU32;
use std::rc::Rc;

use crate::volatile::owner_names::OwnerNames;
use crate::{End, Mode, Owner};

/// How many milliseconds a wait or a hold must last to be logged; `None`: none is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Waits.
    pub wait_ms: Option<u64>,
    /// Holds.
    pub hold_ms: Option<u64>,
}

/// How a wait or a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A wait: it was granted.
    Granted,
    /// A wait: it timed out.
    TimedOut,
    /// A wait: by `RLOCK.CANCEL`.
    Cancelled,
    /// A wait: by `CLIENT UNBLOCK`.
    Unblocked,
    /// Its connection closed.
    Disconnected,
    /// Too few replicas acknowledged it.
    Unconfirmed,
    /// A wait: it got an error.
    Refused,
    /// A hold: released by its owner.
    Released,
    /// A hold: it expired.
    Expired,
    /// A hold: by `RLOCK.FORCE` or `RLOCK.TAKE`.
    Forced,
    /// A hold: something else deleted or renamed the key.
    Removed,
}

impl Outcome {
    /// As in `RLOCK.SLOWLOG`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::TimedOut => "timed-out",
            Self::Cancelled => "cancelled",
            Self::Unblocked => "unblocked",
            Self::Disconnected => "disconnected",
            Self::Unconfirmed => "unconfirmed",
            Self::Refused => "refused",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::Removed => "removed",
        }
    }
}

impl From<End> for Outcome {
    fn from(by: End) -> Self {
        match by {
            End::Released => Self::Released,
            End::Expired => Self::Expired,
            End::Forced => Self::Forced,
            End::Disconnected => Self::Disconnected,
            End::Unconfirmed => Self::Unconfirmed,
        }
    }
}

/// A wait or a hold that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The owner.
    pub owner: Owner,
    /// The mode.
    pub mode: Mode,
    /// `LIMIT` of a wait.
    pub limit: Option<NonZeroU32>,
    /// Milliseconds.
    pub ms: u64,
    /// The cause.
    pub outcome: Outcome,
    /// What it was.
    pub what: What,
    /// How many locks the wait was for.
    pub keys: usize,
}

/// A wait, a hold, or a wait that did not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A wait of a blocked connection or of a ticket, and who was in its way when it began.
    Wait(Rc<OwnerNames>),
    /// A hold.
    Hold,
    /// A wait that was refused because it would have closed this cycle: each owner, with the key
    /// for which it waits. The refused wait is the first.
    Cycle(Vec<(Owner, Rc<[u8]>)>),
}

impl Slow {
    /// The end of a hold, if it lasted long enough.
    pub(crate) fn hold(self, owner: &[u8], mode: Mode, ms: u64, outcome: Outcome) -> Option<Ended> {
        let owner = self.hold_ms.is_some_and(|least| ms >= least).then(|| owner.into())?;
        Some(Ended { owner, mode, limit: None, ms, outcome, what: What::Hold, keys: 1 })
    }
}
