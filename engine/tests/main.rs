//! The tests of the engine on a map of keys, in one program, so that it is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "numbers are small")]

mod acks;
mod beside;
mod blocked;
mod commands;
mod deadlocks;
mod events;
mod freed_together;
mod group_ack_laws;
mod group_ack_storm;
mod group_acks;
mod group_fates;
mod group_found;
mod group_laws;
mod group_orders;
mod groups;
mod handoff;
mod keys;
mod left_behind;
mod observers;
mod replay;
mod several;
mod several_laws;
mod support;
mod sweep;
mod tell;
mod tell_again;
