//! What can happen to a lock, and the results.

use std::num::NonZeroU32;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::volatile::owner_names::{NAMES_MAX, OwnerNames};
use crate::volatile::queue::Entry;
use crate::volatile::slow::Slow;
use crate::{
    Change, ClientId, EpochMs, Event, GroupStand, Kind, LeaseMs, Mode, Now, Owner, Refusal, Token,
    Tokens, WaiterId,
};

/// What a decision depends on in addition to the lock and the request.
#[derive(Debug)]
pub struct StepContext<'t> {
    /// The server's clock.
    pub now: Now,
    /// Where a new hold's token comes from.
    pub tokens: &'t mut Tokens,
    /// `rlock.max-depth`: the most levels that one hold may have.
    pub max_depth: u16,
    /// Tickets that may still be given before `rlock.max-tickets` of this server is reached.
    pub tickets_left: usize,
    /// How many holds of this lock may be tied to connections before `rlock.max-sessions` of this
    /// server is reached.
    pub sessions_max: usize,
    /// How long a wait or a hold must last to be logged when it ends ([`crate::Volatile`]).
    pub slow: Slow,
    /// The holders in the way of the most recent wait on this server.
    pub names: &'t mut Rc<OwnerNames>,
    /// How many holders to record if they differ from those of the previous wait.
    pub names_max: usize,
    /// `rlock.acks-timeout-ms`: how long to wait for acknowledgments.
    pub confirm_ms: u64,
    /// While a new primary is in its grace period, no request is granted before this time.
    pub grace: Option<EpochMs>,
    /// Which blocked connections may be granted.
    pub rights: Rights<'t>,
    /// The number of a wait that begins now; earlier waits have smaller numbers.
    pub arrival: u64,
    /// How many waiters and other due items this transition may still serve. The remaining items
    /// are due at once ([`crate::Lock::next_alarm`]).
    pub portion: usize,
    /// Other locks change together with this one: its queue is served when all of them have
    /// changed.
    pub serves_later: bool,
}

impl<'t> StepContext<'t> {
    /// No limits, and default settings: for tests and measurements.
    pub fn unlimited(now: Now, tokens: &'t mut Tokens, names: &'t mut Rc<OwnerNames>) -> Self {
        Self {
            now,
            tokens,
            max_depth: u16::MAX,
            tickets_left: usize::MAX,
            sessions_max: usize::MAX,
            slow: Slow::default(),
            names,
            names_max: NAMES_MAX,
            confirm_ms: 2000,
            grace: None,
            rights: Rights::All,
            arrival: 0,
            portion: Self::PORTION,
            serves_later: false,
        }
    }

    /// How many items a transition serves by default: work for some hundred microseconds.
    pub const PORTION: usize = 256;

    /// When a confirmation is too late: the earliest of the caller's patience, the setting, and the
    /// hold's deadline.
    pub(crate) fn late_at(&self, ends_at: Option<EpochMs>, deadline: EpochMs) -> EpochMs {
        let late_at = self.now.after_ms(self.confirm_ms).min(deadline);
        ends_at.map_or(late_at, |ends_at| ends_at.min(late_at))
    }
}

/// Which blocked connections may be granted: a user may have lost the permission for a lock while
/// waiting for it, and only the server knows.
#[derive(Clone, Copy, Debug)]
pub enum Rights<'s> {
    /// All of them.
    All,
    /// The waiters in this list that are permitted. A step stops before it would grant another one
    /// ([`Effects::unchecked`]).
    Checked(&'s [(WaiterId, Right)]),
}

/// Whether somebody who waits may be granted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// It may be granted the lock.
    May,
    /// The user lost the permission for the lock: the wait is refused.
    MayNot,
    /// Nobody would get the reply: the wait ends as if its connection had closed.
    Unheard,
}

impl Rights<'_> {
    /// Whether this connection may be granted; `None` if that has to be checked first.
    pub(crate) fn of(self, waiter: WaiterId) -> Option<Right> {
        match self {
            Self::All => Some(Right::May),
            Self::Checked(all) => {
                all.iter().find(|(other, _)| *other == waiter).map(|(_, right)| *right)
            }
        }
    }
}

/// Where a step stopped, because it would have granted a waiter whose permission has not been
/// checked.
#[derive(Clone, Debug)]
pub struct Unchecked {
    /// The blocked connections to be granted next. Check their permissions, then apply the same
    /// input again, with the same effects.
    pub waiters: Vec<WaiterId>,
    /// The input was decided; only the queue is left to be served.
    pub(crate) is_decided: bool,
    /// The remaining portion.
    pub(crate) portion: usize,
}

