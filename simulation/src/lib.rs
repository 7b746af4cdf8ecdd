//! Whole servers in one process, one thread and one seed: around RLOCK's lock manager, the very
//! code that runs in production, stand a simulated keyspace, connections, a network, replicas and
//! failover. What is described here is on one page in `docs/simulation.md`.

// A law that is broken is a value; what else fails panics. The numbers of a run are small.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panic"
)]

mod acks;
pub mod client;
pub mod command;
mod commands;
pub mod driver;
pub mod fault;
mod hands;
pub mod history;
pub mod keyspace;
pub mod laws;
pub mod network;
pub mod notes;
mod own;
mod parking;
mod print;
pub mod run;
pub mod seen;
pub mod server;
pub mod step;
mod sweep;
pub mod words;
pub mod world;
