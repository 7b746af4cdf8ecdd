//! `rlock run --once-per`: one run in each interval, across machines.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::{Rlock, Server, is_held, said, until};

/// The server's clock.
fn now(server: &Server) -> Duration {
    let (seconds, micros): (u64, u64) = server.ask("TIME");
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

#[test]
fn in_each_interval_one_of_two_processes_runs() {
    let server = Server::start(&[]);
    let words = ["run", "--once-per", "5s", "job", "echo", "ran"];
    for round in 1..=3 {
        let start = now(&server);
        let both = [server.rlock(&words).spawn().unwrap(), server.rlock(&words).spawn().unwrap()];
        let mut ends: Vec<_> =
            both.into_iter().map(|one| said(one.wait_with_output().unwrap())).collect();
        ends.sort();
        let wanted = [(0, "ran\n".to_owned(), String::new()), (1, String::new(), String::new())];
        assert_eq!(ends, wanted, "round {round}");
        // A third run within the interval does not start either, and `-E` sets its exit code.
        let (code, out, _) =
            server.run(&["run", "--once-per", "5s", "-E", "75", "job", "echo", "ran"]);
        assert_eq!((code, out.as_str()), (75, ""));
        until("the interval is over", || !is_held(&server, "job"));
        let took = now(&server) - start;
        assert!(took >= Duration::from_secs(5), "{took:?}");
    }
}

#[test]
fn a_run_that_fails_or_is_killed_is_the_one_of_its_interval() {
    let server = Server::start(&[]);
    let words = ["run", "--once-per", "6s", "job"];
    let run = |command: &[&str]| server.run(&[&words, command].concat());
    assert_eq!(run(&["sh", "-c", "exit 3"]).0, 3);
    assert_eq!(run(&["true"]).0, 1);
    until("the interval is over", || !is_held(&server, "job"));

    let mut child = server.rlock(&[&words[..], &["sleep", "60"]].concat()).spawn().unwrap();
    until("it runs", || is_held(&server, "job"));
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert_eq!(run(&["true"]).0, 1);
    assert!(is_held(&server, "job"));
    until("the interval is over", || !is_held(&server, "job"));
    assert_eq!(run(&["true"]).0, 0);
}

#[test]
fn a_run_that_fails_or_is_killed_may_be_followed_by_another_one_if_asked_for() {
    let server = Server::start(&[]);
    let words =
        ["run", "--once-per", "10s", "--if-it-fails", "again", "--lease", "2s", "job", "sh", "-c"];
    let run = |script: &str| server.run(&[&words[..], &[script]].concat());
    assert_eq!(run("exit 3").0, 3);
    assert!(!is_held(&server, "job"));

    let mut child = server.rlock(&[&words[..], &["sleep 60"]].concat()).spawn().unwrap();
    until("it runs", || is_held(&server, "job"));
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    until("its lease is over", || !is_held(&server, "job"));
    assert!(killed.elapsed() < Duration::from_secs(8), "{:?}", killed.elapsed());

    // Longer than its lease: the interval counts from the beginning of the run.
    let (code, out, complaint) = run("sleep 3; echo ran");
    assert_eq!((code, out.as_str(), complaint.as_str()), (0, "ran\n", ""));
    let left: i64 = server.ask("PTTL job");
    assert!(left > 0 && left <= 7100, "{left}");
    assert_eq!(run("echo ran"), (1, String::new(), String::new()));
}

#[test]
fn with_again_a_short_interval_is_not_as_long_as_the_lease() {
    let server = Server::start(&[]);
    let words = ["run", "--once-per", "10s", "--if-it-fails", "again", "job", "true"];
    assert_eq!(server.run(&words).0, 0);
    let left: i64 = server.ask("PTTL job");
    assert!(left > 0 && left <= 10_000, "{left}");
}

#[test]
fn a_run_that_is_longer_than_its_interval_is_ended() {
    let server = Server::start(&[]);
    let start = Instant::now();
    let (code, _, complaint) = server.run(&["run", "--once-per", "3s", "job", "sleep", "60"]);
    assert_eq!(code, 124, "{complaint}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(complaint.contains("the lock of job is lost"), "{complaint}");
}

#[test]
fn a_run_may_wait_for_its_interval_to_begin() {
    let server = Server::start(&[]);
    assert_eq!(server.run(&["run", "--once-per", "6s", "job", "true"]).0, 0);
    let (code, _, complaint) = server.run(&["run", "--once-per", "6s", "-w", "30s", "job", "true"]);
    assert_eq!((code, complaint.as_str()), (0, ""));
    assert!(is_held(&server, "job"));
}
