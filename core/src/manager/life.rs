//! How long a lock's key lives: as long as its latest hold, unless its user changed that since.

use crate::{Change, Effects, Input, Lock, Volatile};

/// While somebody waits, the key lives this many milliseconds longer than its holds, so that the
/// hand-over happens in place. If a key is deleted and added again, the server asks every blocked
/// connection.
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
    /// Set the expiry to `to` if it is `from` now; otherwise its user changed it.
    Move {
        /// The expiry that the module set.
        from: u64,
        /// The new expiry.
        to: u64,
    },
    /// Set no earlier expiry than `to`, and `to` if it is `own` now; leave a key without expiry
    /// alone.
    AtLeast {
        /// The expiry that the module set, which may be changed again.
        own: u64,
        /// The earliest expiry.
        to: u64,
    },
}

impl ExpiryAction {
    /// The expiry to set, for a key whose `present` one is this (`None`: it has none, or there is
    /// no key). `None`: leave it alone, or delete the key.
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
    /// For a lock and its volatile part.
    pub fn of(lock: &Lock, volatile: Option<&Volatile>) -> Self {
        let deadline_ms = lock.latest_deadline().map(|deadline| deadline.get());
        let is_waited_for = volatile.is_some_and(|volatile| !volatile.queue.is_empty());
        Self { deadline_ms, is_waited_for }
    }

    /// No hold of it ends later than `now_ms`.
    pub fn has_ended(self, now_ms: u64) -> bool {
        self.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now_ms)
    }

    /// When the key expires if only the module decides. The server lets a key live through the
    /// millisecond of its expiry: the last one before the deadline.
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

    /// What to do with a key whose lock changed from `before` to this. PERSIST and EXPIRE stay in
    /// effect while no deadline moves, but a promised deadline makes the key live at least that
    /// long.
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
    /// re-entry and a renewal always have one.
    pub fn of_changes(changes: &[Change<'_>]) -> Self {
        let promises =
            |change: &Change<'_>| matches!(change, Change::Granted { .. } | Change::Updated { .. });
        if changes.iter().any(promises) { Self::Promise } else { Self::Other }
    }
}
