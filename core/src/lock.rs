//! One lock, and the one transition that decides what a request does to it.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::holders::Holders;
use crate::refusal::{Instead, Refusal};
use crate::{Change, End, EpochMs, Event, Hold, LeaseMs, Mode, Now, Owner, Token, Tokens};

/// Who holds a lock. The value at a key: saved, replicated, compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    holders: Holders,
}

/// What a decision needs to know beside the lock and the request.
#[derive(Debug)]
pub struct Moment<'t> {
    /// The server's clock.
    pub now: Now,
    /// Where a new hold's token comes from.
    pub tokens: &'t mut Tokens,
    /// `rlock.max-depth`: levels that one hold may have.
    pub max_depth: u16,
}

/// Something that happens to a lock.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// `RLOCK.ACQUIRE`.
    Acquire(Acquire<'a>),
    /// `RLOCK.RELEASE`.
    Release(Release<'a>),
    /// `RLOCK.RENEW`.
    Renew(Renew<'a>),
    /// `RLOCK.FORCE`: of this mode, or of both.
    Force(Option<Mode>),
}

/// Asks to hold.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a> {
    /// Who, 1 to [`Owner::MAX_BYTES`] bytes.
    pub owner: &'a [u8],
    /// How.
    pub mode: Mode,
    /// For how long from now.
    pub lease: LeaseMs,
    /// Whether WRITE may be put on top of the owner's READ.
    pub upgrade: bool,
    /// The depth to be at afterwards, from 1; `None` is one more than now.
    pub depth: Option<u16>,
}

/// Asks to let go.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// Who.
    pub owner: &'a [u8],
    /// Of which mode; `None` is WRITE if held, else READ.
    pub mode: Option<Mode>,
    /// Only the hold with this token.
    pub token: Option<Token>,
    /// How far.
    pub levels: Levels,
}

/// How far a release goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// One level down.
    One,
    /// The whole hold.
    All,
    /// Down to this depth; 0 lets go. Being there already is no error.
    DownTo(u16),
}

/// Asks for a later deadline.
#[derive(Clone, Copy, Debug)]
pub struct Renew<'a> {
    /// Who.
    pub owner: &'a [u8],
    /// Of which mode; `None` is all the owner's holds.
    pub mode: Option<Mode>,
    /// Only the hold with this token.
    pub token: Option<Token>,
    /// For how long from now, at least.
    pub lease: LeaseMs,
}

/// What the caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The owner holds, with this token, for `left_ms` milliseconds.
    Granted {
        /// The hold's fencing token.
        token: Token,
        /// Milliseconds to its deadline.
        left_ms: u64,
    },
    /// Somebody is in the way, for `wait_ms` milliseconds at the latest if nobody renews.
    NotNow {
        /// Milliseconds to the latest deadline in the way.
        wait_ms: u64,
    },
    /// Depth left, holds ended, or 1 for renewed.
    Count(u64),
    /// An error; nothing changed.
    Refused(Refusal),
}

/// What a transition did. The lock has changed already; this is what the world must be told.
#[must_use = "an effect that is not carried out is a lost change on every replica"]
#[derive(Clone, Debug)]
pub struct Effects<'a> {
    /// For the caller.
    pub reply: Reply,
    /// For replicas and the append-only file, in order.
    pub changes: SmallVec<[Change<'a>; 2]>,
    /// For subscribers, in order.
    pub events: SmallVec<[Event; 4]>,
}

impl From<Holders> for Lock {
    fn from(holders: Holders) -> Self {
        Self { holders }
    }
}

impl Lock {
    /// Decides what `input` does at this moment and does it. Holds whose deadline has come end first, so
    /// that nothing is decided by what is over.
    pub fn apply<'a>(&mut self, moment: &mut Moment<'_>, input: Input<'a>) -> Effects<'a> {
        let mut effects =
            Effects { reply: Reply::Count(0), changes: SmallVec::new(), events: SmallVec::new() };
        while let Some(token) = self.holders.first_over(moment.now) {
            self.record(Change::Ended { token, by: End::Expired }, &mut effects);
        }
        effects.reply = match input {
            Input::Acquire(ask) => self.acquire(ask, moment, &mut effects),
            Input::Release(ask) => self.release(ask, &mut effects),
            Input::Renew(ask) => self.renew(ask, moment.now, &mut effects),
            Input::Force(mode) => self.force(mode, &mut effects),
        };
        effects
    }

