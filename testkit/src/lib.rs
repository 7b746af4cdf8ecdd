//! The tools that tests use: servers, clients, a lock as `RLOCK.INFO` shows it, payloads.

// A test fails by panicking, and its numbers are small.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

mod client;
mod cluster;
mod compiled;
mod lateness;
mod link;
mod listener;
mod lock_view;
mod payload;
mod port;
mod program;
mod queue_view;
mod replies;
mod server;
mod subscriber;
mod version;
mod waiter;
mod wire;

use std::io::Write;
use std::time::{Duration, Instant, UNIX_EPOCH};

pub use client::Client;
pub use cluster::Cluster;
pub use compiled::Compiled;
pub use lateness::Lateness;
pub use link::Link;
pub use listener::Listener;
pub use lock_view::LockView;
pub use payload::{Payload, aof_commands, newest_aof, with_token};
pub use program::{Program, cli_program};
pub use replies::{flat_map, integer, items, text, time_ms, time_us};
pub use server::{Server, module};
pub use subscriber::Subscriber;
pub use version::Version;
pub use waiter::{Waiter, is_connected};
pub use wire::Wire;

/// The longest lease and the greatest bound of a lease setting, in milliseconds: seven days.
pub const LEASE_MS_MAX: i64 = 604_800_000;
/// The deepest hold there can be, in levels.
pub const DEPTH_MAX: i64 = 65_535;
/// Every token is smaller: a client whose numbers are doubles can carry it.
pub const TOKEN_END: i64 = 1 << 53;

/// Waits until `is_so`, for at most `ms_max`; otherwise, the test fails.
#[track_caller]
pub fn until(ms_max: u64, mut is_so: impl FnMut() -> bool) {
    let patience_ends_at = Instant::now() + Duration::from_millis(ms_max);
    while !is_so() {
        assert!(Instant::now() < patience_ends_at, "still not so after {ms_max} ms");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Lets this time pass, exact to a microsecond; a sleep would take longer.
pub fn spin_for(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// This machine's clock, which is the servers' too, in unix milliseconds.
pub fn now_ms() -> i64 {
    let since_1970 = UNIX_EPOCH.elapsed().unwrap();
    i64::try_from(since_1970.as_millis()).unwrap()
}

/// Prints to the terminal, past the test harness, what could not be tested on this machine or
/// server.
pub fn say_not_seen(what: &str) {
    let line = format!("NOT SEEN HERE: {what}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
