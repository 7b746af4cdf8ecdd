//! What can happen to a lock, and what comes of it.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::{
    Change, ClientId, EpochMs, Event, LeaseMs, Mode, Now, Owner, Refusal, Token, Tokens, WaiterId,
};

/// What a decision needs to know beside the lock and the request.
#[derive(Debug)]
pub struct Moment<'t> {
    /// The server's clock.
    pub now: Now,
    /// Where a new hold's token comes from.
    pub tokens: &'t mut Tokens,
    /// `rlock.max-depth`: levels that one hold may have.
    pub max_depth: u16,
    /// Tickets that may still be given before `rlock.max-tickets` of this server is reached.
    pub tickets_left: usize,
    /// Holds of this lock that may be tied to connections, before `rlock.max-sessions` of this
    /// server is reached.
    pub sessions_max: usize,
    /// How many of those who wait, and what else comes due by itself, may still be dealt with in
    /// this transition. The rest is due at once ([`crate::Lock::next_alarm`]).
    pub portion: usize,
}

impl Moment<'_> {
    /// How many a transition deals with, unless its caller must be quicker: some hundred
    /// microseconds.
    pub const PORTION: usize = 256;

    /// One more; false when the portion is used up.
    pub(crate) fn take(&mut self) -> bool {
        let left = self.portion.checked_sub(1);
        self.portion = left.unwrap_or(0);
        left.is_some()
    }
}

/// Something that happens to a lock.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// `RLOCK.ACQUIRE`.
    Acquire(Acquire<'a>),
    /// The caller of an `RLOCK.ACQUIRE` that was told [`Reply::MustWait`] is parked from now on.
    Park(Acquire<'a>, Parking),
    /// `RLOCK.RELEASE`.
    Release(Release<'a>),
    /// `RLOCK.RENEW`.
    Renew(Renew<'a>),
    /// `RLOCK.CANCEL` of whatever this owner waits for.
    Cancel(&'a [u8]),
    /// `RLOCK.FORCE`: of this mode, or of both.
    Force(Option<Mode>),
    /// Time has passed, or somebody who waited left.
    Tick,
    /// Something outside of RLOCK may have put another value at the key.
    Changed,
    /// A parked connection was granted in this step, and may not be told: its level is taken back.
    Deny(WaiterId),
}

/// How a connection is parked.
#[derive(Clone, Copy, Debug)]
pub struct Parking {
    /// The number of its wait.
    pub waiter: WaiterId,
    /// The connection.
    pub client: Option<ClientId>,
    /// When the wait is over; `None` is never.
    pub ends_at: Option<EpochMs>,
}

/// Asks to hold.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a> {
    /// Who, 1 to [`Owner::MAX_BYTES`] bytes.
    pub owner: &'a [u8],
    /// How.
    pub mode: Mode,
    /// For how long from the grant on.
    pub lease: LeaseMs,
    /// Whether WRITE may be put on top of the owner's READ.
    pub upgrade: bool,
    /// READ only beside fewer than so many other owners' READ.
    pub limit: Option<NonZeroU32>,
    /// The depth to be at afterwards, from 1; `None` is one more than now.
    pub depth: Option<u16>,
    /// The connection that the hold is to be tied to.
    pub session: Option<ClientId>,
    /// What to do when somebody is in the way.
    pub patience: Patience,
    /// A new place in the queue is only taken while fewer than so many wait.
    pub max_queue: Option<usize>,
}

/// What a caller does when somebody is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It goes away.
    None,
    /// It waits, parked.
    Block,
    /// It keeps a place in the queue for so long, and asks again before that.
    Ticket(LeaseMs),
}

/// Asks to let go.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// Who.
    pub owner: &'a [u8],
    /// Of which mode; `None` is WRITE if held, else READ.
    pub mode: Option<Mode>,
    /// Only the hold with this token.
    pub token: Option<Token>,
    /// How far.
    pub levels: Levels,
}

/// How far a release goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// One level down.
    One,
    /// The whole hold.
    All,
    /// Down to this depth; 0 lets go. Being there already is no error.
    DownTo(u16),
}

/// Asks for a later deadline.
#[derive(Clone, Copy, Debug)]
pub struct Renew<'a> {
    /// Who.
    pub owner: &'a [u8],
    /// Of which mode; `None` is all the owner's holds.
    pub mode: Option<Mode>,
    /// Only the hold with this token.
    pub token: Option<Token>,
    /// For how long from now, at least.
    pub lease: LeaseMs,
}

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The owner holds, with this token, for `left_ms` milliseconds.
    Granted {
        /// The hold's fencing token.
        token: Token,
        /// Milliseconds to its deadline.
        left_ms: u64,
    },
    /// Somebody is in the way.
    NotNow {
        /// Milliseconds to the latest deadline in the way; `None` where that does not say when it
        /// is free.
        wait_ms: Option<u64>,
    },
    /// Somebody is in the way, and the caller would rather be parked than told so.
    MustWait {
        /// As in [`Reply::NotNow`], for a caller that cannot be parked.
        wait_ms: Option<u64>,
    },
    /// Depth left, holds ended, tickets withdrawn, or 1 for renewed.
    Count(u64),
    /// An error; nothing changed.
    Refused(Refusal),
}

/// The answer to a parked connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Whom.
    pub waiter: WaiterId,
    /// What.
    pub reply: Reply,
    /// How long it waited, in microseconds.
    pub waited_us: u64,
}

/// What comes of it where nobody can be granted any more.
#[must_use = "those parked wait for their answer"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dismissed {
    /// For parked connections, in order.
    pub wakes: Vec<Wake>,
    /// Connections whose session has lost its hold.
    pub lost: Vec<ClientId>,
}

/// What a transition did. The lock has changed already; this is what the world must be told.
#[must_use = "an effect that is not carried out is a lost grant"]
#[derive(Clone, Debug)]
pub struct Effects<'a> {
    /// For the caller.
    pub reply: Reply,
    /// For replicas and the append-only file, in order.
    pub changes: SmallVec<[Change<'a>; 2]>,
    /// For subscribers, in order.
    pub events: SmallVec<[Event; 4]>,
    /// For parked connections, in order.
    pub wakes: Vec<Wake>,
    /// Owners of tickets whose turn has come, for subscribers.
    pub turns: Vec<Owner>,
    /// Connections whose session's hold ended other than by their own release.
    pub lost: Vec<ClientId>,
    /// The one change is the end of a hold, and [`crate::Lock::replay_release`] makes it of the
    /// request on an equal lock; made twice it changes nothing more. Replicas and the append-only
    /// file may get the request in the change's place, which costs the server less.
    pub is_request_enough: bool,
}

impl Default for Effects<'_> {
    fn default() -> Self {
        Self {
            reply: Reply::Count(0),
            changes: SmallVec::new(),
            events: SmallVec::new(),
            wakes: Vec::new(),
            turns: Vec::new(),
            lost: Vec::new(),
            is_request_enough: false,
        }
    }
}
