//! What a simulated server reports to the laws: the requests and replies of its clients, and what
//! happened to its keys. The laws judge by this, and not by the state of the manager.

use rlock_core::{Change, ClientId, LeaseMs, Mode, Now, Owner, Renew, Token, WaiterId};

use crate::history::Point;
use crate::keyspace::Key;
use crate::tell::{Tell, Why};
use crate::words::Outcome;

/// A note, and where and when it was made.
#[derive(Debug)]
pub struct Noted {
    /// After this effect.
    pub at: Point,
    /// By the server's clock.
    pub now: Now,
    /// What.
    pub note: Note,
}

/// An `RLOCK.ACQUIRE`.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Where.
    pub db: i32,
    /// What for.
    pub key: Key,
    /// For whom.
    pub owner: Owner,
    /// How.
    pub mode: Mode,
    /// For how long.
    pub lease: LeaseMs,
    /// Tied to the connection.
    pub session: bool,
    /// So many replicas are to acknowledge it.
    pub acks: u8,
    /// READ while fewer others read than this.
    pub limit: Option<u32>,
    /// With a ticket until then, by the server's clock in milliseconds.
    pub ticket_until: Option<u64>,
    /// May go in front.
    pub upgrade: bool,
    /// It asked for two numbers.
    pub with_ttl: bool,
    /// It asked for several locks, of which this is one.
    pub of_several: bool,
    /// Its owner had a ticket, whose place it may have taken.
    pub had_ticket: bool,
    /// Its owner held the lock already.
    pub held: bool,
    /// When it came, by a count of the server's.
    pub arrival: u64,
    /// When its time is over, by the server's clock in milliseconds.
    pub ends_at: Option<u64>,
}

impl Asked {
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
            db,
            key: key.clone(),
            owner: ask.owner.into(),
            mode: ask.mode.unwrap_or(Mode::Write),
            lease: ask.lease,
            session: false,
            acks: ask.acks,
            limit: None,
            ticket_until: None,
            upgrade: false,
            with_ttl: false,
            of_several: false,
            had_ticket: false,
            held: true,
            arrival: u64::MAX,
            ends_at: None,
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
    /// As which it was asked for: this mode, or all.
    pub mode: Option<Mode>,
    /// Only what has this token.
    pub only: Option<Token>,
}

/// By what a key left its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The server says that it expired.
    Expiry,
    /// A stranger, or the server to make room.
    Stranger,
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

/// What happened.
#[derive(Debug)]
pub enum Note {
    /// A grant left the server.
    Told {
        /// To whom.
        client: ClientId,
        /// What it asked.
        asked: Box<Asked>,
        /// What it got.
        token: Token,
        /// When it was granted.
        granted_at: Now,
        /// The remaining time in the reply.
        remaining_ms: u64,
        /// It waited for it.
        waited: bool,
        /// What replicas had to acknowledge.
        pending: Option<Pending>,
    },
    /// A grant of several locks is about to leave the server.
    ToldSeveral {
        /// What was asked of each of them.
        asks: Vec<Asked>,
        /// What its owner holds of each of them.
        held: Vec<Option<Token>>,
        /// The token in the reply.
        newest: Token,
    },
    /// A hold has begun that is pending until replicas have acknowledged it.
    Pending {
        /// What was asked.
        asked: Box<Asked>,
        /// Which.
        pending: Pending,
    },
    /// A pending hold, or renewal, will not be confirmed.
    Unconfirmed {
        /// What was asked.
        asked: Box<Asked>,
        /// Which.
        pending: Pending,
        /// The number of the wait.
        waiter: WaiterId,
    },
    /// A caller that waited for acknowledgments got nil.
    NilWhilePending {
        /// What was asked.
        asked: Box<Asked>,
    },
    /// A renewal with ACKS was confirmed.
    RenewalTold {
        /// What was asked.
        asked: Box<Asked>,
        /// Which.
        pending: Pending,
    },
    /// Replicas are to acknowledge a request.
    AskedAcks {
        /// So many.
        acks: u8,
        /// There are as many: it was not refused.
        is_let_in: bool,
    },
    /// A renewal was reported.
    Renewed {
        /// Where.
        db: i32,
        /// Of what.
        key: Key,
        /// Whose.
        owner: Owner,
        /// Of this mode, or of both.
        mode: Option<Mode>,
        /// With this token, or any.
        only: Option<Token>,
        /// For how long.
        lease: LeaseMs,
    },
    /// A lock changed on its primary.
    Changed {
        /// Where.
        db: i32,
        /// Which.
        key: Key,
        /// How.
        change: Change<'static>,
        /// In what.
        by: By,
    },
    /// A key left its name.
    KeyLost {
        /// Where.
        db: i32,
        /// Which.
        key: Key,
        /// By what.
        by: Loss,
    },
    /// A stranger set a time to live.
    Tampered {
        /// Where.
        db: i32,
        /// Of what.
        key: Key,
        /// Until when, in milliseconds.
        at_ms: u64,
    },
    /// A database was emptied; all of them, if `None`.
    Flushed(Option<i32>),
    /// Two databases changed places.
    Swapped(i32, i32),
    /// A command of this connection runs.
    Ran(ClientId),
    /// A connection ended.
    Closed(ClientId),
    /// A grant did not reach its connection.
    Unheard {
        /// What was asked.
        asked: Box<Asked>,
        /// Which.
        token: Token,
    },
    /// A connection asked for a session.
    AskedSession {
        /// Who.
        client: ClientId,
        /// Where.
        db: i32,
        /// Of what.
        key: Key,
        /// For whom.
        owner: Owner,
    },
    /// An observer got the holder of WRITE: this token, 0 for nobody.
    Shown {
        /// What it knew of.
        known: u64,
        /// The token in the reply, `None` for nil.
        shown: Option<u64>,
        /// What it had to see.
        visible: u64,
    },
    /// A message left.
    Message {
        /// The request that it ends.
        tell: Box<Tell>,
        /// What it says.
        outcome: Outcome,
    },
    /// A request that waited for a message ended without one.
    TellEnded {
        /// Which.
        tell: Box<Tell>,
        /// Why, if there is a reason.
        why: Option<Why>,
    },
    /// A law that was seen to break where it happened.
    Wrong {
        /// Which.
        law: &'static str,
        /// By what.
        what: String,
    },
    /// Something that is counted.
    Saw(crate::seen::Kind),
}
