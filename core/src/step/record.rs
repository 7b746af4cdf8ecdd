//! Changes of a hold that goes on.

use crate::step::input::Effects;
use crate::{Change, EpochMs, Hold, Lock, Now, Token};

impl Lock {
    pub(crate) fn record<'a>(&mut self, change: Change<'a>, effects: &mut Effects<'a>) {
        effects.events.extend(self.replay(&change));
        effects.changes.push(change);
    }

    /// A change that changes nothing is not recorded.
    pub(crate) fn update_hold(
        &mut self,
        hold: Hold,
        depth: u16,
        deadline: EpochMs,
        effects: &mut Effects<'_>,
    ) {
        if (depth, deadline) != (hold.depth, hold.deadline) {
            self.record(Change::Updated { token: hold.token, depth, deadline }, effects);
        }
    }

    /// The depth and the deadline of a hold; 0 and `now` if there is none.
    pub(crate) fn levels(&self, token: Token, now: Now) -> (u16, EpochMs) {
        let hold = self.holders.by_token(token);
        hold.map_or((0, now.ms()), |(_, hold)| (hold.depth, hold.deadline))
    }
}
