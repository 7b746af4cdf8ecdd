//! The figures of waiting, measured on a real server from outside: one line each, with its goal.
//! They are times of one machine on one day, so a missed goal is said and fails nothing. What must
//! never happen (a grant before its time, a place lost, a hold left behind) ends the program.

// What must never happen panics here, and the numbers of a run are small.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

// The stories use all of it, the figures a part.
#[allow(dead_code, unused_imports)]
#[path = "../server/support/mod.rs"]
mod support;

mod bench;
mod flatness;
mod hand_off;
mod lateness;
mod limits;
mod queues;
mod sessions;

use support::Version;

fn main() {
    // `cargo bench` adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| w != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => all(),
        ["hold-until-killed", socket, key] => sessions::hold_until_killed(socket, key),
        _ => panic!("no arguments are known, {words:?} were given"),
    }
}

fn all() {
    let cores = bench::take_own_core();
    let server = bench::server(&[]);
    let cores = match cores {
        Some((theirs, ours)) => format!("the server on core {theirs}, its clients on core {ours}"),
        None => "server and clients wherever the system puts them".to_owned(),
    };
    println!("{}; {cores}; no persistence", name(server.version()));
    drop(server);
    flatness::measure();
    lateness::measure();
    sessions::measure();
    limits::measure();
    hand_off::measure();
}

fn name(version: Version) -> String {
    match version {
        Version::Redis(major, minor) => format!("Redis {major}.{minor}"),
        Version::Valkey(major, minor) => format!("Valkey {major}.{minor}"),
    }
}
