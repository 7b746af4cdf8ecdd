//! The decisions of `clients/ALGORITHM.md`, with the names of that page, and without I/O, clock or randomness.
//!
//! A machine gets one [`Input`] at a time, with the time, and returns [`Output`]s, of which at most one is an operation
//! that takes time. The simulation runs this very code, and writes traces of it that the packages in other languages
//! replay: `clients/traces/README.md`.

mod attempt;
mod hold;
mod planted;
mod release;
mod seat;
mod server;
mod undo;

pub use attempt::{Ask, Attempt};
pub use hold::{Hold, Kept};
pub use planted::Planted;
pub use release::{Level, Release};
pub use seat::{Names, SeatDecision, SeatState, decide_seat};
pub use server::{Dial, Server, is_condemned};

/// A time in milliseconds, from an arbitrary start. The clock continues while the computer sleeps.
pub type Ms = u64;

/// A time that never comes.
pub const FOREVER: Ms = Ms::MAX;
/// How long a reply may take.
pub const REPLY: Ms = 2000;
/// How long a reply may be late at the end of the patience, and how long a caller waits for
/// undoing.
pub const LATE: Ms = 50;
/// How often a waiting request is sent again: a lost message costs at most this much time.
pub const LOOKS: Ms = 1000;
/// The same with `ACKS`: a request that is sent again begins to wait for acknowledgments anew.
const ACKS: Ms = 3 * REPLY;
/// With `ACKS`, a request ends at most this long before the wait does: so its message, with the
/// reason, comes in time.
const AHEAD: Ms = 250;
/// The average first pause before a retry; each further pause is twice as long.
pub const FIRST_PAUSE: Ms = 10;
/// The average of the longest pause.
pub const LONGEST_PAUSE: Ms = 500;
/// The average pause before the next connection to a server that could not be reached.
pub const DIALS: Ms = 200;
/// After this time, a server that was suspended has read what its sockets had received.
pub const AGAIN: Ms = 500;
/// How long a request that does not wait is repeated.
pub const PATIENCE: Ms = 3000;
/// How long a request that does not wait for the lock waits for another request of the same owner.
const SOON: Ms = 2 * LATE;
/// How long undoing may take after `close`.
pub const CLOSES: Ms = 1000;
/// How many redirections an attempt follows without a pause.
const HOPS: u8 = 5;

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An integer: a token, or a number of holds.
    Token(u64),
    /// Nil.
    Nil,
    /// The request waits: a message follows.
    Waiting,
    /// An error of the server, by its code.
    Refused(String),
    /// There was no connection to send it on: it was certainly not executed.
    Unsent,
    /// The connection ended before the reply.
    Broken,
    /// The time for the reply has passed.
    Silent,
}

impl Outcome {
    /// Whether the server may have executed the request, or may still do so.
    fn is_unknown(&self) -> bool {
        matches!(self, Self::Broken | Self::Silent)
    }
}

/// Whether the condition behind an error ends by itself: no server can decide for now.
#[must_use]
pub fn passes(code: &str) -> bool {
    matches!(
        code,
        "UNBLOCKED"
            | "READONLY"
            | "LOADING"
            | "MOVED"
            | "ASK"
            | "TRYAGAIN"
            | "CLUSTERDOWN"
            | "NOREPLICAS"
            | "MASTERDOWN"
    )
}

/// Something that happened, for a machine to decide on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The call begins.
    Call,
    /// A dedicated connection has opened.
    Opened,
    /// A request on a shared connection ended, or a dedicated connection could not be opened, or
    /// subscribing failed.
    Ended(Outcome),
    /// The request on the dedicated connection ended; or, during a wait, that connection.
    Own(Outcome),
    /// The channel is subscribed; about how long a round trip takes.
    Listening(Ms),
    /// The message for the latest request.
    Message(Outcome),
    /// The subscription has ended.
    Lost,
    /// The time has come.
    Time,
    /// The caller has taken the hold.
    Taken,
    /// The caller went away.
    Cancel,
    /// The client is closed.
    Close,
    /// The connection of the session ended.
    Untied,
    /// Whether the seat is free, and the depth of the hold.
    Seat(Option<u32>),
    /// The last level is being released.
    Releasing,
    /// It was released, or the outcome is unknown.
    Released,
    /// The reply to another request showed that the hold has ended.
    Gone,
    /// Another level was granted; its request was sent then.
    Extend(Ms),
}

/// The requests on a shared connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `RLOCK.ACQUIRE`, and how long it waits at the server; 0 means forever.
    Acquire(Option<Ms>),
    /// `RLOCK.RENEW` of the hold with that token.
    Renew(u64),
    /// `RLOCK.CANCEL`
    Cancel,
    /// `RLOCK.INFO`: the token of this owner's hold.
    Info,
    /// `RLOCK.RELEASE` of the hold with that token, down to that depth.
    Release(u64, u32),
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tell {
    /// The token; when the request from which the lease counts was sent; and whether an earlier
    /// request was never answered.
    Granted(u64, Ms, bool),
    /// Not acquired.
    Nil,
    /// Released.
    Released,
    /// The hold is gone.
    Lost,
    /// Out of patience.
    Unavailable,
    /// The patience has ended, with too few replicas.
    NoReplicas,
    /// Another error of the server.
    Refused(String),
    /// The caller went away.
    Cancelled,
    /// The client is closed.
    Closed,
}

/// An action of a machine. An operation continues until an input ends it; all other actions are
/// done at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Operation: an own connection.
    Open(Ms),
    /// Operation: `RLOCK.ACQUIRE` on the dedicated connection.
    Own {
        /// How long it waits at the server; 0 means forever.
        block: Option<Ms>,
        /// Whether it begins a session.
        session: bool,
        /// The depth, when a hold is tied again.
        depth: Option<u32>,
        /// Until when.
        by: Ms,
    },
    /// Operation: a request on a shared connection.
    Send(Request, Ms),
    /// Operation: continues to wait for the reply to the interrupted request.
    Await(Ms),
    /// Operation: subscribes to the channel of the key.
    Listen(Ms),
    /// Operation: waits for the message.
    Wait(Ms),
    /// Operation: waits.
    Sleep(Ms),
    /// Operation: asks whether the seat is free.
    Seat,
    /// The dedicated connection is free for others.
    Keep,
    /// The dedicated connection is to be closed.
    Drop,
    /// The result for the caller.
    Tell(Tell),
    /// From now on, what was left is being undone, on behalf of the seat.
    Undo,
    /// The seat is free, and the machine has ended.
    Free,
    /// The session's connection ended: nobody may rely on the hold until it is tied to a new one.
    Doubt,
    /// The dedicated connection belongs to the hold.
    Tied,
    /// The seat that was taken to tie the hold is free again.
    Leave,
    /// The end of a hold.
    Done,
}

/// What requests may have left behind at the server.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// Whether something was sent whose outcome is unknown, or whose grant nobody has taken.
    in_doubt: bool,
    /// Whether a request was never answered, and may still be executed.
    lingers: bool,
    /// The token of a grant that nobody takes.
    token: Option<u64>,
}

/// A state machine that gets inputs and returns outputs.
pub trait Machine {
    /// Decides what follows from an input.
    fn step(&mut self, now: Ms, input: Input, out: &mut Vec<Output>);
}

macro_rules! machines {
    ($($name:ident),*) => {$(
        impl Machine for $name {
            fn step(&mut self, now: Ms, input: Input, out: &mut Vec<Output>) {
                $name::step(self, now, input, out);
            }
        }
    )*};
}
machines!(Attempt, Release, Hold);
