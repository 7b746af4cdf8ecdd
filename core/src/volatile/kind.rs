//! The kinds of waits.

use crate::WaiterId;

/// The kind of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection is blocked and will get a reply.
    Blocked(WaiterId),
    /// No connection is blocked, and the reply will be a message.
    Told(WaiterId),
    /// No connection is blocked: the owner asks again.
    Ticket,
    /// A group: it waits for several locks, gets a turn at each of them, and enters when it has all
    /// turns.
    Group(WaiterId),
}

impl Kind {
    /// The number of a wait for this lock alone that will get a reply.
    pub(crate) const fn waiter(self) -> Option<WaiterId> {
        match self {
            Self::Blocked(waiter) | Self::Told(waiter) => Some(waiter),
            Self::Ticket | Self::Group(_) => None,
        }
    }

    /// The number of a group.
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

    /// Whether no connection is blocked and no message is due: the owner asks again.
    pub const fn is_ticket(self) -> bool {
        matches!(self, Self::Ticket)
    }
}
