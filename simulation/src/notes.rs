//! What a simulated server reports to the laws: the requests and replies of its clients, and what
//! happened to its keys. The laws judge by this, and not by the state of the manager.

use rlock_core::{Change, ClientId, LeaseMs, Mode, Now, Owner, Reply, Token, WaiterId};

pub use crate::asked::{Asked, By, Pending};
use crate::history::Point;
use crate::keyspace::Key;
use crate::tell::{Tell, Why};
use crate::waiting::Waiting;
use crate::words::Outcome;

/// A note, and where and when it was made.
#[derive(Debug)]
pub struct Noted {
    /// The effect after which it happened.
    pub at: Point,
    /// By the server's clock.
    pub now: Now,
    /// What happened.
    pub note: Note,
}

/// Why a key was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The server reports that it expired.
    Expiry,
    /// A stranger removed it, or the server evicted it.
    Stranger,
}

/// What happened.
#[derive(Debug)]
pub enum Note {
    /// A reply with a grant was sent.
    Told {
        /// The connection.
        client: ClientId,
        /// Its request.
        asked: Box<Asked>,
        /// The token.
        token: Token,
        /// When it was granted.
        granted_at: Now,
        /// The remaining time in the reply.
        remaining_ms: u64,
        /// Whether it waited for the hold.
        waited: bool,
        /// What replicas had to acknowledge.
        pending: Option<Pending>,
    },
    /// A reply with a grant of several locks is about to be sent.
    ToldSeveral {
        /// What was asked for each of them.
        asks: Vec<Asked>,
        /// The owner's hold of each of them.
        held: Vec<Option<Token>>,
        /// The token in the reply.
        newest: Token,
    },
    /// A hold began, and is pending until replicas have acknowledged it.
    Pending {
        /// The request.
        asked: Box<Asked>,
        /// What awaits acknowledgments.
        pending: Pending,
    },
    /// A pending hold, or renewal, will not be confirmed.
    Unconfirmed {
        /// The request.
        asked: Box<Asked>,
        /// What awaited acknowledgments.
        pending: Pending,
        /// The number of the wait.
        waiter: WaiterId,
    },
    /// A caller that waited for acknowledgments got nil.
    NilWhilePending {
        /// The request.
        asked: Box<Asked>,
    },
    /// A renewal with ACKS was confirmed.
    RenewalTold {
        /// The request.
        asked: Box<Asked>,
        /// What was acknowledged.
        pending: Pending,
    },
    /// A request needs acknowledgments.
    AskedAcks {
        /// How many replicas.
        acks: u8,
        /// Whether enough replicas are connected, so that it was not refused.
        is_let_in: bool,
    },
    /// A renewal was reported.
    Renewed {
        /// The database.
        db: i32,
        /// The lock.
        key: Key,
        /// The owner.
        owner: Owner,
        /// Only holds in this mode; `None` means both.
        mode: Option<Mode>,
        /// Only the hold with this token; `None` means any.
        only: Option<Token>,
        /// The lease.
        lease: LeaseMs,
    },
    /// A lock changed on its primary.
    Changed {
        /// The database.
        db: i32,
        /// The key.
        key: Key,
        /// The change.
        change: Change<'static>,
        /// What changed it.
        by: By,
    },
    /// A key was removed.
    KeyLost {
        /// The database.
        db: i32,
        /// The key.
        key: Key,
        /// What removed it.
        by: Loss,
    },
    /// A stranger set a time to live.
    Tampered {
        /// The database.
        db: i32,
        /// The lock.
        key: Key,
        /// Until when, in milliseconds.
        at_ms: u64,
    },
    /// A database was emptied; `None` means all of them.
    Flushed(Option<i32>),
    /// Two databases changed places.
    Swapped(i32, i32),
    /// A command of this connection was executed.
    Ran(ClientId),
    /// A connection ended.
    Closed(ClientId),
    /// A grant did not reach its connection.
    Unheard {
        /// The request.
        asked: Box<Asked>,
        /// The token.
        token: Token,
    },
    /// A connection asked for a session.
    AskedSession {
        /// The connection.
        client: ClientId,
        /// The database.
        db: i32,
        /// The lock.
        key: Key,
        /// The owner.
        owner: Owner,
    },
    /// An observer got the holder of WRITE as a token, with 0 for nobody.
    Shown {
        /// What it knew of.
        known: u64,
        /// The token in the reply; `None` for nil.
        shown: Option<u64>,
        /// The token that it should have got.
        visible: u64,
    },
    /// A message left.
    Message {
        /// The request that the message ends.
        tell: Box<Tell>,
        /// Its content.
        outcome: Outcome,
    },
    /// A request that waited for a message ended without one.
    TellEnded {
        /// The request with `TELL`.
        tell: Box<Tell>,
        /// The reason, if there is one.
        why: Option<Why>,
    },
    /// A broken law, found where it happened.
    Wrong {
        /// The name of the law.
        law: &'static str,
        /// How it was broken.
        what: String,
    },
    /// Something that is counted.
    Saw(crate::seen::Kind),
}

/// The actions of one step of a server, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// The server replicated effects that begin these holds.
    Effects(Vec<Token>),
    /// A decision began holds of this lock, with these tokens.
    Began(i32, Key, Vec<Token>),
    /// The server published that this lock was acquired.
    Event(i32, Key),
    /// The server sent a message with this token.
    Message(Token),
    /// The caller or a blocked connection gets this token as its reply.
    Reply(Token),
}

impl Waiting {
    /// The pending grants that will not be confirmed, as notes.
    pub(crate) fn take_unconfirmed(&mut self) -> Vec<Note> {
        let waiter = self.waiter;
        self.take_pending(|asked, pending| Note::Unconfirmed { asked, pending, waiter })
    }

    /// The pending grants and renewals of a connection that gets this reply instead, as notes.
    pub(crate) fn take_ended(&mut self, reply: &Reply) -> Vec<Note> {
        match reply {
            Reply::NotNow { .. } => self.take_pending(|asked, _| Note::NilWhilePending { asked }),
            Reply::Renewed => {
                self.take_pending(|asked, pending| Note::RenewalTold { asked, pending })
            }
            _ => self.take_unconfirmed(),
        }
    }

    /// The pending grants, as notes.
    pub(crate) fn take_pending(&mut self, note: impl Fn(Box<Asked>, Pending) -> Note) -> Vec<Note> {
        let pending = std::mem::take(&mut self.pending).into_iter();
        let asked = |place| self.asks().nth(place).cloned().map(Box::new);
        pending.filter_map(|(place, it)| Some(note(asked(place)?, it))).collect()
    }

    /// Takes the notes of grants whose reply did not reach the connection.
    pub(crate) fn take_unheard(&mut self) -> Vec<Note> {
        let tokens = std::mem::take(&mut self.granted);
        let pairs = self.asks().cloned().zip(tokens);
        pairs.map(|(asked, token)| Note::Unheard { asked: Box::new(asked), token }).collect()
    }
}
