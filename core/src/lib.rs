//! The law of RLOCK: what a lock is and who may hold it. No Redis, no clock, no I/O, no randomness:
//! the time is an argument, and the same inputs give the same lock on every machine.
//!
//! A [`Lock`] has holds. A hold is an owner's, for reading or for writing, with a fencing token, a depth
//! and a deadline. The laws:
//!
//! 1. While an owner holds WRITE, no other owner holds anything.
//! 2. A hold is over at its deadline, for every reader of the lock at once, swept or not.
//! 3. A new hold has a token greater than every token before it; entering again keeps the token.
//! 4. A deadline is only ever extended, by entering again or by renewing.
//! 5. What changes a lock is a [`Change`], and a replica that replays the changes has the same lock.
//!
//! [`Lock::apply`] is the one transition, [`Lock::replay`] the one mutator. What a command may say is in
//! [`grammar`], what is stored and replicated in [`snapshot`].
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod change;
pub mod grammar;
mod holders;
mod lock;
mod readers;
mod refusal;
pub mod snapshot;
pub mod text;
mod units;

pub use change::{Change, End, Event};
pub use holders::{Hold, Mode};
pub use lock::{Acquire, Effects, Input, Levels, Lock, Moment, Release, Renew, Reply};
pub use refusal::{Instead, Refusal};
pub use units::{EpochMs, LeaseMs, Now, Owner, Token, Tokens};
