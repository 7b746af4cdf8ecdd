//! The decisions of `clients/ALGORITHM.md`, by its names: without I/O, clock or randomness.
//!
//! A machine gets one [`Input`] at a time, with the time, and answers with [`Output`]s, of which at most one is an
//! operation that takes time. The simulation plays this very code, and writes traces of it that the packages in other
//! languages replay: `clients/traces/README.md`.

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

/// A time in milliseconds, from any beginning. The clock goes on while the computer sleeps.
pub type Ms = u64;

/// A time that never comes.
pub const FOREVER: Ms = Ms::MAX;
/// How long a reply may take.
pub const REPLY: Ms = 2000;
/// How late a reply may come at the end of the patience, and how long a call may stay for what is undone at once.
pub const LATE: Ms = 50;
/// How often a wait is asked again: a message that was lost costs at most this.
pub const LOOKS: Ms = 1000;
/// The same with `ACKS`: a request that is asked again begins anew to wait for acknowledgments.
const ACKS: Ms = 3 * REPLY;
/// How long before the end of a wait with `ACKS` its request ends, at most: the reason comes before the patience is over.
const AHEAD: Ms = 250;
/// The first pause, more or less, before a try is made again; each next one is twice as long.
pub const FIRST_PAUSE: Ms = 10;
/// No such pause is longer, more or less.
pub const LONGEST_PAUSE: Ms = 500;
/// The pause, more or less, before a server that was not reached is connected to again.
pub const DIALS: Ms = 200;
/// By then a server that goes on has read what lies in its sockets.
pub const AGAIN: Ms = 500;
/// How long a request that does not wait is repeated.
pub const PATIENCE: Ms = 3000;
/// How long a request that does not wait for the lock waits for another request of the same owner.
const SOON: Ms = 2 * LATE;
/// How long what is left is undone after `close`.
pub const CLOSES: Ms = 1000;
/// How often a request follows redirections without a pause.
const HOPS: u8 = 5;

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An integer: a token, or how many.
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

/// Whether an error ends by itself: no server can decide for now.
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

/// What has happened, for a machine to decide on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// It begins.
    Call,
    /// An own connection is there.
    Opened,
    /// A request on a shared connection ended, or opening an own connection or subscribing failed.
    Ended(Outcome),
    /// The request on the own connection ended; or, during a wait, that connection.
    Own(Outcome),
    /// The channel is subscribed; about how long a round trip takes.
    Listening(Ms),
    /// The message for the latest request.
    Message(Outcome),
    /// The subscription has ended.
    Lost,
    /// The time has come.
    Time,
    /// The caller has the hold.
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
    /// It was, or nobody knows.
    Released,
    /// The reply to another request showed that the hold has ended.
    Gone,
    /// Another level was granted, by a request that was sent then.
    Extend(Ms),
}

/// What is asked on a shared connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `RLOCK.ACQUIRE`, and for how long it waits at the server; 0 is for ever.
    Acquire(Option<Ms>),
    /// `RLOCK.RENEW` of that token.
    Renew(u64),
    /// `RLOCK.CANCEL`
    Cancel,
    /// `RLOCK.INFO`: the token of this owner's hold.
    Info,
    /// `RLOCK.RELEASE` of that token, down to that depth.
    Release(u64, u32),
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tell {
    /// The token; when the request was sent that the lease counts from; whether an earlier one was never answered.
    Granted(u64, Ms, bool),
    /// Not acquired.
    Nil,
    /// Released.
    Released,
    /// The hold is gone.
    Lost,
    /// Out of patience.
    Unavailable,
    /// Out of patience with too few replicas.
    NoReplicas,
    /// Another error of the server.
    Refused(String),
    /// The caller went away.
    Cancelled,
    /// The client is closed.
    Closed,
}

/// What a machine has done. An operation goes on until an input ends it; the others are done at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Operation: an own connection.
    Open(Ms),
    /// Operation: `RLOCK.ACQUIRE` on the own connection.
    Own {
        /// For how long it waits at the server; 0 is for ever.
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
    /// Operation: goes on waiting for the reply to the request that was interrupted.
    Await(Ms),
    /// Operation: subscribes to the channel of the key.
    Listen(Ms),
    /// Operation: waits for the message.
    Wait(Ms),
    /// Operation: waits.
    Sleep(Ms),
    /// Operation: is the seat free?
    Seat,
    /// The own connection is free for others.
    Keep,
    /// The own connection is closed.
    Drop,
    /// The result for the caller.
    Tell(Tell),
    /// From here on the seat is undone.
    Undo,
    /// The seat is free; the end.
    Free,
    /// The connection of the session ended: nobody may rely on the hold until it is tied again.
    Doubt,
    /// The own connection belongs to the hold.
    Tied,
    /// The seat that was taken to tie the hold is free again.
    Leave,
    /// The end of a hold.
    Done,
}

/// What requests may have left at the server.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// Something was sent, and its outcome is unknown or nobody has taken it.
    in_doubt: bool,
    /// Something was never answered, and may still be executed.
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