/// Something that happens to a lock.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// `RLOCK.ACQUIRE`.
    Acquire(Acquire<'a>),
    /// The caller of an `RLOCK.ACQUIRE` that got [`Reply::MustWait`] or [`Reply::MustConfirm`] is
    /// blocked from now on.
    Park(Acquire<'a>, Parking),
    /// `RLOCK.RELEASE`.
    Release(Release<'a>),
    /// One lock of an `RLOCK.MACQUIRE` that is granted in this step: [`Lock::judge`] said that the
    /// owner may enter.
    ///
    /// [`Lock::judge`]: crate::Lock::judge
    Enter {
        /// What is asked of this lock.
        ask: Acquire<'a>,
        /// The token of all holds that the request begins; `None` if the owner already holds all
        /// that it wants.
        token: Option<Token>,
        /// The caller, if its reply is sent later.
        caller: Option<Parking>,
    },
    /// One lock of an `RLOCK.MRELEASE`: every hold of this owner, or the one with this token.
    ReleaseAll(&'a [u8], Option<Token>),
    /// `RLOCK.RENEW`, or one lock of an `RLOCK.MRENEW`.
    Renew(Renew<'a>),
    /// The caller of an `RLOCK.RENEW` or `RLOCK.MRENEW` that got [`Reply::MustConfirm`] is blocked
    /// from now on.
    ParkRenew(Renew<'a>, Parking),
    /// A group, a wait for several locks, reaches this one.
    Join(&'a Entry),
    /// The owner's request takes new places, so the owner's ticket here ends.
    Withdraw(&'a [u8]),
    /// `RLOCK.CANCEL`, for all waits of this owner for this lock alone.
    Cancel(&'a [u8]),
    /// `RLOCK.FORCE`: ends the holds of this mode, or of both.
    Force(Option<Mode>),
    /// Time has passed, or a waiter departed.
    Tick,
    /// Something other than RLOCK may have put another value at the key.
    Changed,
}

/// How a connection is blocked.
#[derive(Clone, Copy, Debug)]
pub struct Parking {
    /// The number of its wait.
    pub waiter: WaiterId,
    /// The connection.
    pub client: Option<ClientId>,
    /// When the wait began.
    pub since: Now,
    /// When the wait ends; `None` means never.
    pub ends_at: Option<EpochMs>,
    /// Whether it asks for several locks, and gets one reply for all of them.
    pub is_of_several: bool,
}

impl Parking {
    /// Who waits for one lock alone, with this number.
    pub const fn of(waiter: WaiterId, entry: &Entry) -> Self {
        let Entry { client, since, ends_at, .. } = *entry;
        Self { waiter, client, since, ends_at, is_of_several: false }
    }
}

/// A request to acquire a lock.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a> {
    /// The owner, 1 to [`Owner::MAX_BYTES`] bytes.
    pub owner: &'a [u8],
    /// The mode.
    pub mode: Mode,
    /// The lease, counted from the grant.
    pub lease: LeaseMs,
    /// Whether WRITE may be added to the owner's READ.
    pub upgrade: bool,
    /// Acquire READ only while fewer than this many other owners hold READ.
    pub limit: Option<NonZeroU32>,
    /// The depth to reach, at least 1; `None` means one level more than now.
    pub depth: Option<u16>,
    /// The connection to which to tie the hold.
    pub session: Option<ClientId>,
    /// What to do if the lock is unavailable.
    pub patience: Patience,
    /// Take a new place in the queue only if fewer than this many requests wait.
    pub max_queue: Option<usize>,
    /// How many replicas must acknowledge the hold before the reply.
    pub acks: u8,
}

impl Acquire<'_> {
    /// How it waits.
    pub(crate) fn entry(&self, kind: Kind, ends_at: Option<EpochMs>, since: Now) -> Entry {
        let Self { mode, lease, upgrade, limit, depth, session: client, acks, .. } = *self;
        let plain = Entry::new(self.owner.into(), mode, lease, kind, since);
        let is_session = client.is_some();
        Entry { upgrade, limit, depth, acks, ends_at, client, is_session, ..plain }
    }

    /// How this caller waits with it.
    pub(crate) fn entry_of(&self, kind: Kind, caller: &Parking) -> Entry {
        let entry = self.entry(kind, caller.ends_at, caller.since);
        Entry { client: entry.client.or(caller.client), ..entry }
    }
}

impl<'a> From<&'a Entry> for Acquire<'a> {
    /// What it waits for, as the request of a caller that would not wait again.
    fn from(entry: &'a Entry) -> Self {
        let Entry { mode, lease, upgrade, limit, depth, acks, .. } = *entry;
        let (owner, session) = (entry.owner.as_bytes(), entry.session());
        let (patience, max_queue) = (Patience::None, None);
        Self { owner, mode, lease, upgrade, limit, depth, session, patience, max_queue, acks }
    }
}

/// What a caller does if the lock is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It gets nil at once.
    None,
    /// It waits, blocked.
    Block,
    /// It waits, and its reply is a message: no connection is blocked.
    Tell,
    /// It has a place in the queue for this long, and asks again before that.
    Ticket(LeaseMs),
    /// It takes the lock, ahead of all who wait: the holds in the way end.
    Take,
}

/// A request to release a hold.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The mode; `None` means WRITE if the owner holds it, else READ.
    pub mode: Option<Mode>,
    /// If set, only the hold with this token is released.
    pub token: Option<Token>,
    /// How many levels.
    pub levels: Levels,
}

/// How many levels a release ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// One level.
    One,
    /// The whole hold.
    All,
    /// Down to this depth; 0 ends the hold. If the hold is no deeper, nothing changes, and that is
    /// no error.
    DownTo(u16),
}

/// A request for a later deadline.
#[derive(Clone, Copy, Debug)]
pub struct Renew<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The mode; `None` means all of the owner's holds.
    pub mode: Option<Mode>,
    /// If set, only the hold with this token is renewed.
    pub token: Option<Token>,
    /// The minimum remaining time, counted from now.
    pub lease: LeaseMs,
    /// How many replicas must acknowledge the renewal before the reply.
    pub acks: u8,
}

/// The reply to a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The owner holds, with this token, for `remaining_ms` milliseconds.
    Granted {
        /// The hold's fencing token.
        token: Token,
        /// Milliseconds to its deadline.
        remaining_ms: u64,
    },
    /// The lock is unavailable.
    NotNow {
        /// Milliseconds to the latest deadline in the way; `None` if that does not determine when
        /// the lock is free.
        wait_ms: Option<u64>,
    },
    /// The lock is unavailable, and the caller must be blocked.
    MustWait {
        /// As in [`Reply::NotNow`], for a caller that cannot be blocked.
        wait_ms: Option<u64>,
    },
    /// The caller may enter or renew, but must be blocked until replicas have acknowledged that.
    /// Nothing has changed.
    MustConfirm,
    /// The caller stays blocked until replicas have acknowledged its grant.
    Pending,
    /// The hold is renewed.
    Renewed,
    /// The remaining depth, or the number of holds ended or of waits canceled.
    Count(u64),
    /// An error; nothing changed.
    Refused(Refusal),
}

