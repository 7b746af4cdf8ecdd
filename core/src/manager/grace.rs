//! The grace period of a new primary.

use super::Manager;
use crate::{EpochMs, Now};

impl Manager {
    /// When the grace period ends or ended, according to the current setting.
    pub(super) fn grace_end(&self) -> Option<EpochMs> {
        let began_at = self.began_at.filter(|_| self.grace_ms > 0)?;
        Some(Now::from_ms(began_at.get()).after_ms(self.grace_ms))
    }

    /// When a grace period of this length ends; `None` if it has ended.
    pub(super) fn grace_of(&self, grace_ms: u64, now: Now) -> Option<EpochMs> {
        if grace_ms == 0 {
            return None;
        }
        let until = Now::from_ms(self.began_at?.get()).after_ms(grace_ms);
        Some(until).filter(|until| !until.is_over_at(now))
    }
}
