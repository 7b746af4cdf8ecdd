//! Requests of simulated clients for several locks.

use std::fmt;

use crate::ask::{Ask, Patience};

/// The number of locks that one request can name.
pub const KEYS: u8 = 3;

/// The mode for one of the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// `WRITE`
    Write,
    /// `READ`
    Read,
    /// `READ`, granted only while fewer other owners read than this.
    Limit(u8),
}

impl fmt::Display for Want {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write => to.write_str("WRITE"),
            Self::Read => to.write_str("READ"),
            Self::Limit(limit) => write!(to, "{limit}"),
        }
    }
}

/// Which of the locks a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// One bit for each key.
    pub bits: u8,
    /// Whether they are named in the reverse of key order.
    pub is_reversed: bool,
}

impl Keys {
    /// In the order in which they are named.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let place = move |at| if self.is_reversed { KEYS - 1 - at } else { at };
        (0..KEYS).map(place).filter(move |key| self.bits & (1 << key) != 0)
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.bits.count_ones())?;
        self.iter().try_for_each(|key| write!(to, " k{key}"))
    }
}

/// An `RLOCK.MACQUIRE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskAll {
    /// The owner.
    pub owner: u8,
    /// The keys.
    pub keys: Keys,
    /// The mode for each of the locks.
    pub wants: [Want; KEYS as usize],
    /// For how long, in milliseconds.
    pub lease: u32,
    /// How long it waits.
    pub patience: Patience,
    /// Tied to the connection.
    pub session: bool,
    /// Whether it asks `WITHTTL`.
    pub with_ttl: bool,
    /// How many replicas must acknowledge the request.
    pub acks: u8,
}

impl AskAll {
    fn want(&self, key: u8) -> Want {
        self.wants[usize::from(key)]
    }

    /// The request for each of the locks, as if it were for that lock only.
    pub fn singles(self) -> impl Iterator<Item = Ask> {
        self.keys.iter().map(move |key| {
            let want = self.want(key);
            Ask {
                owner: self.owner,
                key,
                reads: want != Want::Write,
                lease: self.lease,
                patience: self.patience,
                session: self.session,
                depth: Some(1),
                upgrade: false,
                with_ttl: self.with_ttl,
                limit: if let Want::Limit(limit) = want { Some(limit) } else { None },
                acks: self.acks,
            }
        })
    }
}

impl fmt::Display for AskAll {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "RLOCK.MACQUIRE {} o{}", self.keys, self.owner)?;
        let is_all = |want| self.keys.iter().all(|key| self.want(key) == want);
        if is_all(Want::Read) {
            to.write_str(" READ")?;
        } else if !is_all(Want::Write) {
            to.write_str(" MODES")?;
            self.keys.iter().try_for_each(|key| write!(to, " {}", self.want(key)))?;
        }
        write!(to, " LEASE {}", self.lease)?;
        self.patience.fmt(to)?;
        to.write_str(if self.session { " SESSION" } else { "" })?;
        if self.acks > 0 {
            write!(to, " ACKS {}", self.acks)?;
        }
        to.write_str(if self.with_ttl { " WITHTTL" } else { "" })
    }
}
