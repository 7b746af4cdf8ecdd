//! How long a lock's key lives: as long as the latest hold in it, or as its user said since.

use crate::{Change, Effects, Input, Lock, Memory};

/// While somebody waits, the key lives so many milliseconds longer than its holds, so that the
/// hand-over happens in place: a key that is deleted and added again has the server ask every
/// blocked connection.
const GRACE_MS: u64 = 1000;

/// Until when a key is to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// When the latest hold ends, in milliseconds since the Unix epoch; `None` without a hold.
    deadline_ms: Option<u64>,
    is_waited_for: bool,
}

/// What is to be done with a key. Times are milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// Nothing.
    Keep,
    /// Nobody holds the lock: delete the key.
    Delete,
    /// Expire it then.
    Set(u64),
    /// Expire it at `to`, if it expires at `from` now: else its user said something else.
    Move {
        /// What the module had said.
        from: u64,
        /// What it says now.
        to: u64,
    },
    /// Expire it no earlier than then; a key that does not expire is left alone.
    AtLeast(u64),
}

impl Life {
    /// Of a lock, and of what is remembered of it.
    pub fn of(lock: &Lock, memory: Option<&Memory>) -> Self {
        let deadline_ms = lock.latest_deadline().map(|deadline| deadline.get());
        let is_waited_for = memory.is_some_and(|memory| !memory.queue.is_empty());
        Self { deadline_ms, is_waited_for }
    }

    /// No hold of it ends later than `now_ms`.
    pub fn has_ended(self, now_ms: u64) -> bool {
        self.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now_ms)
    }

    /// When the key expires, where nobody but the module says so. The server lets a key live
    /// through the millisecond that it expires at: the last one before the deadline.
    fn expires_at(deadline_ms: u64, is_waited_for: bool) -> u64 {
        deadline_ms.saturating_sub(1).saturating_add(if is_waited_for { GRACE_MS } else { 0 })
    }

    /// For a key where a lock begins.
    pub fn begin(self) -> Ttl {
        match self.deadline_ms {
            Some(deadline_ms) => Ttl::Set(Self::expires_at(deadline_ms, self.is_waited_for)),
            None => Ttl::Delete,
        }
    }

    /// For a key whose lock went from `before` to this. PERSIST and EXPIRE stay while no deadline
    /// moves, but whoever is promised a deadline has the key live so long.
    pub fn after(self, before: Self, why: Why) -> Ttl {
        let Some(deadline_ms) = self.deadline_ms else { return Ttl::Delete };
        let until_ms = Self::expires_at(deadline_ms, self.is_waited_for);
        if before.deadline_ms != self.deadline_ms {
            Ttl::Set(until_ms)
        } else if why == Why::Promise {
            Ttl::AtLeast(until_ms)
        } else if before.is_waited_for != self.is_waited_for || why == Why::Sweep {
            Ttl::Move { from: Self::expires_at(deadline_ms, !self.is_waited_for), to: until_ms }
        } else {
            Ttl::Keep
        }
    }
}

/// What a transition was, as far as the key's life goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Somebody was told a deadline.
    Promise,
    /// Those who waited may have left since the key's life was set last.
    Sweep,
    /// Anything else.
    Other,
}

impl Why {
    /// Of a transition.
    pub fn of(input: &Input<'_>, effects: &Effects<'_>) -> Self {
        match Self::of_changes(&effects.changes) {
            Self::Other if matches!(input, Input::Tick | Input::Changed) => Self::Sweep,
            why => why,
        }
    }

    /// Of changes, as a replica gets them: whatever says a deadline promises it. A grant, a
    /// re-entry and a renewal always do.
    pub fn of_changes(changes: &[Change<'_>]) -> Self {
        let promises =
            |change: &Change<'_>| matches!(change, Change::Granted { .. } | Change::Held { .. });
        if changes.iter().any(promises) { Self::Promise } else { Self::Other }
    }
}
