//! The tests of the simulation, in one program, so that it is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "numbers are small")]

mod exhaustive;
mod not_promised;
mod planted;
mod short;
mod stories;
mod stories_acks;
mod stories_several;
mod stories_tell;
mod support;
mod users;
