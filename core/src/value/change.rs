//! What changed in a lock, and the events that report it.

use std::borrow::Cow;

use serde::Deserialize;

use crate::{EpochMs, Mode, Token};

/// One change of a lock. Absolute and complete: replaying it reads no clock and decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub enum Change<'a> {
    /// A new hold at depth 1. Holds that conflict with it are removed.
    Granted {
        /// The owner.
        #[serde(borrow)]
        owner: Cow<'a, [u8]>,
        /// The mode.
        mode: Mode,
        /// Its fencing token.
        token: Token,
        /// When it expires.
        deadline: EpochMs,
    },
    /// The hold with this token now has this depth and this deadline.
    Updated {
        /// Which hold.
        token: Token,
        /// Its depth, from 1.
        depth: u16,
        /// When it expires.
        deadline: EpochMs,
    },
    /// The hold with this token ended.
    Ended {
        /// Which hold.
        token: Token,
        /// The cause.
        by: End,
    },
}

/// What ended a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum End {
    /// Its owner released the last level.
    Released,
    /// Its deadline passed.
    Expired,
    /// An operator ended it with `RLOCK.FORCE` or `RLOCK.TAKE`.
    Forced,
    /// The connection of its session closed, or the connection that waited closed before it could
    /// read the reply.
    Disconnected,
    /// Too few replicas acknowledged it, so the grant was never reported.
    Unconfirmed,
}

/// A keyspace notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new hold.
    Acquired,
    /// An owner's READ was upgraded.
    Upgraded,
    /// The owner released it.
    Released,
    /// The owner released WRITE and keeps READ.
    Downgraded,
    /// It expired.
    Expired,
    /// Ended by an operator.
    Forced,
    /// Its connection closed.
    Disconnected,
    /// Too few replicas acknowledged it, so the grant was never reported.
    Unconfirmed,
    /// The server evicted the key.
    Evicted,
    /// Something else deleted or renamed the key.
    Removed,
}

impl Event {
    /// The event's name in a keyspace notification.
    pub const fn name(self) -> &'static std::ffi::CStr {
        match self {
            Self::Acquired => c"rlock.acquired",
            Self::Upgraded => c"rlock.upgraded",
            Self::Released => c"rlock.released",
            Self::Downgraded => c"rlock.downgraded",
            Self::Expired => c"rlock.expired",
            Self::Forced => c"rlock.forced",
            Self::Disconnected => c"rlock.disconnected",
            Self::Unconfirmed => c"rlock.unconfirmed",
            Self::Evicted => c"rlock.evicted",
            Self::Removed => c"rlock.removed",
        }
    }
}
