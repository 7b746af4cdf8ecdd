//! Why a request was refused: a value with a stable code, and one sentence for people.

use crate::text::quoted;
use crate::{Mode, Token};

/// An error caused by the state of the lock. An error in the arguments of a command is a
/// [`crate::grammar::BadWord`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The caller has no hold of that mode and token.
    NotHeld {
        /// The requested mode.
        mode: Option<Mode>,
        /// The requested token.
        token: Option<Token>,
        /// What is held instead.
        instead: Instead,
    },
    /// A READ holder asked for WRITE without `UPGRADE`: two such callers would deadlock.
    UpgradeWouldDeadlock,
    /// `DEPTH` asked for more than one level beyond the present depth.
    DepthSkipped {
        /// The depth asked for.
        asked: u16,
        /// The depth now.
        present: u16,
    },
    /// Another reader already waits to upgrade: each would wait for the other.
    SecondUpgrade,
    /// The wait would close a cycle of this many owners.
    Cycle(usize),
    /// `rlock.max-waiters` connections are blocked.
    TooManyWaiters {
        /// `rlock.max-waiters`.
        max: usize,
    },
    /// Like `TooManyWaiters`, for a caller that wants to observe a lock.
    TooManyObservers {
        /// `rlock.max-waiters`.
        max: usize,
    },
    /// `rlock.max-tells` requests wait for messages.
    TooManyTells {
        /// `rlock.max-tells`.
        max: usize,
    },
    /// The server's command that lists a channel's subscribers is renamed or disabled.
    NotListed,
    /// The user may not publish to the channel of the message.
    ChannelNotPermitted,
    /// The channel of the message is in another slot than the key.
    ChannelElsewhere,
    /// This server became a replica.
    Demoted,
    /// `rlock.max-tickets` tickets are in use.
    TooManyTickets,
    /// `rlock.max-sessions` sessions exist.
    TooManySessions,
    /// Fewer replicas are connected than must acknowledge.
    NoReplicas {
        /// How many must acknowledge.
        asked: u8,
        /// How many are connected.
        online: usize,
    },
    /// Too few replicas acknowledged in time, or the hold ended before they did.
    NoAcks,
    /// The key was deleted, renamed or moved before enough replicas acknowledged its hold. If the
    /// key has another name now, the hold remains in effect there.
    NoAcksMoved,
    /// Replicas must acknowledge first, and the caller cannot be blocked until then.
    CannotConfirm,
    /// The owner asks with QUEUE for a hold of its own that replicas have not acknowledged.
    HoldIsPending,
    /// The server's command that closes connections is renamed or disabled, so no connection can
    /// have a session.
    CannotClose,
    /// The caller's user lost the right to the command or the key while it waited.
    NotPermitted,
    /// An observer's user lost the right to the command or the key while it waited.
    MayNotObserve,
    /// The same, for one that waited for several locks.
    NotPermittedSeveral,
    /// The caller's connection lost a session and is about to be closed.
    Closing,
    /// The key holds a value of another type now.
    WrongType,
    /// The key's slot is moving, or has moved.
    TryAgain,
    /// The hold already has `rlock.max-depth` levels.
    TooDeep {
        /// The present depth; more than `max` if `max` was lowered since.
        present: u16,
        /// `rlock.max-depth`.
        max: u16,
    },
    /// The greatest token, 2^53 - 1, was reached: only hostile data can cause that.
    NoTokenLeft,
}

/// What is held instead of what the caller named, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Nothing.
    Free,
    /// Another hold of the same owner.
    Own(Mode, Token),
    /// WRITE, by somebody else.
    WriteBy(Box<[u8]>),
    /// READ, by one other owner.
    ReadBy(Box<[u8]>),
    /// READ, by this many other owners.
    ReadByMany(usize),
}

