//! The core of RLOCK: what a lock is and who may hold it. It has no Redis, no clock, no I/O and no
//! randomness: the time is an argument, and the same inputs give the same lock on every machine.
//!
//! A [`Lock`] has holds. A hold belongs to one owner, for reading or for writing, and has a fencing
//! token, a depth and a deadline. The laws:
//!
//! 1. While an owner holds WRITE, no other owner has a hold.
//! 2. A hold expires at its deadline, for everybody at once, whether it has been swept or not.
//! 3. A new hold has a token greater than every token before it; re-entry keeps the token.
//! 4. A deadline is only ever extended, by re-entry or by renewal.
//! 5. Only a [`Change`] changes a lock, and a replica that replays the changes has the same lock.
//! 6. When a transition is done, the first in line cannot be granted the lock (it would have been).
//! 7. A newcomer never passes a waiter; adjacent readers are granted the lock together.
//! 8. Every blocked connection gets exactly one reply, and no departed one is granted.
//!
//! A [`Volatile`] is what only the primary knows of a lock: its [`Queue`] and its [`Sessions`].
//! [`Step::apply`] is the only transition. It makes changes through [`Lock::replay`]; only holds
//! that have expired, and count nowhere anymore, are removed without a change. [`grammar`] has the
//! syntax of commands, [`snapshot`] the format in which locks are stored and replicated.
//!
//! A [`Manager`](manager::Manager) decides for all locks of one server. Its caller keeps the locks,
//! and carries out the effects:
//!
//! ```
//! use rlock_core::manager::{At, Bounds, Manager};
//! use rlock_core::{Acquire, Input, LeaseMs, Lock, Mode, Now, Patience, Reply, Rights};
//!
//! let mut now = Now::from_ms(1_000_000);
//! let mut manager = Manager::default();
//! manager.set_role(true, now);
//! let bounds = Bounds {
//!     max_tells: 1_000_000,
//!     max_tell_ms: 3_600_000,
//!     max_depth: 65_535,
//!     max_waiters: 5_000,
//!     max_tickets: 1_000_000,
//!     max_sessions: 10_000,
//!     confirm_ms: 2_000,
//!     grace_ms: 0,
//!     slow: Default::default(),
//!     slowlog_max: 0,
//! };
//! let mut lock = Lock::default(); // the value at the key `order:42`
//!
//! let mut acquire = |owner: &[u8], now| {
//!     let ask = Acquire {
//!         owner,
//!         mode: Mode::Write,
//!         lease: LeaseMs::new(30_000).unwrap(),
//!         upgrade: false,
//!         limit: None,
//!         depth: Some(1),
//!         session: None,
//!         patience: Patience::None,
//!         max_queue: None,
//!         acks: 0,
//!     };
//!     let at = At { db: 0, key: b"order:42", now };
//!     let (input, mut effects) = (Input::Acquire(ask), None);
//!     let decided = manager.decide(at, &bounds, &mut lock, &input, Rights::All, &mut effects);
//!     decided.effects(effects).reply
//! };
//! assert!(matches!(acquire(b"ann", now), Reply::Granted { .. }));
//! assert!(matches!(acquire(b"bob", now), Reply::NotNow { .. }));
//! now = Now::from_ms(1_030_000); // ann's lease has expired
//! assert!(matches!(acquire(b"bob", now), Reply::Granted { .. }));
//! ```
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

pub mod grammar;
pub mod manager;
mod step;
pub mod text;
mod value;
mod volatile;
pub mod waits_for;

pub use step::Step;
pub use step::fast_path::FastStep;
pub use step::input::{
    Acquire, Dismissed, Effects, Input, Levels, Parking, Patience, Release, Renew, Reply, Right,
    Rights, StepContext, Unchecked, Wake,
};
pub use step::open_lock::OpenLock;
pub use step::refusal::{Instead, Refusal};
pub use step::several::{OwnPlace, Standing};
pub use step::unit::{self, Judged, OpenLocks, Ready, ReplyAbout, Unit};
pub use value::change::{Change, End, Event};
pub use value::hold::Hold;
pub use value::holders::Mode;
pub use value::lock::Lock;
pub use value::snapshot;
pub use value::units::{ClientId, EpochMs, LeaseMs, Now, Owner, Token, Tokens, WaiterId};
pub use volatile::Volatile;
pub use volatile::confirmations::{Ack, Confirmation};
pub use volatile::kind::Kind;
pub use volatile::owner_names::{NAMES_MAX, OwnerNames};
pub use volatile::queue::groups::GroupStand;
pub use volatile::queue::{Entry, Queue};
pub use volatile::sessions::{Session, Sessions};
pub use volatile::slow;
