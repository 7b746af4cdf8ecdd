//! Holds that begin, and holds that gain a level.

use std::borrow::Cow;

use crate::step::input::{Acquire, Reply};
use crate::step::refusal::Instead;
use crate::{Change, Hold, LeaseMs, Mode, Refusal, Step, Token};

impl<'a> Step<'_, 'a> {
    /// Begins a new hold, with this token or the next one.
    pub(crate) fn begin_hold(
        &mut self,
        owner: Cow<'a, [u8]>,
        ask: &Acquire<'_>,
        token: Option<Token>,
    ) -> Reply {
        let now = self.moment.now;
        self.make_way(&owner, ask.mode);
        let Some(token) = token.or_else(|| self.moment.tokens.issue(now)) else {
            return Reply::Refused(Refusal::NoTokenLeft);
        };
        let begun = self.lock.begin(owner, ask, now, token);
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

    /// The refusal of a `DEPTH` that is more than one level beyond the present depth; `None` if it
    /// is not.
    pub(crate) fn level_is_skipped(
        &self,
        owner: &[u8],
        mode: Mode,
        depth: Option<u16>,
    ) -> Option<Reply> {
        let asked = depth.filter(|asked| *asked > 1)?;
        let held = self.lock.holders.hold(owner, mode);
        let present = held.map_or(0, |hold| hold.depth);
        (asked > present.saturating_add(1)).then(|| match held {
            Some(_) => Reply::Refused(Refusal::DepthSkipped { asked, present }),
            None => self.not_held(owner, Some(mode), None),
        })
    }

    /// The refusal for an owner that has no hold of that mode, or with that token.
    pub(crate) fn not_held(&self, owner: &[u8], mode: Option<Mode>, token: Option<Token>) -> Reply {
        // The hold that the error names: the one with this token, else that of this mode, else
        // WRITE.
        let own = [Mode::Write, Mode::Read]
            .into_iter()
            .filter_map(|held| self.lock.holders.hold(owner, held).map(|hold| (held, hold.token)))
            .max_by_key(|(held, own)| (Some(*own) == token, Some(*held) == mode, *held))
            .map(|(held, own)| Instead::Own(held, own));
        let instead = own.unwrap_or_else(|| match self.lock.holders.standing().next() {
            None => Instead::Free,
            Some((other, _, _)) => match self.lock.holders.writer() {
                Some((writer, _)) => Instead::WriteBy(writer.into()),
                None if self.lock.holders.standing_count() == 1 => Instead::ReadBy(other.into()),
                None => Instead::ReadByMany(self.lock.holders.standing_count()),
            },
        });
        Reply::Refused(Refusal::NotHeld { mode, token, instead })
    }
}
