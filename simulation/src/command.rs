//! What simulated clients say: small data, so that a story of it can be read and shortened.

use std::fmt;

use crate::words::{Words, words};

/// How long a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Not at all.
    None,
    /// Blocked, so many milliseconds; 0 is for ever.
    Block(u32),
    /// With a ticket.
    Queue(u32),
}

/// An `RLOCK.ACQUIRE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// For whom.
    pub owner: u8,
    /// What.
    pub key: u8,
    /// For reading.
    pub reads: bool,
    /// For how long, in milliseconds.
    pub lease: u32,
    /// How long it waits.
    pub patience: Patience,
    /// Tied to the connection.
    pub session: bool,
    /// To be at this depth.
    pub depth: Option<u16>,
    /// May put WRITE on READ.
    pub upgrade: bool,
    /// Two numbers.
    pub with_ttl: bool,
    /// While fewer others read than this.
    pub limit: Option<u8>,
    /// Told when so many replicas have it.
    pub acks: u8,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// `RLOCK.ACQUIRE`
    Acquire(Ask),
    /// `RLOCK.RELEASE`: the owner, the key, all of it
    Release(u8, u8, bool),
    /// `RLOCK.RENEW`: the owner, the key, the lease, of what (READ, WRITE, or whatever it holds),
    /// and how many replicas are to acknowledge it
    Renew(u8, u8, u32, Option<bool>, u8),
    /// `RLOCK.CANCEL`: the owner, the key
    Cancel(u8, u8),
    /// `RLOCK.FORCE`
    Force(u8),
    /// `RLOCK.AWAIT` with the token that its client knows of: the key, and for how long it is
    /// blocked
    Await(u8, Option<u32>),
    /// `DEL`
    Del(u8),
    /// `SET`, which replaces a lock
    Set(u8),
    /// `RENAME`
    Rename(u8, u8),
    /// `MOVE`
    Move(u8, u8),
    /// `PEXPIRE`: the key, milliseconds
    Expire(u8, u32),
    /// `PERSIST`
    Persist(u8),
    /// `FLUSHDB`
    FlushDb,
    /// `FLUSHALL`
    FlushAll,
    /// `SWAPDB 0 1`
    Swap,
    /// `SELECT`
    Select(u8),
}

impl Command {
    /// As words on a connection of a client that knows of this token.
    pub fn words(&self, known: i64) -> Words {
        let mut words = words(&self.to_string());
        if let (Self::Await(..), Some(token)) = (self, words.get_mut(2)) {
            *token = known.to_string().into_bytes();
        }
        words
    }
}

impl fmt::Display for Command {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(ask) => {
                write!(to, "RLOCK.ACQUIRE k{} o{}", ask.key, ask.owner)?;
                to.write_str(if ask.reads { " READ" } else { "" })?;
                write!(to, " LEASE {}", ask.lease)?;
                match ask.patience {
                    Patience::None => {}
                    Patience::Block(ms) => write!(to, " BLOCK {ms}")?,
                    Patience::Queue(ms) => write!(to, " QUEUE {ms}")?,
                }
                ask.depth.map_or(Ok(()), |depth| write!(to, " DEPTH {depth}"))?;
                ask.limit.map_or(Ok(()), |limit| write!(to, " LIMIT {limit}"))?;
                if ask.acks > 0 {
                    write!(to, " ACKS {}", ask.acks)?;
                }
                to.write_str(if ask.upgrade { " UPGRADE" } else { "" })?;
                to.write_str(if ask.session { " SESSION" } else { "" })?;
                to.write_str(if ask.with_ttl { " WITHTTL" } else { "" })
            }
            Self::Release(owner, key, all) => {
                write!(to, "RLOCK.RELEASE k{key} o{owner}{}", if *all { " ALL" } else { "" })
            }
            Self::Renew(owner, key, ms, reads, acks) => {
                let mode = reads.map_or("", |reads| if reads { " READ" } else { " WRITE" });
                write!(to, "RLOCK.RENEW k{key} o{owner}{mode} LEASE {ms}")?;
                if *acks > 0 { write!(to, " ACKS {acks}") } else { Ok(()) }
            }
            Self::Cancel(owner, key) => write!(to, "RLOCK.CANCEL k{key} o{owner}"),
            Self::Force(key) => write!(to, "RLOCK.FORCE k{key}"),
            Self::Await(key, ms) => {
                write!(to, "RLOCK.AWAIT k{key} known")?;
                ms.map_or(Ok(()), |ms| write!(to, " BLOCK {ms}"))
            }
            Self::Del(key) => write!(to, "DEL k{key}"),
            Self::Set(key) => write!(to, "SET k{key} v"),
            Self::Rename(from, into) => write!(to, "RENAME k{from} k{into}"),
            Self::Move(key, db) => write!(to, "MOVE k{key} {db}"),
            Self::Expire(key, ms) => write!(to, "PEXPIRE k{key} {ms}"),
            Self::Persist(key) => write!(to, "PERSIST k{key}"),
            Self::FlushDb => to.write_str("FLUSHDB"),
            Self::FlushAll => to.write_str("FLUSHALL"),
            Self::Swap => to.write_str("SWAPDB 0 1"),
            Self::Select(db) => write!(to, "SELECT {db}"),
        }
    }
}
