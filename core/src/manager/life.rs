//! How long a lock's key lives: as long as its latest hold, unless a user changed the expiry since.

use crate::{Change, Effects, Input, Lock, Volatile};

/// While somebody waits, the key lives this many milliseconds longer than its holds, so that the
/// lock is handed off without deleting the key. If a key is deleted and added again, the server
/// asks every blocked connection.
const GRACE_MS: u64 = 1000;

/// How long a key must live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyExpiry {
    /// When the latest hold ends, in milliseconds since the Unix epoch; `None` without a hold.
    deadline_ms: Option<u64>,
    is_waited_for: bool,
}

/// What to do with a key. Times are milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryAction {
    /// Nothing.
    Keep,
    /// Nobody holds the lock: delete the key.
    Delete,
    /// Set this expiry.
    Set(u64),
    /// Set the expiry to `to` if it is `from` now; otherwise, a user has changed it.
    Move {
        /// The expiry that the module set.
        from: u64,
        /// The new expiry.
        to: u64,
    },
    /// Make the key live at least until `to`; if its expiry is `own`, set it to `to`. A key without
    /// expiry remains unchanged.
    AtLeast {
        /// The expiry that the module set earlier, and may change.
        own: u64,
        /// The earliest expiry.
        to: u64,
    },
}

impl ExpiryAction {
    /// The expiry to set for a key whose current expiry is `present` (`None` if it has none, or
    /// there is no key). Returns `None` if it must not be changed, or if the key must be deleted.
    pub fn expiry(self, present: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let is = |fits: &dyn Fn(u64) -> bool| present().is_some_and(fits);
        match self {
            Self::Keep | Self::Delete => None,
            Self::Set(at) => Some(at),
            Self::Move { from, to } => is(&|now| now == from).then_some(to),
            Self::AtLeast { own, to } => is(&|now| now == own || now < to).then_some(to),
        }
    }
}

impl KeyExpiry {
    /// The expiry for a lock with these waiters and sessions.
    pub fn of(lock: &Lock, volatile: Option<&Volatile>) -> Self {
        let deadline_ms = lock.latest_deadline().map(|deadline| deadline.get());
        let is_waited_for = volatile.is_some_and(|volatile| !volatile.queue.is_empty());
        Self { deadline_ms, is_waited_for }
    }

    /// Whether none of its holds ends later than `now_ms`.
    pub fn has_ended(self, now_ms: u64) -> bool {
        self.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now_ms)
    }

    /// When the key expires if only the module decides. The server keeps a key until the end of the
    /// millisecond of its expiry, which is therefore the last one before the deadline.
    fn expires_at(deadline_ms: u64, is_waited_for: bool) -> u64 {
        deadline_ms.saturating_sub(1).saturating_add(if is_waited_for { GRACE_MS } else { 0 })
    }

    /// What to do with the key of a new lock.
    pub fn begin(self) -> ExpiryAction {
        match self.deadline_ms {
            Some(deadline_ms) => {
                ExpiryAction::Set(Self::expires_at(deadline_ms, self.is_waited_for))
            }
            None => ExpiryAction::Delete,
        }
    }

    /// What to do with a key whose lock changed from `before` to this. A user's PERSIST or EXPIRE
    /// stays in effect while no deadline moves, but the key lives at least until any promised
    /// deadline.
    pub fn after(self, before: Self, why: Cause) -> ExpiryAction {
        let Some(deadline_ms) = self.deadline_ms else { return ExpiryAction::Delete };
        let until_ms = Self::expires_at(deadline_ms, self.is_waited_for);
        let other_ms = Self::expires_at(deadline_ms, !self.is_waited_for);
        if before.deadline_ms != self.deadline_ms {
            ExpiryAction::Set(until_ms)
        } else if why == Cause::Promise {
            ExpiryAction::AtLeast { own: other_ms, to: until_ms }
        } else if before.is_waited_for != self.is_waited_for || why == Cause::Sweep {
            ExpiryAction::Move { from: other_ms, to: until_ms }
        } else {
            ExpiryAction::Keep
        }
    }
}

/// What a transition means for the key's expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It promised a deadline.
    Promise,
    /// Waiters may have departed since the expiry was last set.
    Sweep,
    /// Anything else.
    Other,
}

impl Cause {
    /// For a transition.
    pub fn of(input: &Input<'_>, effects: &Effects<'_>) -> Self {
        match Self::of_changes(&effects.changes) {
            Self::Other if matches!(input, Input::Tick | Input::Changed) => Self::Sweep,
            why => why,
        }
    }

    /// For changes, as a replica receives them: every deadline in them is a promise. A grant, a
    /// re-entry and a renewal always include one.
    pub fn of_changes(changes: &[Change<'_>]) -> Self {
        let promises =
            |change: &Change<'_>| matches!(change, Change::Granted { .. } | Change::Updated { .. });
        if changes.iter().any(promises) { Self::Promise } else { Self::Other }
    }
}
