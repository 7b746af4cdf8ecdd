//! The grace period of a new primary.

use super::Manager;
use crate::{EpochMs, Now};

impl Manager {
    /// When a grace period of this length ends or ended.
    pub(super) fn grace_end(&self, grace_ms: u64) -> Option<EpochMs> {
        let began_at = self.began_at.filter(|_| grace_ms > 0)?;
        Some(Now::from_ms(began_at.get()).after_ms(grace_ms))
    }

    /// The same, but `None` if it has ended.
    pub(super) fn grace_of(&self, grace_ms: u64, now: Now) -> Option<EpochMs> {
        self.grace_end(grace_ms).filter(|until| !until.is_over_at(now))
    }
}