impl Refusal {
    /// One printable line that starts with the error's code, whatever bytes the names contain.
    pub fn line(&self, key: &[u8], owner: &[u8]) -> String {
        let (key, owner) = (quoted(key), quoted(owner));
        match self {
            Self::NotHeld { mode, token, instead } => {
                let mode = mode.map_or(String::new(), |mode| format!("{} of ", mode.word()));
                let token = token.map_or(String::new(), |t| format!(" with token {}", t.get()));
                let instead = instead.clause();
                format!("NOTHELD owner {owner} does not hold {mode}{key}{token}: {instead}")
            }
            Self::UpgradeWouldDeadlock => format!(
                "DEADLOCK owner {owner} holds READ of {key} and would wait for itself: release \
                 READ first, or use UPGRADE"
            ),
            Self::SecondUpgrade => format!(
                "DEADLOCK another reader of {key} is waiting to upgrade, and owner {owner} would \
                 wait for it: release READ first"
            ),
            Self::Cycle(owners) => format!(
                "DEADLOCK owner {owner} would close a cycle of {owners} owners by waiting for \
                 {key}: release what it holds first, or give each task its own owner name"
            ),
            Self::TooManyWaiters { max } => format!(
                "TOOMANY too many blocked connections (rlock.max-waiters is {max}): owner {owner} \
                 is not queued for {key}"
            ),
            Self::TooManyTells { max } => format!(
                "TOOMANY too many requests wait with TELL (rlock.max-tells is {max}): owner \
                 {owner} does not wait for {key}"
            ),
            Self::NotListed => format!(
                "ERR TELL needs the server's PUBSUB command, which is renamed or disabled here: \
                 {key} is not waited for"
            ),
            Self::ChannelNotPermitted => "NOPERM the user has no permission to publish to the \
                                          channel of TELL"
                .into(),
            Self::ChannelElsewhere => "CROSSSLOT the channel of TELL must be in the slot of the \
                                       key: use the key's hash tag in its name"
                .into(),
            // The text with which the server itself unblocks connections.
            Self::Demoted => "UNBLOCKED force unblock from blocking operation, instance state \
                              changed (master -> replica?)"
                .into(),
            Self::TooManyObservers { max } => format!(
                "TOOMANY too many blocked connections (rlock.max-waiters is {max}): {key} is not \
                 observed"
            ),
            Self::TooManyTickets => format!(
                "TOOMANY too many tickets (rlock.max-tickets is reached): owner {owner} is not \
                 queued for {key}"
            ),
            Self::TooManySessions => format!(
                "TOOMANY too many sessions (rlock.max-sessions is reached): owner {owner} cannot \
                 acquire {key} with SESSION"
            ),
            Self::NoReplicas { asked, online } => {
                let s = if *asked == 1 { "" } else { "s" };
                format!(
                    "NOREPLICAS need {asked} acknowledging replica{s} for {key} (owner {owner}), \
                     have {online}: nothing changed"
                )
            }
            Self::NoAcks => format!(
                "NOACKS too few replicas acknowledged {key} for owner {owner} in time: a new hold \
                 is revoked, and an earlier one keeps the deadline of its last reply"
            ),
            Self::NoAcksMoved => format!(
                "NOACKS {key} was deleted or renamed before enough replicas acknowledged it for \
                 owner {owner}: a renamed hold lasts until its deadline, under the new name"
            ),
            Self::CannotConfirm => {
                "ERR ACKS needs a connection that can block: it is not available in a \
                 transaction, a script or another module's call"
                    .into()
            }
            Self::HoldIsPending => format!(
                "TRYAGAIN owner {owner} holds {key} already, but replicas have not acknowledged \
                 that yet, and QUEUE cannot wait for them"
            ),
            Self::CannotClose => "ERR SESSION needs the server's CLIENT command, which is renamed \
                                  or disabled here: without it RLOCK cannot close a connection \
                                  that lost its session"
                .into(),
            Self::NotPermitted => format!(
                "NOPERM the user lost permission for RLOCK.ACQUIRE or for the key {key} while \
                 waiting"
            ),
            Self::MayNotObserve => format!(
                "NOPERM the user lost permission for RLOCK.AWAIT or for the key {key} while \
                 waiting"
            ),
            Self::NotPermittedSeveral => format!(
                "NOPERM the user lost permission for RLOCK.MACQUIRE or for one of its keys while \
                 waiting, most recently for {key}"
            ),
            Self::Closing => "ERR this connection lost a session and is being closed".into(),
            Self::WrongType => {
                "WRONGTYPE Operation against a key holding the wrong kind of value".into()
            }
            Self::TryAgain => "TRYAGAIN the slot of the key is moving or has moved".into(),
            Self::DepthSkipped { asked, present } => format!(
                "ERR DEPTH must be at most the current depth + 1: owner {owner} is at depth \
                 {present} of {key} and asked for {asked}"
            ),
            Self::TooDeep { present, max } => format!(
                "TOOMANY owner {owner} is at depth {present} of {key}, and rlock.max-depth is \
                 {max}"
            ),
            Self::NoTokenLeft => "ERR no fencing token is left below 2^53: one close to that \
                                  limit was loaded or replicated"
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
            Self::WriteBy(owner) => format!("WRITE is held by {}", quoted(owner)),
            Self::ReadBy(owner) => format!("READ is held by {}", quoted(owner)),
            Self::ReadByMany(count) => format!("READ is held by {count} owners"),
        }
    }
}
