//! The tests of the core, in one program, so that it is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "numbers are small")]

mod acks;
mod acks_depth;
mod acks_end;
mod acks_found;
mod acks_levels;
mod acks_told;
mod arrivals;
mod calls;
mod commands;
mod deadlocks;
mod fuzz;
mod glossary;
mod grammar;
mod grammar_bytes;
mod laws;
mod man;
mod manager;
mod model_check;
mod overdue;
mod places;
mod portions;
mod renewals;
mod rights;
mod rules;
mod scaling;
mod scaling_locks;
mod several;
mod slow_log;
mod snapshot;
mod stories;
mod support;
mod tidy;
mod units;
mod waiting;
