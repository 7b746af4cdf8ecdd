//! With `appendfsync always`, a reply means that the disk has the change. Not even `kill -9` could
//! show that, since the page cache survives the process: so strace shows the order of the system
//! calls from outside.

use std::fs;
use std::process::Command;

use rlock_testkit::{Client, Server, say_not_seen, until};

/// A server, and the system calls that strace records of it.
struct Traced {
    server: Server,
    calls: std::path::PathBuf,
}

fn traced(appendfsync: &str) -> Traced {
    let name = format!("rlock-test-{}-{appendfsync}.strace", std::process::id());
    let calls = std::env::temp_dir().join(name);
    // -D: the tracer is the child, so that what we kill is the server. Only the main thread
    // replies; -f shows threads too, each line begins with its id.
    let tracer = [
        "strace",
        "-D",
        "-f",
        "-s",
        "512",
        "-e",
        "trace=read,write,writev,sendto,fsync,fdatasync,openat",
        "-o",
        calls.to_str().unwrap(),
    ];
    let settings = ["appendonly", "yes", "appendfsync", appendfsync];
    let server = Server::under(&tracer, &settings);
    Traced { server, calls }
}

impl Traced {
    /// The system calls from the request `marked` by its lease to the reply, in the order in which
    /// they ended: whatever the trace shows between reading the request and writing its reply.
    #[track_caller]
    fn calls_for(&self, client: &mut Client, line: &str, mark: &str) -> Vec<String> {
        client.ask(line);
        let mut calls = Vec::new();
        // The tracer writes the line of a call after the call has ended.
        until(10_000, || {
            calls = self.calls_between(mark);
            !calls.is_empty()
        });
        calls
    }

    fn calls_between(&self, mark: &str) -> Vec<String> {
        let trace = fs::read_to_string(&self.calls).unwrap();
        let lines: Vec<&str> = trace.lines().collect();
        let is_request = |line: &&str| line.contains(" read(") && line.contains(mark);
        let Some(request) = lines.iter().position(is_request) else {
            return Vec::new();
        };
        let socket = descriptor(lines[request], "read(");
        let is_reply = |line: &&str| {
            let writes = ["write(", "writev(", "sendto("];
            writes.iter().any(|call| line.contains(&format!(" {call}{socket},")))
        };
        let later = &lines[request + 1..];
        let Some(reply) = later.iter().position(is_reply) else {
            return Vec::new();
        };
        later[..=reply].iter().map(ToString::to_string).collect()
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        fs::remove_file(&self.calls).ok();
    }
}

fn descriptor<'a>(line: &'a str, call: &str) -> &'a str {
    let rest = line.split_once(call).unwrap().1;
    rest.split_once(',').unwrap().0
}

/// Whether, before the reply, the effect was written and then that file synced.
fn is_synced_before_reply(calls: &[String]) -> bool {
    let write = calls
        .iter()
        .position(|call| call.contains(" write(") && call.contains("RLOCK."))
        .or_else(|| calls.iter().position(|c| c.contains(" write(") && c.contains("DEL")));
    let Some(write) = write else { return false };
    let file = descriptor(&calls[write], "write(");
    let sync = [format!("fdatasync({file})"), format!("fsync({file})")];
    let later = &calls[write + 1..calls.len() - 1];
    later.iter().any(|call| call.contains(" = 0") && sync.iter().any(|s| call.contains(s)))
}

fn can_trace() -> bool {
    let probe = Command::new("strace").args(["-D", "-o", "/dev/null", "true"]).status();
    probe.is_ok_and(|status| status.success())
}

#[test]
fn the_disk_has_the_change_before_the_client_has_the_reply() {
    if !can_trace() {
        say_not_seen("fsync before the reply: strace is missing or may not trace");
        return;
    }
    let always = traced("always");
    let mut client = always.server.client();
    for (line, mark) in [
        ("RLOCK.ACQUIRE door ann LEASE 600001", "600001"),
        ("RLOCK.ACQUIRE door ann LEASE 600002", "600002"),
        ("RLOCK.RENEW door ann LEASE 700003", "700003"),
        ("RLOCK.RELEASE door ann DEPTH 1", "DEPTH"),
        ("RLOCK.RELEASE door ann", "RLOCK.RELEASE\\r\\n$4\\r\\ndoor\\r\\n$3\\r\\nann\\r\\n\""),
        ("RLOCK.ACQUIRE gate bob READ LEASE 600004", "600004"),
        ("RLOCK.FORCE gate", "RLOCK.FORCE"),
    ] {
        let calls = always.calls_for(&mut client, line, mark);
        assert!(is_synced_before_reply(&calls), "{line}: {calls:#?}");
    }
}

#[test]
fn the_proof_of_fsync_before_reply_can_fail() {
    if !can_trace() {
        say_not_seen("that the proof of fsync can fail: strace is missing or may not trace");
        return;
    }
    let never = traced("no");
    let mut client = never.server.client();
    let line = "RLOCK.ACQUIRE door ann LEASE 600001";
    let calls = never.calls_for(&mut client, line, "600001");
    assert!(!calls.is_empty());
    assert!(!is_synced_before_reply(&calls), "{calls:#?}");
}
