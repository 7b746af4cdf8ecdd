//! What changed in a lock, and what the world is told about it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};

use crate::{EpochMs, Mode, Token};

/// One change of a lock. Absolute and complete: replaying it reads no clock and decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<'a> {
    /// A new hold at depth 1. Whatever cannot stand beside it is gone.
    Granted {
        /// Who holds.
        #[serde(borrow, serialize_with = "as_bytes")]
        owner: Cow<'a, [u8]>,
        /// How.
        mode: Mode,
        /// Its fencing token.
        token: Token,
        /// When it is over.
        deadline: EpochMs,
    },
    /// The hold with this token has this depth and this deadline from here on.
    Held {
        /// Which hold.
        token: Token,
        /// Levels entered, from 1.
        depth: u16,
        /// When it is over.
        deadline: EpochMs,
    },
    /// The hold with this token is over.
    Ended {
        /// Which hold.
        token: Token,
        /// By what.
        by: End,
    },
}

/// As one run of bytes, which is written at once; serde knows a slice as a sequence of numbers. In
/// the format both look the same.
pub(crate) fn as_bytes<S: Serializer>(owner: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(owner)
}

/// What ended a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Its owner let go of the last level.
    Released,
    /// Its deadline came.
    Expired,
    /// An operator's `RLOCK.FORCE`.
    Forced,
    /// The connection that it was tied to ended, or did not live to hear of its grant.
    Disconnected,
}

/// What subscribers to keyspace notifications are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new hold.
    Acquired,
    /// An owner's READ got WRITE on top.
    Upgraded,
    /// The owner let go.
    Released,
    /// The owner let go of WRITE and keeps READ.
    Downgraded,
    /// The deadline came.
    Expired,
    /// Ended by an operator.
    Forced,
    /// Its connection ended.
    Disconnected,
    /// The server evicted the key.
    Evicted,
    /// Something else took the key from its name.
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
            Self::Evicted => c"rlock.evicted",
            Self::Removed => c"rlock.removed",
        }
    }
}
