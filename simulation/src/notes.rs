//! What a simulated server tells the laws: what its clients asked and were told, and what happened
//! to its keys. The laws judge by this, and not by what the manager says of itself.

use rlock_core::{Change, ClientId, LeaseMs, Mode, Now, Owner, Token};

use crate::history::Point;
use crate::keyspace::Key;

/// A note, and where and when it was made.
#[derive(Clone, Debug)]
pub struct Noted {
    /// After this effect.
    pub at: Point,
    /// By the server's clock.
    pub now: Now,
    /// What.
    pub note: Note,
}

/// An `RLOCK.ACQUIRE`.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Where.
    pub db: i32,
    /// What for.
    pub key: Key,
    /// For whom.
    pub owner: Owner,
    /// How.
    pub mode: Mode,
    /// For how long.
    pub lease: LeaseMs,
    /// Tied to the connection.
    pub session: bool,
    /// May go in front.
    pub upgrade: bool,
    /// It asked for two numbers.
    pub with_ttl: bool,
    /// Its owner had a ticket, whose place it may have taken.
    pub had_ticket: bool,
    /// Its owner held the lock already.
    pub held: bool,
    /// When it came, by a count of the server's.
    pub arrival: u64,
    /// When its time is over, by the server's clock in milliseconds.
    pub ends_at: Option<u64>,
}

/// By what a key left its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The server says that it expired.
    Expiry,
    /// A stranger, or the server to make room.
    Stranger,
}

/// In what a lock changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A release that this owner asked for.
    Release(Owner),
    /// `RLOCK.FORCE`.
    Force,
    /// Another command.
    Command,
    /// By itself.
    Itself,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Note {
    /// A grant left the server.
    Told {
        /// To whom.
        client: ClientId,
        /// What it asked.
        asked: Box<Asked>,
        /// What it got.
        token: Token,
        /// When it was granted.
        granted_at: Now,
        /// It waited for it.
        waited: bool,
    },
    /// A renewal was told.
    Renewed {
        /// Where.
        db: i32,
        /// Of what.
        key: Key,
        /// Whose.
        owner: Owner,
        /// Of this mode, or of both.
        mode: Option<Mode>,
        /// For how long.
        lease: LeaseMs,
    },
    /// A lock changed on its primary.
    Changed {
        /// Where.
        db: i32,
        /// Which.
        key: Key,
        /// How.
        change: Change<'static>,
        /// In what.
        by: By,
    },
    /// A key left its name.
    KeyLost {
        /// Where.
        db: i32,
        /// Which.
        key: Key,
        /// By what.
        by: Loss,
    },
    /// A stranger set a time to live.
    Tampered {
        /// Where.
        db: i32,
        /// Of what.
        key: Key,
        /// Until when, in milliseconds.
        at_ms: u64,
    },
    /// A database was emptied; all of them, if `None`.
    Flushed(Option<i32>),
    /// Two databases changed places.
    Swapped(i32, i32),
    /// A connection ended.
    Closed(ClientId),
    /// A grant did not reach its connection.
    Unheard {
        /// What was asked.
        asked: Box<Asked>,
        /// Which.
        token: Token,
    },
    /// A connection asked for a session.
    AskedSession {
        /// Who.
        client: ClientId,
        /// Where.
        db: i32,
        /// Of what.
        key: Key,
        /// For whom.
        owner: Owner,
    },
    /// Something that is counted.
    Saw(crate::seen::Kind),
}
