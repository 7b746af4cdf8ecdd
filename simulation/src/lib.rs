//! Whole servers in one process, one thread and one seed. RLOCK's engine, the very code that runs
//! in production, is surrounded by a simulated keyspace, connections, a network, replicas and
//! failover. `docs/testing.md` describes it on one page.

// A broken law is returned as a value; other failures panic. The numbers of a run are small.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panic"
)]

mod ask;
mod asked;
pub mod client;
pub mod command;
mod commands;
mod conn;
pub mod driver;
mod eventloop;
pub mod fault;
pub mod history;
mod host;
pub mod keyspace;
pub mod laws;
mod link;
#[path = "../../clients/rust/src/machine/mod.rs"]
pub mod machine;
mod machines;
pub mod network;
pub mod notes;
mod own;
mod print;
mod printer;
pub mod run;
mod running;
pub mod seen;
pub mod server;
pub mod several;
pub mod snapshot;
pub mod step;
pub mod tell;
mod telling;
#[path = "../../clients/rust/src/machine/trace.rs"]
pub mod trace;
pub mod users;
pub mod waiting;
mod watch;
pub mod words;
pub mod world;
