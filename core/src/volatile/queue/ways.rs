//! The ways to wait, by which an owner's waits are indexed.

use super::{Entry, Kind};
use crate::{Mode, Owner};

/// The kinds of waits that an owner's waits are divided into.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Ticket,
    Blocked(Mode),
    Group(Mode),
}

impl Way {
    pub(super) const ALL: [Self; 5] = [
        Self::Ticket,
        Self::Blocked(Mode::Read),
        Self::Blocked(Mode::Write),
        Self::Group(Mode::Read),
        Self::Group(Mode::Write),
    ];

    /// The key of this owner's waits of this kind.
    pub(super) fn key(self, hash: u64) -> u64 {
        let way = match self {
            Self::Ticket => 0,
            Self::Blocked(Mode::Read) => 1,
            Self::Blocked(Mode::Write) => 2,
            Self::Group(Mode::Read) => 3,
            Self::Group(Mode::Write) => 4,
        };
        hash & !7 | way
    }
}

/// The key of this wait in the index: a hash of its owner, and how it waits.
pub(super) fn key_of(entry: &Entry) -> u64 {
    let way = match entry.kind {
        Kind::Ticket => Way::Ticket,
        Kind::Blocked(_) | Kind::Told(_) => Way::Blocked(entry.mode),
        Kind::Group(_) => Way::Group(entry.mode),
    };
    way.key(Owner::hash_of(entry.owner.as_bytes()))
}
