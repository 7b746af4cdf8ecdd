//! What kind of a wait it is.

use crate::WaiterId;

/// The kind of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection is blocked and will get a reply.
    Blocked(WaiterId),
    /// Nobody is blocked, and the reply will be a message.
    Told(WaiterId),
    /// Nobody is blocked: the owner asks again.
    Ticket,
    /// A wait for several locks: it gets turns, and enters when it has one at each of them.
    Group(WaiterId),
}

impl Kind {
    /// The wait for this lock alone that will get a reply.
    pub(crate) const fn waiter(self) -> Option<WaiterId> {
        match self {
            Self::Blocked(waiter) | Self::Told(waiter) => Some(waiter),
            Self::Ticket | Self::Group(_) => None,
        }
    }

    /// The wait for several locks.
    pub const fn group(self) -> Option<WaiterId> {
        match self {
            Self::Group(waiter) => Some(waiter),
            Self::Blocked(_) | Self::Told(_) | Self::Ticket => None,
        }
    }

    /// The number of the wait, if it has one.
    pub const fn number(self) -> Option<WaiterId> {
        match self {
            Self::Blocked(waiter) | Self::Told(waiter) | Self::Group(waiter) => Some(waiter),
            Self::Ticket => None,
        }
    }

    /// Whether nobody is blocked: the owner asks again.
    pub const fn is_ticket(self) -> bool {
        matches!(self, Self::Ticket)
    }
}
