//! A request of a simulated client for one lock.

use std::fmt;

/// How long a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// It does not wait.
    None,
    /// Blocked for this many milliseconds; 0 is forever.
    Block(u32),
    /// It waits with a ticket.
    Queue(u32),
}

impl fmt::Display for Patience {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Block(ms) => write!(to, " BLOCK {ms}"),
            Self::Queue(ms) => write!(to, " QUEUE {ms}"),
        }
    }
}

/// An `RLOCK.ACQUIRE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The owner.
    pub owner: u8,
    /// The number of the key.
    pub key: u8,
    /// Whether it asks for READ.
    pub reads: bool,
    /// For how long, in milliseconds.
    pub lease: u32,
    /// How long it waits.
    pub patience: Patience,
    /// Tied to the connection.
    pub session: bool,
    /// The depth to reach.
    pub depth: Option<u16>,
    /// Whether WRITE may be added to READ.
    pub upgrade: bool,
    /// Whether it asks `WITHTTL`.
    pub with_ttl: bool,
    /// Granted only while fewer other owners read than this.
    pub limit: Option<u8>,
    /// How many replicas must acknowledge the request.
    pub acks: u8,
}
