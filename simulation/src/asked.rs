//! The requests of clients, as laws and waits know them.

use rlock_core::{LeaseMs, Mode, Now, Owner, Renew, Token};

use crate::history::Point;
use crate::keyspace::{Key, KeyRef};

/// An `RLOCK.ACQUIRE`.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Where.
    pub db: i32,
    /// What for.
    pub key: Key,
    /// The owner.
    pub owner: Owner,
    /// How.
    pub mode: Mode,
    /// For how long.
    pub lease: LeaseMs,
    /// Tied to the connection.
    pub session: bool,
    /// How many replicas must acknowledge it.
    pub acks: u8,
    /// READ while fewer others read than this.
    pub limit: Option<u32>,
    /// With a ticket until then, by the server's clock in milliseconds.
    pub ticket_until: Option<u64>,
    /// May go in front, or has taken the place of a request that might.
    pub upgrade: bool,
    /// It asked for two numbers.
    pub with_ttl: bool,
    /// It asked for several locks, of which this is one.
    pub of_several: bool,
    /// Its owner had a ticket, whose place it may have taken.
    pub had_ticket: bool,
    /// Its owner held the lock already.
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

    /// An `RLOCK.AWAIT`, as far as it is one.
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
            with_ttl: false,
            of_several: false,
            had_ticket: false,
            held: false,
            arrival: u64::MAX,
            ends_at: None,
        }
    }

    /// An `RLOCK.RENEW`, as far as it is one.
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
    /// A replica that has this effect has all of it.
    pub at: Point,
    /// Since when, by the server's clock.
    pub granted_at: Now,
    /// Until when, by the server's clock in milliseconds.
    pub deadline: u64,
    /// It is a renewal.
    pub renews: bool,
    /// The mode of the hold.
    pub held: Mode,
    /// The mode that was asked for, or all modes.
    pub mode: Option<Mode>,
    /// Only what has this token.
    pub only: Option<Token>,
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

/// Where the message of a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To {
    /// The shard channel.
    pub channel: Vec<u8>,
    /// What the message begins with.
    pub id: Vec<u8>,
}
