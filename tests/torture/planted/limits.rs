//! Histories made up by hand about a number of permits; and on a real server, one permit too many,
//! and one that is never released.

use std::sync::Arc;

use redis::Cmd;

use crate::actor::Site;
use crate::checks;
use crate::clock::Stop;
use crate::crowd::Crowd;
use crate::histories::{Tale, ask};
use crate::history::{Ask, Asked, FULL_PROMISE, History, Mode, Reply};
use crate::thousand::Watch;
use crate::words;
use crate::workloads;
use rlock_testkit::Server;

const LOAD_MS: u64 = 1000;

pub fn permit(limit: u32) -> Asked {
    Asked::Acquire(Ask { mode: Mode::Read, limit: Some(limit), ..ask() })
}

pub fn release(token: i64) -> Asked {
    Asked::Release { mode: Mode::Read, down_to: None, token: Some(token) }
}

#[test]
fn more_than_the_limit_are_seen() {
    let tale = |third| {
        Tale::new()
            .op("a", [10, 11], permit(2), Reply::Token(100))
            .op("b", [12, 13], permit(2), Reply::Token(101))
            .op("a", [20, 21], release(100), Reply::Number(0))
            .op("c", [third, third + 1], permit(2), Reply::Token(102))
    };
    assert!(tale(22).complaints().is_empty());
    assert_eq!(tale(15).complaints(), ["permits"]);
}

/// A client that sends 3 asks for one of 4.
fn one_too_many(key: &str, owner: &str, asked: &Asked) -> Cmd {
    match asked {
        Asked::Acquire(ask) => {
            let limit = ask.limit.map(|limit| limit + 1);
            words::rlock(key, owner, &Asked::Acquire(Ask { limit, ..*ask }))
        }
        _ => words::rlock(key, owner, asked),
    }
}

#[test]
fn one_permit_too_many_is_found_out() {
    for (workload, checker) in [("permits", "permits"), ("windows", "linear")] {
        let server = Server::start();
        let workload = workloads::named(workload);
        let site = Site { words: one_too_many, ..Site::fixed(server.url("")) };
        let crowd = Crowd::threads(workload, 1, Arc::new(site));
        Stop::default().within(LOAD_MS);
        let history = History { ops: crowd.end(), events: Vec::new(), promise: FULL_PROMISE };
        let mut complaints = checks::check(&history, &checks::holds(&history));
        complaints.extend(checks::linear(&history).1);
        let is_seen = complaints.iter().any(|wrong| wrong.checker == checker);
        assert!(is_seen, "{checker} saw nothing in {} operations", history.ops.len());
    }
}

#[test]
fn a_permit_that_nobody_gives_back_is_found_out() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE pool stranger READ LEASE 600000");
    let mut watch = Watch::of(&server, "pool", 2);
    watch.look();
    watch.until_all_is_free(100);
    let wrong = watch.wrong.join("; ");
    assert!(wrong.contains("1 permits are held by nobody who lives"), "{wrong}");
}
