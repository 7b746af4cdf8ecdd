//! Holds that begin, and holds that get another level.

use std::borrow::Cow;

use crate::step::input::{Effects, Reply, StepContext};
use crate::{Change, Hold, LeaseMs, Lock, Mode, Refusal, Volatile};

impl Lock {
    /// Begins a new hold.
    pub(crate) fn begin_hold<'a>(
        &mut self,
        owner: Cow<'a, [u8]>,
        mode: Mode,
        lease: LeaseMs,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        self.make_way(&owner, mode, volatile, moment, effects);
        let Some(begun) = self.begin(owner, mode, lease, moment.now, moment.tokens) else {
            return Reply::Refused(Refusal::NoTokenLeft);
        };
        effects.events.extend(begun.event);
        effects.changes.push(begun.change);
        begun.reply
    }

    /// Adds a level, or goes to the requested depth; the deadline is only ever extended.
    pub(crate) fn reenter(
        &mut self,
        asked: Option<u16>,
        lease: LeaseMs,
        hold: Hold,
        moment: &StepContext<'_>,
        effects: &mut Effects<'_>,
    ) -> Reply {
        let depth = match asked {
            Some(asked) if asked <= hold.depth => hold.depth,
            _ => match hold.depth.checked_add(1) {
                Some(depth) if depth <= moment.max_depth => depth,
                _ => {
                    let (present, max) = (hold.depth, moment.max_depth);
                    return Reply::Refused(Refusal::TooDeep { present, max });
                }
            },
        };
        let deadline = hold.deadline.max(moment.now.after(lease));
        self.record(Change::Updated { token: hold.token, depth, deadline }, effects);
        Reply::Granted { token: hold.token, remaining_ms: deadline.left_at(moment.now) }
    }
}
