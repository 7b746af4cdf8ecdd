//! Holds that begin, and holds that get another level.

use std::borrow::Cow;

use crate::step::input::Reply;
use crate::{Change, FastStep, Hold, LeaseMs, Mode, Refusal, Step};

impl<'a> Step<'_, 'a> {
    /// Begins a new hold.
    pub(crate) fn begin_hold(&mut self, owner: Cow<'a, [u8]>, mode: Mode, lease: LeaseMs) -> Reply {
        self.make_way(&owner, mode);
        let Some(begun) = self.lock.begin(owner, mode, lease, self.moment.now, self.moment.tokens)
        else {
            return Reply::Refused(Refusal::NoTokenLeft);
        };
        self.tell(begun)
    }

    /// Adds the change to what the step did. Returns the reply.
    pub(crate) fn tell(&mut self, begun: FastStep<'a>) -> Reply {
        self.effects.events.extend(begun.event);
        self.effects.changes.push(begun.change);
        begun.reply
    }

    /// Adds a level, or goes to the requested depth; the deadline is only ever extended.
    pub(crate) fn reenter(&mut self, asked: Option<u16>, lease: LeaseMs, hold: Hold) -> Reply {
        let depth = match asked {
            Some(asked) if asked <= hold.depth => hold.depth,
            _ => match hold.depth.checked_add(1) {
                Some(depth) if depth <= self.moment.max_depth => depth,
                _ => {
                    let (present, max) = (hold.depth, self.moment.max_depth);
                    return Reply::Refused(Refusal::TooDeep { present, max });
                }
            },
        };
        let deadline = hold.deadline.max(self.moment.now.after(lease));
        self.record(Change::Updated { token: hold.token, depth, deadline });
        Reply::Granted { token: hold.token, remaining_ms: deadline.left_at(self.moment.now) }
    }
}
