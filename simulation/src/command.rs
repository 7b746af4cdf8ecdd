//! The commands of simulated clients, as compact data, so that a story can be read and shortened.

use std::fmt;

pub use crate::ask::{Ask, Patience};
use crate::several::{AskAll, Keys};
use crate::words::{Words, words};

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// `RLOCK.ACQUIRE`
    Acquire(Ask),
    /// `RLOCK.RELEASE`: the owner, the key, and whether with `ALL`
    Release(u8, u8, bool),
    /// `RLOCK.RENEW`: the owner, the key, the lease, the mode (READ, WRITE, or all that the owner
    /// holds), and how many replicas must acknowledge it
    Renew(u8, u8, u32, Option<bool>, u8),
    /// `RLOCK.MACQUIRE`
    AcquireAll(AskAll),
    /// `RLOCK.MRELEASE`: the owner, the keys, and whether only holds with the token that the client
    /// knows of
    ReleaseAll(u8, Keys, bool),
    /// `RLOCK.MRENEW`: the owner, the keys, the lease, whether only holds with the token that the
    /// client knows of, and how many replicas must acknowledge it
    RenewAll(u8, Keys, u32, bool, u8),
    /// `RLOCK.CANCEL`: the owner, the key
    Cancel(u8, u8),
    /// `RLOCK.FORCE`
    Force(u8),
    /// `RLOCK.TAKE`: the owner, the key, the lease, and how many replicas must acknowledge it
    Take(u8, u8, u32, u8),
    /// `RLOCK.AWAIT` with the token that the client knows of: the key, and for how long it is
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
    /// `SSUBSCRIBE`, to the channel with this number
    Subscribe(u8),
    /// `SUNSUBSCRIBE`
    Unsubscribe(u8),
    /// `MULTI`
    Multi,
    /// `EXEC`, or a script with the same commands
    Exec(bool),
}

/// Stands for the token that the client knows of.
const KNOWN: &str = "known";

impl Command {
    /// The command as words, on a connection of a client that knows of this token.
    pub fn words(&self, known: i64) -> Words {
        let mut words = words(&self.to_string());
        let token = words.iter_mut().find(|word| *word == KNOWN.as_bytes());
        token.into_iter().for_each(|token| *token = known.to_string().into_bytes());
        words
    }

    /// Whether its reply may come late.
    pub fn may_be_told(&self) -> bool {
        let blocks = |patience| matches!(patience, Patience::Block(_));
        match self {
            Self::Acquire(Ask { patience, acks, .. })
            | Self::AcquireAll(AskAll { patience, acks, .. }) => {
                blocks(*patience) || *acks > 0 && *patience == Patience::None
            }
            Self::Renew(.., acks) | Self::RenewAll(.., acks) => *acks > 0,
            Self::Await(_, ms) => ms.is_some(),
            _ => false,
        }
    }

    /// Whether its hold is to be tied to the connection.
    pub fn is_session(&self) -> bool {
        match self {
            Self::Acquire(Ask { session, .. }) | Self::AcquireAll(AskAll { session, .. }) => {
                *session
            }
            _ => false,
        }
    }

    /// Whether it releases this owner's hold of this key.
    pub fn releases(&self, owner: u8, key: u8) -> bool {
        match self {
            Self::Release(of, at, _) => (*of, *at) == (owner, key),
            Self::ReleaseAll(of, keys, _) => *of == owner && keys.iter().any(|at| at == key),
            _ => false,
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(ask) => {
                write!(to, "RLOCK.ACQUIRE k{} o{}", ask.key, ask.owner)?;
                to.write_str(if ask.reads { " READ" } else { "" })?;
                write!(to, " LEASE {}", ask.lease)?;
                ask.patience.fmt(to)?;
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
            Self::AcquireAll(ask) => ask.fmt(to),
            Self::ReleaseAll(owner, keys, by_token) => {
                write!(to, "RLOCK.MRELEASE {keys} o{owner}")?;
                if *by_token { write!(to, " TOKEN {KNOWN}") } else { Ok(()) }
            }
            Self::RenewAll(owner, keys, ms, by_token, acks) => {
                write!(to, "RLOCK.MRENEW {keys} o{owner} LEASE {ms}")?;
                if *by_token {
                    write!(to, " TOKEN {KNOWN}")?;
                }
                if *acks > 0 { write!(to, " ACKS {acks}") } else { Ok(()) }
            }
            Self::Cancel(owner, key) => write!(to, "RLOCK.CANCEL k{key} o{owner}"),
            Self::Force(key) => write!(to, "RLOCK.FORCE k{key}"),
            Self::Take(owner, key, ms, acks) => {
                write!(to, "RLOCK.TAKE k{key} o{owner} LEASE {ms}")?;
                if *acks > 0 { write!(to, " ACKS {acks}") } else { Ok(()) }
            }
            Self::Await(key, ms) => {
                write!(to, "RLOCK.AWAIT k{key} {KNOWN}")?;
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
            Self::Subscribe(channel) => write!(to, "SSUBSCRIBE c{channel}"),
            Self::Unsubscribe(channel) => write!(to, "SUNSUBSCRIBE c{channel}"),
            Self::Multi => to.write_str("MULTI"),
            Self::Exec(false) => to.write_str("EXEC"),
            Self::Exec(true) => to.write_str("EVAL"),
        }
    }
}