    /// Makes one change: the only way in which a lock changes, here and on every replica. Says what
    /// subscribers are to be told. A change of a hold that is not there changes nothing.
    pub fn replay(&mut self, change: &Change<'_>) -> Option<Event> {
        match change {
            Change::Granted { owner, mode, token, deadline } => {
                let below = self.holders.hold(owner, Mode::Read).is_some();
                let hold = Hold { token: *token, deadline: *deadline, depth: 1 };
                self.holders.insert(Owner::from(owner.as_ref()), *mode, hold);
                let is_upgrade = below && *mode == Mode::Write;
                Some(if is_upgrade { Event::Upgraded } else { Event::Acquired })
            }
            Change::Held { token, depth, deadline } => {
                self.holders.set(*token, *depth, *deadline);
                None
            }
            Change::Ended { token, by } => {
                let (owner, mode) = self.holders.remove(*token)?;
                let stays = mode == Mode::Write
                    && self.holders.hold(owner.as_bytes(), Mode::Read).is_some();
                Some(match by {
                    End::Released if stays => Event::Downgraded,
                    End::Released => Event::Released,
                    End::Expired => Event::Expired,
                    End::Forced => Event::Forced,
                })
            }
        }
    }

    /// Nobody holds it: there is nothing to keep.
    pub fn is_free(&self) -> bool {
        self.holders.is_free()
    }

    /// Number of holds, over or not; an owner that holds both modes counts twice.
    pub fn hold_count(&self) -> usize {
        self.holders.len()
    }

    /// Bytes on the heap beside the lock's own, about.
    pub fn heap_bytes(&self) -> usize {
        self.holders.heap_bytes()
    }

    /// When the last hold is over: the key's time to live.
    pub fn latest_deadline(&self) -> Option<EpochMs> {
        self.holders.latest_deadline()
    }

    /// Every hold, over or not, in the order of their tokens.
    pub fn holds(&self) -> impl Iterator<Item = (&Owner, Mode, &Hold)> {
        self.holders.iter()
    }

    /// The holds that are not over, in the order of their tokens.
    pub fn holds_at(&self, now: Now) -> impl Iterator<Item = (&Owner, Mode, &Hold)> {
        self.holders.iter().filter(move |(_, _, hold)| !hold.deadline.is_over_at(now))
    }

    /// One owner's hold that is not over.
    pub fn hold_at(&self, owner: &[u8], mode: Mode, now: Now) -> Option<&Hold> {
        self.holders.hold(owner, mode).filter(|hold| !hold.deadline.is_over_at(now))
    }

    /// Whether a hold of this mode that is not over has this token.
    pub fn has_token_at(&self, token: Token, mode: Mode, now: Now) -> bool {
        self.holders
            .by_token(token)
            .is_some_and(|(held, hold)| held == mode && !hold.deadline.is_over_at(now))
    }

    /// How the lock is held at this moment; `None` is free.
    pub fn mode_at(&self, now: Now) -> Option<Mode> {
        match self.holders.writer() {
            Some((_, write)) if !write.deadline.is_over_at(now) => Some(Mode::Write),
            _ => {
                self.holders.latest_deadline().filter(|at| !at.is_over_at(now)).map(|_| Mode::Read)
            }
        }
    }

