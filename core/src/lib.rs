//! The law of RLOCK: what a lock is and who may hold it. No Redis, no clock, no I/O, no randomness:
//! the time is an argument, and the same inputs give the same lock on every machine.
//!
//! A [`Lock`] has holds. A hold is an owner's, for reading or for writing, with a fencing token, a
//! depth and a deadline. The laws:
//!
//! 1. While an owner holds WRITE, no other owner holds anything.
//! 2. A hold is over at its deadline, for every reader of the lock at once, swept or not.
//! 3. A new hold has a token greater than every token before it; entering again keeps the token.
//! 4. A deadline is only ever extended, by entering again or by renewing.
//! 5. What changes a lock is a [`Change`], and a replica that replays the changes has the same
//!    lock.
//! 6. Nobody who is first in line could enter: whoever can has entered when a transition is done.
//! 7. A newcomer never passes anyone who waits; readers that stand together enter together.
//! 8. Everyone parked is answered exactly once, and nobody who left is granted.
//!
//! A [`Memory`] is what the primary alone knows beside the lock: its [`Queue`] and its
//! [`Sessions`]. [`Lock::apply`] is the one transition, [`Lock::replay`] the one mutator. What a
//! command may say is in [`grammar`], what is stored and replicated in [`snapshot`].
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod change;
mod decide;
mod due;
pub mod grammar;
mod holders;
mod input;
mod lock;
pub mod manager;
mod memory;
mod queue;
mod readers;
mod refusal;
mod serve;
mod sessions;
pub mod snapshot;
pub mod text;
mod units;
pub mod waits_for;
mod way;

pub use change::{Change, End, Event};
pub use holders::{Hold, Mode};
pub use input::{
    Acquire, Dismissed, Effects, Input, Levels, Moment, Parking, Patience, Release, Renew, Reply,
    Wake,
};
pub use lock::Lock;
pub use memory::Memory;
pub use queue::{Entry, Kind, Queue};
pub use refusal::{Instead, Refusal};
pub use sessions::{Session, Sessions};
pub use units::{ClientId, EpochMs, LeaseMs, Now, Owner, Token, Tokens, WaiterId};
pub use way::Wish;
