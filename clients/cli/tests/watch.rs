//! `rlock watch` beside a real server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod support;

use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStdout};

use support::{Rlock, Server, replica_of, until};

struct Watch {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(server: &Server, key: &str) -> Watch {
        let mut process = server.rlock(&["watch", key]).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Watch { process, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn observers(server: &Server) -> u64 {
    let info: String = server.ask("INFO rlock");
    let line = info.lines().find_map(|line| line.strip_prefix("rlock_observers:"));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_line_is_printed_for_each_change() {
    let server = Server::start(&[]);
    let mut watch = Watch::start(&server, "job");
    assert_eq!(watch.line(), "free");
    let mut last = String::new();
    for owner in ["ann", "bob"] {
        until("it is watched by message", || {
            let info: String = server.ask("INFO everything");
            info.contains("blocked_clients:0") && info.contains("rlock_observers:1")
        });
        let token: u64 = server.ask(&format!("RLOCK.ACQUIRE job {owner}"));
        assert_eq!(watch.line(), format!("{owner} holds it, token {token}"));
        until("it is watched", || observers(&server) == 1);
        // A connection that breaks, or a change that leaves the holder, prints no line.
        server.ask::<u64>("CLIENT KILL TYPE normal SKIPME yes");
        server.ask::<u64>(&format!("RLOCK.RENEW job {owner}"));
        until("it is watched", || observers(&server) == 1);
        server.ask::<u64>(&format!("RLOCK.RELEASE job {owner}"));
        last = watch.line();
        assert_eq!(last, "free");
    }
    assert_eq!(last, "free");
}

#[test]
fn a_replica_is_watched_with_one_complaint() {
    let primary = Server::start(&[]);
    let replica = replica_of(&primary);
    let mut watch = Watch::start(&replica, "job");
    assert_eq!(watch.line(), "free");
    for owner in ["ann", "bob"] {
        primary.ask::<u64>(&format!("RLOCK.ACQUIRE job {owner}"));
        assert!(watch.line().starts_with(&format!("{owner} holds it")));
        primary.ask::<u64>(&format!("RLOCK.RELEASE job {owner}"));
        assert_eq!(watch.line(), "free");
    }
    watch.process.kill().unwrap();
    let mut complaints = String::new();
    watch.process.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
    assert!(complaints.lines().count() == 1 && complaints.contains("cannot block"), "{complaints}");
}

#[test]
fn watch_explains_why_it_cannot_watch() {
    let server = Server::start(&[]);
    server.ask::<()>("SET job x");
    let (code, page, complaint) = server.run(&["watch", "job"]);
    assert!(code == 125 && page.is_empty() && complaint.contains("WRONGTYPE"), "{complaint}");
    let (code, _, complaint) = server.run(&["watch"]);
    assert!(code == 125 && complaint.contains("no key is given"), "{complaint}");
}