impl Default for Reply {
    /// The reply to nobody.
    fn default() -> Self {
        Self::Count(0)
    }
}

/// The reply to a blocked connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The wait.
    pub waiter: WaiterId,
    /// The reply.
    pub reply: Reply,
    /// How long it waited, in microseconds.
    pub waited_us: u64,
    /// How many holds a grant begins; of several locks, only the new holds count.
    pub holds: usize,
    /// How much of that time was spent on acknowledgments, in microseconds; `None` if it needed
    /// none.
    pub acks_us: Option<u64>,
    /// The owner that an error names.
    pub owner: Option<Box<Owner>>,
    /// Whether its owner withdrew the wait: then no message is sent.
    pub is_withdrawn: bool,
}

impl Wake {
    /// A reply to a wait, without further details.
    pub fn of(waiter: WaiterId, reply: Reply) -> Self {
        let (waited_us, holds, acks_us) = (0, 1, None);
        Self { waiter, reply, waited_us, holds, acks_us, owner: None, is_withdrawn: false }
    }
}

/// What to do for a lock at which nobody can be granted any more.
#[must_use = "those parked wait for their answer"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dismissed {
    /// Replies to blocked connections, in order.
    pub wakes: Vec<Wake>,
    /// Groups, which end together with their wait here.
    pub groups: Vec<WaiterId>,
    /// Groups that have lost their turn here, and where each of them is now.
    pub touched: Vec<(WaiterId, Option<GroupStand>)>,
    /// Connections of lost sessions.
    pub lost: Vec<ClientId>,
    /// Whether no waits remain there.
    pub is_all: bool,
}

/// What a transition did. The lock has changed already; this is what has to be replicated,
/// published and replied.
#[must_use = "an effect that is not carried out is a lost grant"]
#[derive(Clone, Debug, Default)]
pub struct Effects<'a> {
    /// For the caller.
    pub reply: Reply,
    /// Changes for replicas and the append-only file, in order.
    pub changes: SmallVec<[Change<'a>; 2]>,
    /// Holds that had expired when a writer's grant took their place: no change of their own ends
    /// them, but an event is published for each.
    pub replaced: Vec<Token>,
    /// Events for subscribers, in order.
    pub events: SmallVec<[Event; 4]>,
    /// Replies to blocked connections, in order.
    pub wakes: Vec<Wake>,
    /// Blocked connections that were granted; they get their reply when replicas have acknowledged
    /// the grant.
    pub pending: Vec<WaiterId>,
    /// Waits in `pending` whose reply is a message, and what they asked for.
    pub told_pending: Vec<(WaiterId, Owner, Mode)>,
    /// Waits that ended because nobody would have got the reply.
    pub unheard: Vec<WaiterId>,
    /// Whether replicas must acknowledge a part of this.
    pub awaits_acks: bool,
    /// Owners of tickets that now have their turn, for subscribers.
    pub turns: Vec<Owner>,
    /// Connections of lost sessions: the hold ended other than by its release.
    pub lost: Vec<ClientId>,
    /// If set, the step stopped, and none of these effects may be carried out yet.
    pub unchecked: Option<Unchecked>,
    /// Whether replicas and the append-only file may get the request instead of the change, which
    /// costs the server less: the only change is the end of a hold, [`crate::Lock::replay_release`]
    /// derives it from the request on an equal lock, and replaying it twice is harmless.
    pub is_request_enough: bool,
}