    fn record<'a>(&mut self, change: Change<'a>, effects: &mut Effects<'a>) {
        effects.events.extend(self.replay(&change));
        effects.changes.push(change);
    }

    fn acquire<'a>(
        &mut self,
        ask: Acquire<'a>,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        let held = self.holders.hold(ask.owner, ask.mode).copied();
        let present = held.map_or(0, |hold| hold.depth);
        if let Some(asked) = ask.depth
            && asked > present.saturating_add(1)
        {
            return Reply::Refused(Refusal::DepthSkipped { asked, present });
        }
        if let Some(hold) = held {
            return self.enter_again(ask, hold, moment, effects);
        }
        if let Err(reply) = self.is_open_to(&ask, moment.now) {
            return reply;
        }
        let Some(token) = moment.tokens.issue(moment.now) else {
            return Reply::Refused(Refusal::NoTokenLeft);
        };
        let deadline = moment.now.ms().after(ask.lease);
        let owner = Cow::Borrowed(ask.owner);
        self.record(Change::Granted { owner, mode: ask.mode, token, deadline }, effects);
        Reply::Granted { token, left_ms: deadline.left_at(moment.now) }
    }

    /// A new hold may begin; else the answer to the one who asked for it.
    fn is_open_to(&self, ask: &Acquire<'_>, now: Now) -> Result<(), Reply> {
        let in_the_way = match ask.mode {
            Mode::Read => match self.holders.writer() {
                Some((owner, write)) if owner.as_bytes() != ask.owner => Some(write.deadline),
                _ => None,
            },
            Mode::Write => {
                if !ask.upgrade && self.holders.hold(ask.owner, Mode::Read).is_some() {
                    return Err(Reply::Refused(Refusal::UpgradeWouldDeadlock));
                }
                self.holders.latest_deadline_beside(ask.owner)
            }
        };
        match in_the_way {
            None => Ok(()),
            Some(deadline) => Err(Reply::NotNow { wait_ms: deadline.left_at(now) }),
        }
    }

    fn enter_again<'a>(
        &mut self,
        ask: Acquire<'a>,
        hold: Hold,
        moment: &Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        let depth = match ask.depth {
            Some(asked) if asked <= hold.depth => hold.depth,
            _ => match hold.depth.checked_add(1) {
                Some(depth) if depth <= moment.max_depth => depth,
                _ => return Reply::Refused(Refusal::TooDeep { max: moment.max_depth }),
            },
        };
        let deadline = hold.deadline.max(moment.now.ms().after(ask.lease));
        self.hold_on(hold, depth, deadline, effects);
        Reply::Granted { token: hold.token, left_ms: deadline.left_at(moment.now) }
    }

    fn release<'a>(&mut self, ask: Release<'a>, effects: &mut Effects<'a>) -> Reply {
        let asked = |mode: &Mode| ask.mode.is_none_or(|only| only == *mode);
        let target = [Mode::Write, Mode::Read]
            .into_iter()
            .filter(asked)
            .filter_map(|mode| self.holders.hold(ask.owner, mode).copied())
            .find(|hold| ask.token.is_none_or(|token| token == hold.token));
        let Some(hold) = target else {
            return match (ask.levels, ask.token) {
                (Levels::DownTo(_), None) => Reply::Count(0),
                _ => self.not_held(ask.owner, ask.mode, ask.token),
            };
        };
        let left = match ask.levels {
            Levels::One => hold.depth.saturating_sub(1),
            Levels::All => 0,
            Levels::DownTo(depth) => depth.min(hold.depth),
        };
        if left == 0 {
            self.record(Change::Ended { token: hold.token, by: End::Released }, effects);
        } else {
            self.hold_on(hold, left, hold.deadline, effects);
        }
        Reply::Count(left.into())
    }

    fn renew<'a>(&mut self, ask: Renew<'a>, now: Now, effects: &mut Effects<'a>) -> Reply {
        let asked = |mode: &Mode| ask.mode.is_none_or(|only| only == *mode);
        let mut is_held = false;
        for mode in [Mode::Write, Mode::Read].into_iter().filter(asked) {
            let hold = self.holders.hold(ask.owner, mode).copied();
            if let Some(hold) = hold
                && ask.token.is_none_or(|token| token == hold.token)
            {
                is_held = true;
                let deadline = hold.deadline.max(now.ms().after(ask.lease));
                self.hold_on(hold, hold.depth, deadline, effects);
            }
        }
        if is_held { Reply::Count(1) } else { self.not_held(ask.owner, ask.mode, ask.token) }
    }

    fn force<'a>(&mut self, mode: Option<Mode>, effects: &mut Effects<'a>) -> Reply {
        let tokens: Vec<Token> = self
            .holders
            .iter()
            .filter(|(_, held, _)| mode.is_none_or(|only| only == *held))
            .map(|(_, _, hold)| hold.token)
            .collect();
        for token in &tokens {
            self.record(Change::Ended { token: *token, by: End::Forced }, effects);
        }
        Reply::Count(u64::try_from(tokens.len()).unwrap_or(u64::MAX))
    }

    /// Nothing is recorded that changes nothing.
    fn hold_on(&mut self, hold: Hold, depth: u16, deadline: EpochMs, effects: &mut Effects<'_>) {
        if (depth, deadline) != (hold.depth, hold.deadline) {
            self.record(Change::Held { token: hold.token, depth, deadline }, effects);
        }
    }

    fn not_held(&self, owner: &[u8], mode: Option<Mode>, token: Option<Token>) -> Reply {
        let own = [Mode::Write, Mode::Read].into_iter().find_map(|held| {
            self.holders.hold(owner, held).map(|hold| Instead::Own(held, hold.token))
        });
        let instead = own.unwrap_or_else(|| match self.holders.iter().next() {
            None => Instead::Free,
            Some((other, _, _)) => match self.holders.writer() {
                Some((writer, _)) => Instead::WriteBy(writer.clone()),
                None if self.holders.len() == 1 => Instead::ReadBy(other.clone()),
                None => Instead::ReadByMany(self.holders.len()),
            },
        });
        Reply::Refused(Refusal::NotHeld { mode, token, instead })
    }
}
