//! Who holds now. The types cannot express two writers, or a writer beside a stranger.

use serde::{Deserialize, Serialize};

use crate::readers::Readers;
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

/// One owner's hold in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its fencing token: the same from the first level to the last.
    pub token: Token,
    /// When it expires, whatever its depth.
    pub deadline: EpochMs,
    /// Levels acquired and not released, from 1.
    pub depth: u16,
}

/// Who holds a lock. The common case, one owner, needs one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holders {
    #[default]
    Free,
    Sole(Owner, Grip),
    /// Two owners or more, all of them readers.
    Shared(Box<Readers>),
}

/// What the only owner holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grip {
    Read(Hold),
    Write(Hold),
    /// Both, boxed because it is rare.
    Both(Box<Both>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Both {
    read: Hold,
    write: Hold,
}

impl Grip {
    fn new(mode: Mode, hold: Hold) -> Self {
        match mode {
            Mode::Read => Self::Read(hold),
            Mode::Write => Self::Write(hold),
        }
    }

    fn get(&self, mode: Mode) -> Option<&Hold> {
        match (self, mode) {
            (Self::Read(hold), Mode::Read) | (Self::Write(hold), Mode::Write) => Some(hold),
            (Self::Both(both), Mode::Read) => Some(&both.read),
            (Self::Both(both), Mode::Write) => Some(&both.write),
            _ => None,
        }
    }

    /// The holds in the order of their tokens.
    fn pair(&self) -> [Option<(Mode, &Hold)>; 2] {
        match self {
            Self::Read(hold) => [Some((Mode::Read, hold)), None],
            Self::Write(hold) => [Some((Mode::Write, hold)), None],
            Self::Both(both) => {
                let (read, write) = ((Mode::Read, &both.read), (Mode::Write, &both.write));
                if both.read.token < both.write.token {
                    [Some(read), Some(write)]
                } else {
                    [Some(write), Some(read)]
                }
            }
        }
    }

    fn by_token_mut(&mut self, token: Token) -> Option<(Mode, &mut Hold)> {
        let (mode, hold) = match self {
            Self::Read(hold) => (Mode::Read, hold),
            Self::Write(hold) => (Mode::Write, hold),
            Self::Both(both) => {
                let Both { read, write } = both.as_mut();
                if read.token == token { (Mode::Read, read) } else { (Mode::Write, write) }
            }
        };
        (hold.token == token).then_some((mode, hold))
    }

    fn with(self, mode: Mode, hold: Hold) -> Self {
        match (self.without(mode), mode) {
            (Some(Self::Read(read)), Mode::Write) => {
                Self::Both(Box::new(Both { read, write: hold }))
            }
            (Some(Self::Write(write)), Mode::Read) => {
                Self::Both(Box::new(Both { read: hold, write }))
            }
            _ => Self::new(mode, hold),
        }
    }

    fn without(self, mode: Mode) -> Option<Self> {
        match (self, mode) {
            (Self::Read(_), Mode::Read) | (Self::Write(_), Mode::Write) => None,
            (Self::Both(both), Mode::Read) => Some(Self::Write(both.write)),
            (Self::Both(both), Mode::Write) => Some(Self::Read(both.read)),
            (other, _) => Some(other),
        }
    }

    fn latest_deadline(&self) -> EpochMs {
        match self {
            Self::Read(hold) | Self::Write(hold) => hold.deadline,
            Self::Both(both) => both.read.deadline.max(both.write.deadline),
        }
    }
}

impl Holders {
    pub(crate) fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// Number of holds; an owner with both modes counts twice.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Free => 0,
            Self::Sole(_, Grip::Both(_)) => 2,
            Self::Sole(..) => 1,
            Self::Shared(readers) => readers.len(),
        }
    }

    /// Number of owners that hold READ.
    pub(crate) fn reader_count(&self) -> usize {
        match self {
            Self::Free | Self::Sole(_, Grip::Write(_)) => 0,
            Self::Sole(..) => 1,
            Self::Shared(readers) => readers.len(),
        }
    }

    pub(crate) fn hold(&self, owner: &[u8], mode: Mode) -> Option<&Hold> {
        match self {
            Self::Sole(holder, grip) if holder.as_bytes() == owner => grip.get(mode),
            Self::Shared(readers) if mode == Mode::Read => readers.hold(owner),
            _ => None,
        }
    }

    /// The hold with this token.
    pub(crate) fn by_token(&self, token: Token) -> Option<(Mode, &Hold)> {
        match self {
            Self::Free => None,
            Self::Sole(_, grip) => {
                grip.pair().into_iter().flatten().find(|(_, hold)| hold.token == token)
            }
            Self::Shared(readers) => readers.by_token(token).map(|hold| (Mode::Read, hold)),
        }
    }

    /// Whose hold has this token.
    pub(crate) fn owner(&self, token: Token) -> Option<&Owner> {
        match self {
            Self::Free => None,
            Self::Sole(owner, grip) => {
                let mut held = grip.pair().into_iter().flatten();
                held.any(|(_, hold)| hold.token == token).then_some(owner)
            }
            Self::Shared(readers) => readers.owner(token),
        }
    }

    /// The hold that excludes everybody but its owner.
    pub(crate) fn writer(&self) -> Option<(&Owner, &Hold)> {
        match self {
            Self::Sole(owner, grip) => grip.get(Mode::Write).map(|hold| (owner, hold)),
            _ => None,
        }
    }

    /// Every hold, in the order of their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Owner, Mode, &Hold)> {
        let (sole, shared) = match self {
            Self::Free => (None, None),
            Self::Sole(owner, grip) => (Some((owner, grip.pair())), None),
            Self::Shared(readers) => (None, Some(readers.iter())),
        };
        let sole = sole.into_iter().flat_map(|(owner, pair)| {
            pair.into_iter().flatten().map(move |(mode, hold)| (owner, mode, hold))
        });
        let shared = shared.into_iter().flatten().map(|(owner, hold)| (owner, Mode::Read, hold));
        sole.chain(shared)
    }

    /// Every owner that holds, once.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &Owner> {
        let (sole, shared) = match self {
            Self::Free => (None, None),
            Self::Sole(owner, _) => (Some(owner), None),
            Self::Shared(readers) => (None, Some(readers.iter().map(|(owner, _)| owner))),
        };
        sole.into_iter().chain(shared.into_iter().flatten())
    }

    /// An expired hold, if there is one.
    pub(crate) fn first_over(&self, now: Now) -> Option<Token> {
        match self {
            Self::Free => None,
            Self::Sole(_, grip) => {
                let over = |(_, hold): &(Mode, &Hold)| hold.deadline.is_over_at(now);
                grip.pair().into_iter().flatten().find(over).map(|(_, hold)| hold.token)
            }
            Self::Shared(readers) => readers.first_over(now),
        }
    }

    /// Number of expired holds.
    pub(crate) fn count_over(&self, now: Now) -> usize {
        match self {
            Self::Free => 0,
            Self::Sole(_, grip) => {
                let over = |(_, hold): &(Mode, &Hold)| hold.deadline.is_over_at(now);
                grip.pair().into_iter().flatten().filter(over).count()
            }
            Self::Shared(readers) => readers.count_over(now),
        }
    }

    /// When the last hold expires.
    pub(crate) fn latest_deadline(&self) -> Option<EpochMs> {
        match self {
            Self::Free => None,
            Self::Sole(_, grip) => Some(grip.latest_deadline()),
            Self::Shared(readers) => readers.latest_deadline(),
        }
    }

    /// When the last hold of anybody else expires.
    pub(crate) fn latest_deadline_beside(&self, owner: &[u8]) -> Option<EpochMs> {
        match self {
            Self::Sole(holder, _) if holder.as_bytes() == owner => None,
            Self::Shared(readers) => readers.latest_deadline_beside(owner),
            _ => self.latest_deadline(),
        }
    }

    /// When the first hold expires.
    pub(crate) fn earliest_deadline(&self) -> Option<EpochMs> {
        self.by_deadline().map(|(deadline, _)| deadline).next()
    }

    /// When each hold expires, the earliest first.
    pub(crate) fn by_deadline(&self) -> impl Iterator<Item = (EpochMs, Token)> {
        let (sole, shared) = match self {
            Self::Free => ([None, None], None),
            Self::Sole(_, grip) => {
                let mut pair =
                    grip.pair().map(|at| at.map(|(_, hold)| (hold.deadline, hold.token)));
                pair.sort_unstable();
                (pair, None)
            }
            Self::Shared(readers) => ([None, None], Some(readers.by_deadline())),
        };
        sole.into_iter().flatten().chain(shared.into_iter().flatten())
    }

    /// Approximate number of bytes on the heap, for `MEMORY USAGE`.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Free => 0,
            Self::Sole(owner, Grip::Both(_)) => {
                owner.heap_bytes().saturating_add(size_of::<Both>())
            }
            Self::Sole(owner, _) => owner.heap_bytes(),
            Self::Shared(readers) => readers.heap_bytes().saturating_add(size_of::<Readers>()),
        }
    }

    /// Adds a hold, and removes those that conflict with it. A primary checks for conflicts first,
    /// so there it removes none; in a replay the latest change wins.
    pub(crate) fn insert(&mut self, owner: Owner, mode: Mode, hold: Hold) {
        self.remove(hold.token);
        *self = match (std::mem::take(self), mode) {
            (Self::Sole(holder, grip), _) if holder == owner => {
                Self::Sole(holder, grip.with(mode, hold))
            }
            (Self::Sole(holder, Grip::Read(other)), Mode::Read) => {
                let mut readers = Readers::default();
                readers.insert(holder, other);
                readers.insert(owner, hold);
                Self::Shared(Box::new(readers))
            }
            (Self::Shared(mut readers), Mode::Read) => {
                readers.insert(owner, hold);
                Self::Shared(readers)
            }
            (Self::Shared(readers), Mode::Write) => {
                let grip = match readers.hold(owner.as_bytes()) {
                    Some(read) => Grip::Read(*read).with(Mode::Write, hold),
                    None => Grip::Write(hold),
                };
                Self::Sole(owner, grip)
            }
            _ => Self::Sole(owner, Grip::new(mode, hold)),
        };
    }

    /// Sets depth and deadline of the hold with this token, if there is one.
    pub(crate) fn set(&mut self, token: Token, depth: u16, deadline: EpochMs) {
        match self {
            Self::Free => {}
            Self::Sole(_, grip) => {
                if let Some((_, hold)) = grip.by_token_mut(token) {
                    hold.depth = depth;
                    hold.deadline = deadline;
                }
            }
            Self::Shared(readers) => readers.set(token, depth, deadline),
        }
    }

    /// Removes the hold with this token; returns its owner and mode.
    pub(crate) fn remove(&mut self, token: Token) -> Option<(Owner, Mode)> {
        match std::mem::take(self) {
            Self::Free => None,
            Self::Sole(owner, mut grip) => {
                let Some((mode, _)) = grip.by_token_mut(token) else {
                    *self = Self::Sole(owner, grip);
                    return None;
                };
                if let Some(rest) = grip.without(mode) {
                    *self = Self::Sole(owner.clone(), rest);
                }
                Some((owner, mode))
            }
            Self::Shared(mut readers) => {
                let owner = readers.remove(token);
                *self = match readers.take_last_one() {
                    Some((last, hold)) => Self::Sole(last, Grip::Read(hold)),
                    None => Self::Shared(readers),
                };
                owner.map(|owner| (owner, Mode::Read))
            }
        }
    }
}
