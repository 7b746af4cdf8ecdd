//! Why a request was refused: a value with a stable code, and one sentence for the person who reads
//! it.

use crate::text::quoted;
use crate::{Mode, Owner, Token};

/// An error that the state of the lock causes. What the words of a command cause is
/// [`crate::grammar::BadWord`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The caller holds nothing that fits its words.
    NotHeld {
        /// The mode that was asked for.
        mode: Option<Mode>,
        /// The token that was asked for.
        token: Option<Token>,
        /// What is there.
        instead: Instead,
    },
    /// A READ holder asked for WRITE: two such callers would wait for each other for ever.
    UpgradeWouldDeadlock,
    /// `DEPTH` asked for more than one level beyond the present depth.
    DepthSkipped {
        /// The depth asked for.
        asked: u16,
        /// The depth now.
        present: u16,
    },
    /// Another reader already waits for all readers but itself to leave, and so would this one.
    SecondUpgrade,
    /// The owners wait for each other, so many of them.
    Cycle(usize),
    /// `rlock.max-waiters` connections are parked.
    TooManyWaiters {
        /// `rlock.max-waiters`.
        max: usize,
    },
    /// `rlock.max-tickets` tickets are out.
    TooManyTickets,
    /// `rlock.max-sessions` holds are tied to connections.
    TooManySessions,
    /// The caller's user lost the right to the command or the key while it waited.
    NotPermitted,
    /// The caller's connection is about to be closed: a session of it is lost.
    Closing,
    /// The key holds something else now.
    WrongType,
    /// The key's slot is moving, or has moved.
    TryAgain,
    /// The hold has `rlock.max-depth` levels.
    TooDeep {
        /// The depth now; more than `max` where that was lowered meanwhile.
        present: u16,
        /// `rlock.max-depth`.
        max: u16,
    },
    /// The greatest token, 2^53 - 1, was seen: only a hostile snapshot brings a server there.
    NoTokenLeft,
}

/// What is held where the caller's hold is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Nothing.
    Free,
    /// Another hold of the same owner.
    Own(Mode, Token),
    /// WRITE, by somebody else.
    WriteBy(Owner),
    /// READ, by one other owner.
    ReadBy(Owner),
    /// READ, by so many others.
    ReadByMany(usize),
}

impl Refusal {
    /// One printable line that begins with the error's code, whatever bytes the names contain.
    pub fn line(&self, key: &[u8], owner: &[u8]) -> String {
        let (key, owner) = (quoted(key), quoted(owner));
        match self {
            Self::NotHeld { mode, token, instead } => {
                let what = match (mode, token) {
                    (None, None) => "nothing".into(),
                    (Some(mode), None) => format!("no {}", mode.word()),
                    (None, Some(token)) => format!("nothing with token {}", token.get()),
                    (Some(mode), Some(token)) => {
                        format!("no {} with token {}", mode.word(), token.get())
                    }
                };
                format!("NOTHELD owner {owner} holds {what} of {key}: {}", instead.clause())
            }
            Self::UpgradeWouldDeadlock => format!(
                "DEADLOCK owner {owner} holds READ of {key} and would wait for itself: release \
                 READ first, or ask with UPGRADE"
            ),
            Self::SecondUpgrade => format!(
                "DEADLOCK owner {owner} would wait with READ of {key} for another reader that \
                 waits for WRITE: release READ first"
            ),
            Self::Cycle(owners) => format!(
                "DEADLOCK owner {owner} would wait at {key} in a cycle of {owners} owners that \
                 wait for each other: release what it holds first"
            ),
            Self::TooManyWaiters { max } => format!(
                "TOOMANY connections wait on this server, the most that rlock.max-waiters allows \
                 is {max}: owner {owner} is not queued for {key}"
            ),
            Self::TooManyTickets => format!(
                "TOOMANY tickets wait on this server, as many as rlock.max-tickets allows: owner \
                 {owner} is not queued for {key}"
            ),
            Self::TooManySessions => format!(
                "TOOMANY holds are tied to connections, as many as rlock.max-sessions allows: \
                 owner {owner} does not get {key} with SESSION"
            ),
            Self::NotPermitted => format!(
                "NOPERM the user lost the right to RLOCK.ACQUIRE or to the key {key} while it \
                 waited"
            ),
            Self::Closing => "ERR this connection lost a session and is being closed".into(),
            Self::WrongType => {
                "WRONGTYPE Operation against a key holding the wrong kind of value".into()
            }
            Self::TryAgain => "TRYAGAIN the slot of the key is moving or has moved".into(),
            Self::DepthSkipped { asked, present } => format!(
                "ERR DEPTH must be at most the present depth + 1: owner {owner} is at depth \
                 {present} of {key}, not one below {asked}"
            ),
            Self::TooDeep { present, max } => format!(
                "TOOMANY owner {owner} is at depth {present} of {key}, and rlock.max-depth is \
                 {max}"
            ),
            Self::NoTokenLeft => "ERR no fencing token is left below 2^53: a token near it was \
                                  loaded or replicated"
                .into(),
        }
    }
}

impl Instead {
    fn clause(&self) -> String {
        match self {
            Self::Free => "it is free".into(),
            Self::Own(mode, token) => {
                format!("it holds {} with token {}", mode.word(), token.get())
            }
            Self::WriteBy(owner) => format!("WRITE is held by {}", quoted(owner.as_bytes())),
            Self::ReadBy(owner) => format!("READ is held by {}", quoted(owner.as_bytes())),
            Self::ReadByMany(count) => format!("READ is held by {count} owners"),
        }
    }
}
