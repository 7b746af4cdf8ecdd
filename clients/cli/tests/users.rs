//! `rlock` as the users of docs/operations.md, with exactly the rules of that page: on one server,
//! beside Sentinel, and in a Cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "support/http.rs"]
mod http;
#[path = "support/sentinel.rs"]
mod sentinel;
mod support;
#[path = "../../rust/tests/support/tls.rs"]
mod tls;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use http::{Serve, sample};
use rustix::process::{Pid, Signal, kill_process};
use sentinel::Sentinel;
use support::{Rlock, Server, cluster, command, said, until};
use tls::Tls;

/// The documented lines below a heading of the page.
fn documented(heading: &str) -> Vec<&'static str> {
    let page = include_str!("../../../docs/operations.md");
    let (_, section) = page.split_once(&format!("\n### {heading}\n")).unwrap();
    let lines = section.lines().skip_while(|line| !line.starts_with("```")).skip(1);
    lines.take_while(|line| *line != "```").collect()
}

fn is_rule_of_clusters(line: &&str) -> bool {
    line.starts_with("- A client of a Cluster")
}

/// Gives a server the documented users.
fn let_in(server: &Server, lines: &[&str], more: &str) {
    for line in lines {
        // Parentheses enclose one rule, which may contain spaces.
        let (rules, selector) = line.split_once(" (").unwrap_or((line, ""));
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(rules.split(' ').skip(1).collect::<Vec<_>>());
        if !selector.is_empty() {
            command.arg(format!("({selector}"));
        }
        command.arg(more.split(' ').filter(|rule| !rule.is_empty()).collect::<Vec<_>>());
        command.exec(&mut server.connect()).unwrap();
    }
}

/// The servers that `rlock` uses, without the user.
struct Place<'a> {
    server: &'a Server,
    scheme: &'a str,
    port: u16,
    words: &'a [&'a str],
}

impl Place<'_> {
    fn rlock_as(&self, user: &str, words: &[&str]) -> Command {
        let mut command = self.server.rlock(&[&words[..1], self.words, &words[1..]].concat());
        command.env("RLOCK_URL", format!("{}://{user}@localhost:{}", self.scheme, self.port));
        command.env("REDISCLI_AUTH", format!("{user}-secret"));
        command
    }

    fn run_as(&self, user: &str, words: &[&str]) -> (i32, String, String) {
        said(self.rlock_as(user, words).output().unwrap())
    }
}

