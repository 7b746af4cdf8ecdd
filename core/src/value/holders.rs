//! Who holds now. The types cannot express two writers, or a writer beside another owner.

use std::mem;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use crate::value::hold::Hold;
use crate::value::readers::Readers;
use crate::{EpochMs, Now, Owner, Token};

/// The mode in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

impl Mode {
    /// As in commands.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
        }
    }

    /// As in `RLOCK.INFO`.
    pub const fn lower(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Who holds a lock. The most common case needs no allocation of its own: one owner with a short
/// name and one hold. It takes 64 bytes, a size class of allocators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holders {
    #[default]
    Free,
    /// One owner with one hold.
    Short(Only<ArrayVec<u8, { Owner::INLINE_BYTES }>>),
    /// The same, with a longer name.
    Long(Only<Box<[u8]>>),
    /// One owner with both modes.
    Both(Box<(Owner, Grip)>),
    /// Two owners or more, all of them readers.
    Shared(Box<Readers>),
}

const _: () = assert!(size_of::<Holders>() == 64);

/// The only hold of a lock. A [`Hold`] inside it would take more space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Only<N> {
    owner: N,
    mode: Mode,
    depth: u16,
    token: Token,
    deadline: EpochMs,
}

impl<N: AsRef<[u8]>> Only<N> {
    fn new(owner: N, mode: Mode, Hold { token, deadline, depth }: Hold) -> Self {
        Self { owner, mode, depth, token, deadline }
    }

    #[inline]
    fn shown(&self) -> (&[u8], Hold) {
        let Self { token, deadline, depth, .. } = *self;
        (self.owner.as_ref(), Hold { token, deadline, depth })
    }

    fn set(&mut self, token: Token, depth: u16, deadline: EpochMs) {
        if self.token == token {
            (self.depth, self.deadline) = (depth, deadline);
        }
    }
}

/// What the only owner holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grip {
    Read(Hold),
    Write(Hold),
    Both { read: Hold, write: Hold },
}

impl Grip {
    fn new(mode: Mode, hold: Hold) -> Self {
        match mode {
            Mode::Read => Self::Read(hold),
            Mode::Write => Self::Write(hold),
        }
    }

    fn get(self, mode: Mode) -> Option<Hold> {
        match (self, mode) {
            (Self::Read(hold) | Self::Both { read: hold, .. }, Mode::Read)
            | (Self::Write(hold) | Self::Both { write: hold, .. }, Mode::Write) => Some(hold),
            _ => None,
        }
    }

    /// The holds in the order of their tokens.
    fn pair(self) -> [Option<(Mode, Hold)>; 2] {
        match self {
            Self::Read(hold) => [Some((Mode::Read, hold)), None],
            Self::Write(hold) => [Some((Mode::Write, hold)), None],
            Self::Both { read, write } if read.token < write.token => {
                [Some((Mode::Read, read)), Some((Mode::Write, write))]
            }
            Self::Both { read, write } => [Some((Mode::Write, write)), Some((Mode::Read, read))],
        }
    }

    fn by_token(self, token: Token) -> Option<(Mode, Hold)> {
        self.pair().into_iter().flatten().find(|(_, hold)| hold.token == token)
    }

    fn with(self, mode: Mode, hold: Hold) -> Self {
        match (self.without(mode), mode) {
            (Some(Self::Read(read)), Mode::Write) => Self::Both { read, write: hold },
            (Some(Self::Write(write)), Mode::Read) => Self::Both { read: hold, write },
            _ => Self::new(mode, hold),
        }
    }

    fn without(self, mode: Mode) -> Option<Self> {
        match (self, mode) {
            (Self::Read(_), Mode::Read) | (Self::Write(_), Mode::Write) => None,
            (Self::Both { write, .. }, Mode::Read) => Some(Self::Write(write)),
            (Self::Both { read, .. }, Mode::Write) => Some(Self::Read(read)),
            (other, _) => Some(other),
        }
    }

    fn latest_deadline(self) -> EpochMs {
        match self {
            Self::Read(hold) | Self::Write(hold) => hold.deadline,
            Self::Both { read, write } => read.deadline.max(write.deadline),
        }
    }
}

