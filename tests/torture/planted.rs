//! Tests of the checkers: each gets a history with one error, which it must report, and no other
//! checker may; and a lock that does not work, on a real server under the same load.

// A test fails by panicking, and its numbers are small.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

// Torture uses all of these, its tests only some.
#[allow(dead_code)]
mod actor;
#[allow(dead_code)]
mod aftermath;
#[allow(dead_code, unused_imports)]
mod checks;
#[allow(dead_code)]
mod clock;
#[allow(dead_code)]
mod crowd;
#[allow(dead_code)]
mod failovers;
#[allow(dead_code)]
mod faults;
#[allow(dead_code)]
mod history;
#[allow(dead_code)]
mod run;
#[allow(dead_code)]
mod thousand;
mod witness;
#[allow(dead_code)]
mod words;
#[allow(dead_code)]
mod workloads;

#[path = "planted/failovers.rs"]
mod false_grants;
#[path = "planted/histories.rs"]
mod histories;
#[path = "planted/leftovers.rs"]
mod leftovers;
#[path = "planted/limits.rs"]
mod limits;
#[path = "planted/linear.rs"]
mod linear;
#[path = "planted/told.rs"]
mod told;
#[path = "planted/unbounded.rs"]
mod unbounded;
#[path = "planted/wrong_lock.rs"]
mod wrong_lock;
