//! Measures RLOCK and its alternatives from outside, on a real server. The results are stored in
//! `bench/results`, and `docs/benchmarks.md` shows them. A missed goal is not a failure here.
//! Something that must never happen (an early grant, a lost place, a hold left behind) ends the
//! measurement in which it happens.

// The program panics when something happens that must never happen, and its numbers are small.
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

mod acks;
mod arrivals;
mod book;
mod cache;
mod callgrind;
mod capacity;
mod contended;
mod crowd;
mod flatness;
mod gate;
mod goals;
mod hand_off;
mod instructions;
mod lateness;
mod limits;
mod long_steps;
mod memory;
mod observers;
mod pair;
mod peers;
mod play;
mod plots;
mod queues;
mod quiet;
mod redissons;
mod report;
mod rivals;
mod rows;
mod sample;
mod sessions;
mod several;
mod stage;
mod steps;
mod tell;
mod tell_acks;
mod tell_crowd;
mod wire;

use std::process::ExitCode;

use book::Book;

/// How long a run takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Three minutes; the results are printed, but not stored.
    Quick,
    /// Twenty minutes; the results are stored in `bench/results`.
    Full,
}

impl Profile {
    fn named(name: &str) -> Profile {
        match name {
            "quick" => Profile::Quick,
            "full" => Profile::Full,
            _ => panic!("{name}: quick or full"),
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_well = match words[..] {
        // Run both, even if the first fails.
        ["gate"] => gate::run(false) & steps::gate(),
        ["gate", "record"] => gate::run(true),
        ["run", profile] => run(Profile::named(profile), false),
        ["run", profile, "with-peers"] => run(Profile::named(profile), true),
        // Runs in a second process of this program, which is then killed.
        ["hold-until-killed", socket, key] => {
            sessions::hold_until_killed(socket, key);
            true
        }
        // Runs in a second process of this program, whose instructions are counted.
        ["steps", operation, others] => {
            steps::run(operation, others);
            true
        }
        ["acks"] => {
            stage::take_own_core();
            acks::measure(&mut Book::default(), Profile::Quick);
            true
        }
        ["tell"] => {
            stage::take_own_core();
            let mut book = Book::default();
            tell::measure(&mut book, Profile::Quick);
            println!("\n{}", report::goals_of(&book));
            book.missing.is_empty()
        }
        ["arrivals"] => {
            let mut book = Book::default();
            arrivals::measure(&mut book);
            println!("\n{}", report::arrivals_table(&book));
            book.missing.is_empty()
        }
        ["cache"] => {
            stage::take_own_core();
            cache::measure(&mut Book::default(), Profile::Quick);
            true
        }
        // Measures only these sections, and stores them with the results of earlier runs.
        ["part", name] => {
            stage::take_own_core();
            let mut book = Book { about: stage::about(Profile::Full), ..Book::default() };
            match name {
                "acknowledged" => acks::measure(&mut book, Profile::Full),
                "arrivals" => book.measure("arrivals", arrivals::measure),
                "cache" => book.measure("cache", |book| cache::measure(book, Profile::Full)),
                "capacity" => capacity::measure(&mut book, Profile::Full),
                "contended" => contended::measure(&mut book, Profile::Full),
                "instructions" => instructions::measure(&mut book),
                "long steps" => long_steps::measure(&mut book, Profile::Full),
                "pair" => pair::measure(&mut book, Profile::Full),
                "peers" => book.measure("peers", peers::measure),
                "several" => several::measure(&mut book, Profile::Full),
                "TELL" => tell::measure(&mut book, Profile::Full),
                "waiting: hand-off" => hand_off::measure(&mut book, Profile::Full),
                "waiting: lease end" => lateness::measure(&mut book, Profile::Full),
                _ => panic!("{name}: see scripts/bench.sh"),
            }
            rows::save_part(&book, name);
            book.missing.is_empty()
        }
        ["report"] => {
            report::write();
            true
        }
        _ => panic!("unknown: {words:?}; see scripts/bench.sh"),
    };
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Takes all measurements on one server; returns whether none is missing.
fn run(profile: Profile, is_with_peers: bool) -> bool {
    stage::take_own_core();
    let mut book = Book { about: stage::about(profile), ..Book::default() };
    println!("{}, {}", book.about("server"), book.about("machine"));
    book.measure("instructions", instructions::measure);
    pair::measure(&mut book, profile);
    book.measure("hand-off", |book| hand_off::measure(book, profile));
    book.measure("contended", |book| contended::measure(book, profile));
    book.measure("several locks", |book| several::measure(book, profile));
    book.measure("flatness", |book| flatness::measure(book, profile));
    book.measure("lease end", |book| lateness::measure(book, profile));
    book.measure("session's end", |book| sessions::measure(book, profile));
    book.measure("memory", memory::held);
    book.measure("acknowledged", |book| acks::measure(book, profile));
    tell::measure(&mut book, profile);
    book.measure("limits", |book| limits::measure(book, profile));
    book.measure("long steps", |book| long_steps::measure(book, profile));
    book.measure("capacity", |book| capacity::measure(book, profile));
    book.measure("many", |book| memory::many(book, profile));
    book.measure("append-only file", memory::append_only_file);
    book.measure("cold keyspace", |book| memory::cold(book, profile));
    if is_with_peers {
        book.measure("peers", peers::measure);
    }
    println!("\n{}", report::goals_of(&book));
    if profile == Profile::Full {
        rows::save(&book);
    }
    book.missing.is_empty()
}