impl Holders {
    fn alone(owner: &[u8], grip: Grip) -> Self {
        let (mode, hold) = match grip {
            Grip::Read(hold) => (Mode::Read, hold),
            Grip::Write(hold) => (Mode::Write, hold),
            Grip::Both { .. } => return Self::Both(Box::new((owner.into(), grip))),
        };
        match ArrayVec::try_from(owner) {
            Ok(short) => Self::Short(Only::new(short, mode, hold)),
            Err(_) => Self::Long(Only::new(owner.into(), mode, hold)),
        }
    }

    /// The only owner, and its holds.
    fn sole(&self) -> Option<(&[u8], Grip)> {
        let (mode, (owner, hold)) = match self {
            Self::Short(only) => (only.mode, only.shown()),
            Self::Long(only) => (only.mode, only.shown()),
            Self::Both(both) => return Some((both.0.as_bytes(), both.1)),
            Self::Free | Self::Shared(_) => return None,
        };
        Some((owner, Grip::new(mode, hold)))
    }

    /// The only owner, if it holds in this mode.
    #[inline]
    fn sole_in(&self, mode: Mode) -> Option<(&[u8], Hold)> {
        match self {
            Self::Short(only) if only.mode == mode => Some(only.shown()),
            Self::Long(only) if only.mode == mode => Some(only.shown()),
            Self::Both(both) => both.1.get(mode).map(|hold| (both.0.as_bytes(), hold)),
            _ => None,
        }
    }

    pub(crate) fn shared(&self) -> Option<&Readers> {
        match self {
            Self::Shared(readers) => Some(readers),
            _ => None,
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// Number of holds; an owner with both modes counts twice.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Free => 0,
            Self::Short(_) | Self::Long(_) => 1,
            Self::Both(_) => 2,
            Self::Shared(readers) => readers.len(),
        }
    }

    /// Number of holds that do not count as ended.
    pub(crate) fn standing_count(&self) -> usize {
        self.shared().map_or(self.len(), Readers::standing_count)
    }

    /// Number of owners that hold READ.
    pub(crate) fn reader_count(&self) -> usize {
        match self {
            Self::Shared(readers) => readers.standing_count(),
            _ => self.sole_in(Mode::Read).map_or(0, |_| 1),
        }
    }

    /// One owner's hold, unless it counts as ended.
    #[inline]
    pub(crate) fn hold(&self, owner: &[u8], mode: Mode) -> Option<Hold> {
        match self {
            Self::Shared(readers) => {
                let held = self.any_hold(owner, mode);
                held.filter(|hold| !readers.is_ended(hold.deadline))
            }
            _ => self.any_hold(owner, mode),
        }
    }

    /// One owner's hold, whether it counts as ended or not.
    #[inline]
    pub(crate) fn any_hold(&self, owner: &[u8], mode: Mode) -> Option<Hold> {
        match self {
            Self::Shared(readers) if mode == Mode::Read => readers.hold(owner).copied(),
            _ => self.sole_in(mode).filter(|(holder, _)| *holder == owner).map(|(_, hold)| hold),
        }
    }

    /// The hold with this token.
    pub(crate) fn by_token(&self, token: Token) -> Option<(&[u8], Mode, Hold)> {
        if let Some((owner, grip)) = self.sole() {
            return grip.by_token(token).map(|(mode, hold)| (owner, mode, hold));
        }
        let (owner, hold) = self.shared()?.by_token(token)?;
        Some((owner.as_bytes(), Mode::Read, *hold))
    }

    /// The hold that excludes everybody but its owner.
    pub(crate) fn writer(&self) -> Option<(&[u8], Hold)> {
        self.sole_in(Mode::Write)
    }

