//! The requests of clients, as the laws see them.

use rlock_core::{LeaseMs, Mode, Now, Owner, Renew, Token};

use crate::history::Point;
use crate::keyspace::{Key, KeyRef};

/// An `RLOCK.ACQUIRE`.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The database.
    pub db: i32,
    /// The key.
    pub key: Key,
    /// The owner.
    pub owner: Owner,
    /// The mode.
    pub mode: Mode,
    /// The lease.
    pub lease: LeaseMs,
    /// Tied to the connection.
    pub session: bool,
    /// How many replicas must acknowledge the request.
    pub acks: u8,
    /// READ, granted only while fewer other owners read than this.
    pub limit: Option<u32>,
    /// The end of its ticket, by the server's clock in milliseconds.
    pub ticket_until: Option<u64>,
    /// Whether it may go to the front, or has replaced a request that might.
    pub upgrade: bool,
    /// Whether it is an `RLOCK.TAKE`, which may pass everybody.
    pub takes: bool,
    /// Whether it asked for two numbers.
    pub with_ttl: bool,
    /// Whether it asked for several locks, of which this is one.
    pub of_several: bool,
    /// Whether its owner had a ticket, whose place it may have taken.
    pub had_ticket: bool,
    /// Whether its owner held the lock already.
    pub held: bool,
    /// The server's count of requests when it arrived.
    pub arrival: u64,
    /// When its wait ends, by the server's clock in milliseconds.
    pub ends_at: Option<u64>,
}

impl Asked {
    /// The lock.
    pub fn key_ref(&self) -> KeyRef<'_> {
        KeyRef { db: self.db, key: &self.key }
    }

    /// The fields of an `RLOCK.AWAIT`.
    pub fn to_observe(db: i32, key: &Key) -> Self {
        Self {
            db,
            key: key.clone(),
            owner: b"observer".as_slice().into(),
            mode: Mode::Write,
            lease: LeaseMs::MAX,
            session: false,
            acks: 0,
            limit: None,
            ticket_until: None,
            upgrade: false,
            takes: false,
            with_ttl: false,
            of_several: false,
            had_ticket: false,
            held: false,
            arrival: u64::MAX,
            ends_at: None,
        }
    }

    /// The fields of an `RLOCK.RENEW`.
    pub fn to_renew(db: i32, key: &Key, ask: &Renew<'_>) -> Self {
        Self {
            owner: ask.owner.into(),
            mode: ask.mode.unwrap_or(Mode::Write),
            lease: ask.lease,
            acks: ask.acks,
            held: true,
            ..Self::to_observe(db, key)
        }
    }
}

/// A pending hold, or the pending new deadline of a hold.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Which hold.
    pub token: Token,
    /// A replica that has this effect has the whole grant.
    pub at: Point,
    /// Since when it is pending, by the server's clock.
    pub granted_at: Now,
    /// The deadline, by the server's clock in milliseconds.
    pub deadline: u64,
    /// Whether it is a renewal.
    pub renews: bool,
    /// The mode of the hold.
    pub held: Mode,
    /// The mode that was asked for; `None` means all modes.
    pub mode: Option<Mode>,
    /// If set, only the hold with this token.
    pub only: Option<Token>,
}

/// What changed a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A release that this owner asked for.
    Release(Owner),
    /// `RLOCK.FORCE`.
    Force,
    /// Another command.
    Command,
    /// The server itself, without a command.
    Itself,
}

/// The destination of a request's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To {
    /// The shard channel.
    pub channel: Vec<u8>,
    /// The id with which the message begins.
    pub id: Vec<u8>,
}
