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

use std::process::{Command, Stdio};

use http::{Serve, sample};
use rustix::process::{Pid, Signal, kill_process};
use sentinel::Sentinel;
use support::{Rlock, Server, cluster, said, until};

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
        // A space inside of parentheses belongs to one rule.
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

/// Where `rlock` is pointed to, apart from the user.
struct Place<'a> {
    server: &'a Server,
    port: u16,
    words: &'a [&'a str],
}

impl Place<'_> {
    fn rlock_as(&self, user: &str, words: &[&str]) -> Command {
        let mut command = self.server.rlock(&[&words[..1], self.words, &words[1..]].concat());
        command.env("RLOCK_URL", format!("redis://{user}@127.0.0.1:{}", self.port));
        command.env("REDISCLI_AUTH", format!("{user}-secret"));
        command
    }

    fn run_as(&self, user: &str, words: &[&str]) -> (i32, String, String) {
        said(self.rlock_as(user, words).output().unwrap())
    }
}

/// Everything that `rlock` does, by the user that the page has for it.
fn each_does_its_work(place: &Place<'_>) {
    let (code, token, complaint) =
        place.run_as("app", &["run", "-w", "5", "app:job", "-c", "echo $RLOCK_TOKEN"]);
    assert!(code == 0 && token.trim().parse::<u64>().is_ok(), "run: {code} {complaint}");
    let (code, _, complaint) = place.run_as("app", &["run", "-n", "billing:7", "-c", "true"]);
    assert!(code == 125 && complaint.contains("no permissions"), "run: {code} {complaint}");

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
    each_does_its_work(&Place { server: &server, port: server.port, words: &[] });
}

#[test]
fn rlock_works_as_the_documented_users_beside_sentinel() {
    let server = Server::start(&[]);
    let_in(&server, &documented("The users"), "");
    let sentinel = Sentinel::with(&server, &documented("The users of Sentinel"));
    let words = ["--sentinel", "mine"];
    each_does_its_work(&Place { server: &server, port: sentinel.port, words: &words });
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
        port: servers[0].port,
        words: &["--cluster"],
    });
}