    /// All holds, in the order of their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Mode, Hold)> {
        let sole = self.sole().into_iter().flat_map(|(owner, grip)| {
            grip.pair().into_iter().flatten().map(move |(mode, hold)| (owner, mode, hold))
        });
        let shared = self.shared().into_iter().flat_map(Readers::iter);
        sole.chain(shared.map(|(owner, hold)| (owner.as_bytes(), Mode::Read, *hold)))
    }

    /// Every hold that does not count as ended.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (&[u8], Mode, Hold)> {
        let sole = self.shared().is_none().then(|| self.iter());
        let shared = self.shared().into_iter().flat_map(Readers::standing);
        let shared = shared.map(|(owner, hold)| (owner.as_bytes(), Mode::Read, *hold));
        sole.into_iter().flatten().chain(shared)
    }

    /// All holds that neither count as ended nor have expired. Does not visit the others.
    pub(crate) fn standing_at(&self, now: Now) -> impl Iterator<Item = (&[u8], Mode, Hold)> {
        let sole = self.shared().is_none().then(|| self.iter()).into_iter().flatten();
        let sole = sole.filter(move |(_, _, hold)| !hold.deadline.is_over_at(now));
        let shared = self.shared().into_iter().flat_map(move |readers| readers.standing_at(now));
        sole.chain(shared.map(|(owner, hold)| (owner.as_bytes(), Mode::Read, *hold)))
    }

    /// All owners that hold, each once.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &[u8]> {
        let shared = self.shared().into_iter().flat_map(Readers::standing);
        let sole = self.sole().map(|(owner, _)| owner);
        sole.into_iter().chain(shared.map(|(owner, _)| owner.as_bytes()))
    }

    /// A hold that has expired or counts as ended, if there is one.
    pub(crate) fn first_over(&self, now: Now) -> Option<Token> {
        match self.sole() {
            Some((_, grip)) => {
                let mut holds = grip.pair().into_iter().flatten().map(|(_, hold)| hold);
                holds.find(|hold| hold.deadline.is_over_at(now)).map(|hold| hold.token)
            }
            None => self.shared()?.first_over(now),
        }
    }

    /// Number of expired holds.
    pub(crate) fn count_over(&self, now: Now) -> usize {
        match self.sole() {
            Some((_, grip)) => {
                let holds = grip.pair().into_iter().flatten();
                holds.filter(|(_, hold)| hold.deadline.is_over_at(now)).count()
            }
            None => self.shared().map_or(0, |readers| readers.count_over(now)),
        }
    }

    /// When the last hold expires.
    pub(crate) fn latest_deadline(&self) -> Option<EpochMs> {
        match self.sole() {
            Some((_, grip)) => Some(grip.latest_deadline()),
            None => self.shared()?.latest_deadline(),
        }
    }

    /// When the last of the holds expires that do not count as ended.
    pub(crate) fn latest_standing(&self) -> Option<EpochMs> {
        match self.sole() {
            Some((_, grip)) => Some(grip.latest_deadline()),
            None => self.shared()?.latest_standing(),
        }
    }

    /// The same, among the holds of all other owners.
    pub(crate) fn latest_standing_beside(&self, owner: &[u8]) -> Option<EpochMs> {
        match self.sole() {
            Some((holder, grip)) => (holder != owner).then(|| grip.latest_deadline()),
            None => self.shared()?.latest_standing_beside(owner),
        }
    }

    /// Holds with a deadline up to this one count as ended although they are still here.
    pub(crate) fn ended_until(&self) -> Option<EpochMs> {
        self.shared()?.ended_until()
    }

    /// From now on, expired holds count as ended. False if they are so few that all of them should
    /// be ended now.
    pub(crate) fn end_over(&mut self, now: Now) -> bool {
        let Self::Shared(readers) = self else { return false };
        readers.end_over(now);
        true
    }

    /// Takes out the readers before this owner enters with WRITE. The owner keeps its own READ.
    pub(crate) fn take_readers(&mut self, owner: &[u8]) -> Option<Readers> {
        let own = self.hold(owner, Mode::Read);
        let rest = own.map_or(Self::Free, |own| Self::alone(owner, Grip::Read(own)));
        match mem::replace(self, rest) {
            Self::Shared(mut readers) => {
                own.map(|own| readers.remove(own.token));
                Some(*readers)
            }
            same => {
                *self = same;
                None
            }
        }
    }

    /// When the first of the holds expires that do not count as ended.
    pub(crate) fn earliest_deadline(&self) -> Option<EpochMs> {
        match self {
            Self::Free => None,
            Self::Short(only) => Some(only.deadline),
            Self::Long(only) => Some(only.deadline),
            Self::Both(_) | Self::Shared(_) => self.by_deadline().map(|(at, _)| at).next(),
        }
    }

    /// The deadlines of the holds that do not count as ended, earliest first.
    pub(crate) fn by_deadline(&self) -> impl Iterator<Item = (EpochMs, Token)> {
        let mut pair = self.sole().map_or([None, None], |(_, grip)| {
            grip.pair().map(|at| at.map(|(_, hold)| (hold.deadline, hold.token)))
        });
        pair.sort_unstable();
        let shared = self.shared().into_iter().flat_map(Readers::by_deadline);
        pair.into_iter().flatten().chain(shared)
    }

    /// Approximate number of bytes on the heap, for `MEMORY USAGE`.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Free | Self::Short(_) => 0,
            Self::Long(only) => only.owner.len(),
            Self::Both(both) => both.0.heap_bytes().saturating_add(size_of::<(Owner, Grip)>()),
            Self::Shared(readers) => readers.heap_bytes().saturating_add(size_of::<Readers>()),
        }
    }

    /// Adds a hold, and removes those that conflict with it. A primary checks for conflicts first,
    /// so no hold is removed there; in a replay, the latest change wins.
    pub(crate) fn insert(&mut self, owner: &[u8], mode: Mode, hold: Hold) {
        if self.is_free() {
            *self = Self::alone(owner, Grip::new(mode, hold));
            return;
        }
        self.remove(hold.token);
        if let Self::Shared(readers) = self
            && mode == Mode::Read
        {
            return readers.insert(owner.into(), hold);
        }
        let own = match self.sole() {
            Some((holder, grip)) => Some(grip).filter(|_| holder == owner),
            None => self.any_hold(owner, Mode::Read).map(Grip::Read),
        };
        *self = match (own, self.sole()) {
            (None, Some((holder, Grip::Read(other)))) if mode == Mode::Read => {
                let mut readers = Readers::default();
                readers.insert(holder.into(), other);
                readers.insert(owner.into(), hold);
                Self::Shared(Box::new(readers))
            }
            (own, _) => {
                let grip = own.map_or(Grip::new(mode, hold), |own| own.with(mode, hold));
                Self::alone(owner, grip)
            }
        };
    }

    /// Sets depth and deadline of the hold with this token, if there is one.
    pub(crate) fn set(&mut self, token: Token, depth: u16, deadline: EpochMs) {
        match self {
            Self::Free => {}
            Self::Short(only) => only.set(token, depth, deadline),
            Self::Long(only) => only.set(token, depth, deadline),
            Self::Both(both) => {
                if let Some((mode, _)) = both.1.by_token(token) {
                    both.1 = both.1.with(mode, Hold { token, deadline, depth });
                }
            }
            Self::Shared(readers) => readers.set(token, depth, deadline),
        }
    }

    /// Removes the hold with this token. Returns whether its owner keeps READ; `None` if there is
    /// no such hold.
    pub(crate) fn remove(&mut self, token: Token) -> Option<bool> {
        match self {
            Self::Short(Only { token: only, .. }) | Self::Long(Only { token: only, .. })
                if *only == token =>
            {
                *self = Self::Free;
                Some(false)
            }
            Self::Both(both) => {
                let (mode, _) = both.1.by_token(token)?;
                let rest = both.1.without(mode)?;
                *self = Self::alone(both.0.as_bytes(), rest);
                Some(mode == Mode::Write)
            }
            Self::Shared(readers) => {
                readers.remove(token)?;
                if let Some((last, hold)) = readers.take_last_one() {
                    *self = Self::alone(last.as_bytes(), Grip::Read(hold));
                }
                Some(false)
            }
            Self::Free | Self::Short(_) | Self::Long(_) => None,
        }
    }
}