/// Does everything that `rlock` can, each time as the user that the page documents for it.
fn each_does_its_work(place: &Place<'_>) {
    let (code, token, complaint) =
        place.run_as("app", &["run", "-w", "5", "app:job", "-c", "echo $RLOCK_TOKEN"]);
    assert!(code == 0 && token.trim().parse::<u64>().is_ok(), "run: {code} {complaint}");
    let (code, _, complaint) = place.run_as("app", &["run", "-n", "billing:7", "-c", "true"]);
    assert!(code == 125 && complaint.contains("permissions"), "run: {code} {complaint}");

    let mut holder = place.rlock_as("app", &["run", "app:job", "-c", "sleep 60"]);
    let holder = holder.stderr(Stdio::null()).spawn().unwrap();
    until("it is held", || place.run_as("app", &["who", "app:job"]).1.contains("write"));
    let mut waiter = place.rlock_as("app", &["run", "app:job", "-c", "true"]);
    let waiter = waiter.stderr(Stdio::null()).spawn().unwrap();
    until("somebody waits", || place.run_as("operator", &["queues"]).1.contains("app:job"));
    for (user, words, shows) in [
        ("operator", &["who", "app:job"][..], "write"),
        ("operator", &["top", "--once"], "app:job"),
        ("metrics", &["queues"], "app:job"),
    ] {
        let (code, printed, complaint) = place.run_as(user, words);
        assert!(code == 0 && printed.contains(shows), "{user} {words:?}: {code} {complaint}");
        assert!(!complaint.contains("permission"), "{user} {words:?}: {complaint}");
    }

    let metrics = Serve::start(place.rlock_as("metrics", &["serve"]));
    until("the metrics are there", || sample(&metrics.metrics(), "rlock_up", &[]) == Some(1.0));
    assert!(sample(&metrics.metrics(), "rlock_longest_queue", &[]).unwrap() >= 1.0);
    let serve = Serve::start(place.rlock_as("operator", &["serve"]));
    serve.look_until("/events", |seen| {
        let seen = seen.to_string();
        assert!(!seen.contains("permission"), "{seen}");
        seen.contains("app:job") && seen.contains("holders")
    });
    for mut child in [holder, waiter] {
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn rlock_works_as_the_documented_users_on_one_server() {
    let server = Server::start(&[]);
    let_in(&server, &documented("The users"), "");
    each_does_its_work(&Place { server: &server, scheme: "redis", port: server.port, words: &[] });
}

#[test]
fn rlock_works_as_the_documented_users_beside_sentinel() {
    let server = Server::start(&[]);
    let_in(&server, &documented("The users"), "");
    let sentinel = Sentinel::with(&server, &documented("The users of Sentinel"));
    let words = ["--sentinel", "mine"];
    each_does_its_work(&Place {
        server: &server,
        scheme: "redis",
        port: sentinel.port,
        words: &words,
    });
}

#[test]
fn rlock_works_as_the_documented_users_in_a_cluster() {
    let servers = cluster(&["0 8191", "8192 16383"]);
    let page = include_str!("../../../docs/operations.md");
    let rule = page.lines().find(is_rule_of_clusters).unwrap().split('`').nth(1).unwrap();
    for server in &servers {
        let_in(server, &documented("The users"), rule);
    }
    each_does_its_work(&Place {
        server: &servers[0],
        scheme: "redis",
        port: servers[0].port,
        words: &["--cluster"],
    });
}

/// What `rlock` does for a user.
#[derive(Clone, Copy)]
enum Does {
    /// It prints this, and its exit code is 0.
    Prints(&'static str),
    /// It ends with this exit code, and prints this to standard error.
    Refuses(i32, &'static str),
}

use Does::{Prints, Refuses};

/// A command that ends by itself, and what it does for each of the users.
struct Row {
    words: &'static [&'static str],
    app: Does,
    operator: Does,
    metrics: Does,
}

const DENIED: Does = Refuses(125, "permissions");
const NO_LIST: Does = Refuses(125, "this user may not send SCAN, RLOCK.INFO or SELECT");

/// While `app:job` is held and awaited.
const TABLE: [Row; 19] = [
    row(&["run", "-n", "app:x", "echo", "ran"], [Prints("ran"), DENIED, DENIED]),
    row(&["run", "-n", "app:job", "true"], [Refuses(1, ""), DENIED, DENIED]),
    row(&["run", "-n", "billing:7", "true"], [DENIED, DENIED, DENIED]),
    row(&["run", "-n", "runbook:probe", "echo", "ran"], [DENIED, Prints("ran"), DENIED]),
    row(&["run", "--once-per", "1", "app:y", "echo", "ran"], [Prints("ran"), DENIED, DENIED]),
    row(
        &["run", "-n", "app:{a}", "--and", "app:{a}2", "echo", "ran"],
        [Prints("ran"), DENIED, DENIED],
    ),
    row(&["who", "app:job"], [Prints("holds write"), Prints("holds write"), DENIED]),
    row(&["who", "billing:7"], [DENIED, Prints("billing:7 is free"), DENIED]),
    row(&["watch", "billing:7"], [DENIED, DENIED, DENIED]),
    row(&["queues"], [DENIED, Prints(", held by "), Prints("this user may not see who holds it")]),
    row(
        &["queues", "--all-databases"],
        [DENIED, Prints(", held by "), Prints("this user may not see who holds it")],
    ),
    row(&["top", "--once"], [DENIED, Prints("app:job"), Prints("app:job")]),
    row(&["ls"], [NO_LIST, Prints("app:job"), NO_LIST]),
    row(&["ls", "app:*", "--json"], [NO_LIST, Prints("\"app:job\""), NO_LIST]),
    row(&["release", "--owner", "*", "app:*"], [NO_LIST, Prints("would be released"), NO_LIST]),
    row(
        &["release", "--owner", "dead/*", "app:left", "--yes"],
        [NO_LIST, Prints("released"), NO_LIST],
    ),
    row(
        &["take", "app:taken", "--owner", "me"],
        [Refuses(125, "permission"), Prints("me holds app:taken"), DENIED],
    ),
    row(
        &["mcp", "--check", "Cargo.toml", "--agent", "a", "--prefix", "app:paths"],
        [Refuses(1, "has not claimed"), Refuses(1, "has not claimed"), DENIED],
    ),
    row(
        &["mcp", "--check", "Cargo.toml", "--agent", "a"],
        [DENIED, Refuses(1, "has not claimed"), DENIED],
    ),
];

const fn row(words: &'static [&'static str], [app, operator, metrics]: [Does; 3]) -> Row {
    Row { words, app, operator, metrics }
}

/// The cells that differ from the table.
fn differing(place: &Place<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in &TABLE {
        for (user, does) in [("app", row.app), ("operator", row.operator), ("metrics", row.metrics)]
        {
            let (code, printed, complaint) = place.run_as(user, row.words);
            let is_so = match does {
                Prints(text) => code == 0 && printed.contains(text),
                Refuses(wanted, text) => code == wanted && complaint.contains(text),
            };
            // The error is in `rlock`'s own words, not in those of a library.
            if !is_so || complaint.contains("Pipeline") || complaint.contains("panicked") {
                wrong.push(format!("{user} {:?}: {code}, {printed}{complaint}", row.words));
            }
        }
    }
    wrong
}

/// Checks `serve` and `watch`, which do not end by themselves.
fn those_that_go_on(place: &Place<'_>) {
    for (user, is_up) in [("app", 0.0), ("operator", 1.0), ("metrics", 1.0)] {
        let serve = Serve::start(place.rlock_as(user, &["serve"]));
        until("it has looked", || sample(&serve.metrics(), "rlock_up", &[]) == Some(is_up));
        let denied = sample(&serve.metrics(), "rlock_down", &["reason=\"permission\""]);
        assert_eq!(denied.unwrap_or(0.0), 1.0 - is_up, "{user}: {}", serve.metrics());
    }
    let mut watch = place.rlock_as("app", &["watch", "app:job"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert!(line.contains("holds it"), "{line}");
}

#[test]
fn each_command_works_for_each_documented_user_or_says_why_not() {
    let plain = Server::start(&[]);
    let tls = Tls::start(&[]);
    let certificate = tls.as_ref().map(Tls::certificate).unwrap_or_default();
    let trust = ["--cacert", certificate.as_str()];
    let own = Place { server: &plain, scheme: "redis", port: plain.port, words: &[] };
    let secured = tls.as_ref().map(|tls| Place {
        server: &tls.server,
        scheme: "rediss",
        port: tls.port,
        words: &trust,
    });
    let mut wrong = Vec::new();
    let places: Vec<Place<'_>> = std::iter::once(own).chain(secured).collect();
    for place in &places {
        let_in(place.server, &documented("The users"), "");
        let mut held = place.server.connect();
        for line in [
            "RLOCK.ACQUIRE app:job ann LEASE 600000",
            "RLOCK.ACQUIRE app:job ben QUEUE 60000",
            "RLOCK.ACQUIRE app:left dead/1 LEASE 600000",
        ] {
            let () = command(line).query(&mut held).unwrap();
        }
        those_that_go_on(place);
        wrong.extend(differing(place).into_iter().map(|cell| format!("{} {cell}", place.scheme)));
    }
    let cells = places.len() * (TABLE.len() * 3 + 4);
    println!("{cells} cells");
    assert!(wrong.is_empty(), "of {cells} cells:\n{}", wrong.join("\n"));
}
