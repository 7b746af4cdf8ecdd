//! `rlock ls` and `rlock release` on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};

use rlock_cli::list::release_one;
use rlock_cli::snapshot::{Name, look};
use rustix::process::{Pid, Signal, kill_process};
use support::{Rlock, Server, cluster, command, until};

fn acquire_many(server: &Server, count: u32) {
    let mut many = redis::pipe();
    for each in 0..count {
        many.cmd("RLOCK.ACQUIRE").arg(format!("many:{each}")).arg("zed").arg("LEASE").arg(600_000);
        many.ignore();
    }
    let () = many.query(&mut server.connect()).unwrap();
}

/// The words of a line, without the times.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn all_holds_are_listed_with_who_waits() {
    let server = Server::start(&[]);
    let token: u64 = server.ask("RLOCK.ACQUIRE order:42 ann LEASE 600000");
    server.acquire_all(&[
        "RLOCK.ACQUIRE order:43 bob READ LEASE 600000",
        "RLOCK.ACQUIRE order:43 ann READ LEASE 600000",
        "RLOCK.ACQUIRE order:43 ann READ LEASE 600000",
        "RLOCK.ACQUIRE page web3/17/1 LEASE 600000",
    ]);
    let () = server.ask("SET order:text x");
    let _waits = server.send("RLOCK.ACQUIRE order:42 cy BLOCK 0");
    until("cy waits", || server.ask::<Option<u64>>("RLOCK.PLACE order:42 cy") == Some(1));

    let (code, out, complaint) = server.run(&["ls"]);
    assert_eq!((code, complaint.as_str()), (0, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("LOCK") && lines.len() == 6, "{out}");
    let held = lines.iter().position(|line| line.starts_with("order:42")).unwrap();
    let row = words(lines[held]);
    assert_eq!((row[1], row[2]), ("ann", "write"), "{out}");
    assert_eq!((row[5], row[6], row[7]), (token.to_string().as_str(), "-", "1"), "{out}");
    let waiter = lines[held + 1];
    assert!(waiter.starts_with("    cy has waited for ") && waiter.contains("client "), "{out}");
    let of_ann = lines.iter().find(|line| line.starts_with("order:43") && line.contains(" ann "));
    assert_eq!(words(of_ann.unwrap())[2..4], ["read", "x2"], "{out}");

    let listed = |words: &[&str]| {
        let (code, out, complaint) = server.run(&[&["ls"], words].concat());
        assert_eq!((code, complaint.as_str()), (0, ""), "{words:?}: {out}");
        let rows = out.lines().skip(1).filter(|line| !line.starts_with(' '));
        rows.map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
            .collect::<BTreeSet<_>>()
    };
    let set = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(listed(&["order:*"]), set(&["order:42 ann", "order:43 ann", "order:43 bob"]));
    assert_eq!(listed(&["order:42"]), set(&["order:42 ann"]));
    assert_eq!(listed(&["--owner", "ann"]), set(&["order:42 ann", "order:43 ann"]));
    assert_eq!(listed(&["--owner=web3/*"]), set(&["page web3/17/1"]));
    assert_eq!(listed(&["order:43", "--owner", "bob"]), set(&["order:43 bob"]));
    assert_eq!(listed(&["--owner", "an"]), set(&[]));

    let (code, out, _) = server.run(&["ls", "--json", "order:42"]);
    let told: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, told["key"]["text"].as_str()), (0, Some("order:42")));
    assert_eq!(told["lock"]["holders"][0]["token"].as_u64(), Some(token));
    assert_eq!(told["lock"]["waiters"][0]["owner"]["text"], "cy");
    // Another database.
    let url = server.url() + "/3";
    assert_eq!(server.run(&["ls", "--url", &url]), (0, String::new(), String::new()));
    let mut other = redis::Client::open(url).unwrap().get_connection().unwrap();
    let () = command("RLOCK.ACQUIRE job eve LEASE 600000").query(&mut other).unwrap();
    let (_, out, _) = server.run(&["ls", "--all-databases", "job"]);
    assert!(out.contains("job (database 3)") && out.contains("eve"), "{out}");
}

#[test]
fn an_owner_s_holds_are_released_by_their_tokens() {
    let server = Server::start(&[]);
    server.acquire_all(&[
        "RLOCK.ACQUIRE a ann LEASE 600000",
        "RLOCK.ACQUIRE a ann LEASE 600000",
        "RLOCK.ACQUIRE b ann READ LEASE 600000",
        "RLOCK.ACQUIRE b bob READ LEASE 600000",
        "RLOCK.ACQUIRE c anna LEASE 600000",
    ]);
    let (code, out, complaint) = server.run(&["release", "--owner", "ann", "--all"]);
    assert!(code == 0 && out.matches("would be released").count() == 2, "{out}");
    assert_eq!(complaint, "rlock: 2 holds; add --yes to release them\n");
    assert_eq!(server.ask::<u64>("RLOCK.HOLDS a ann"), 2);

    let (code, out, complaint) = server.run(&["release", "--owner", "ann", "b", "--yes"]);
    assert!(code == 0 && out.starts_with("b: ann holds read for "), "{out}");
    assert!(out.ends_with(": released\n") && out.lines().count() == 1, "{out}");
    assert!(complaint.starts_with("rlock: released 1 holds"), "{complaint}");
    let (code, out, _) = server.run(&["release", "--owner", "ann", "--all", "--yes"]);
    assert!(code == 0 && out.starts_with("a: ann holds write for "), "{out}");
    for (held, depth) in [("a ann", 0), ("b ann", 0), ("b bob", 1), ("c anna", 1)] {
        assert_eq!(server.ask::<u64>(&format!("RLOCK.HOLDS {held}")), depth, "{held}");
    }
    let (code, out, complaint) = server.run(&["release", "--owner", "ann", "--all", "--yes"]);
    assert_eq!((code, out.as_str()), (0, ""));
    assert_eq!(complaint, "rlock: this owner holds nothing here\n");

    // Between the list and the release, the owner has acquired the lock anew.
    server.ask::<u64>("RLOCK.ACQUIRE d ann LEASE 600000");
    let (mut connection, key) = (server.connect(), Name(b"d".to_vec()));
    let seen = look(&mut connection, &key).unwrap();
    server.ask::<u64>("RLOCK.RELEASE d ann");
    server.ask::<u64>("RLOCK.ACQUIRE d ann LEASE 600000");
    assert_eq!(release_one(&mut connection, &key, &seen.holders[0]), Ok(false));
    assert_eq!(server.ask::<u64>("RLOCK.HOLDS d ann"), 1);
    // Without permission, nothing is released and the exit code says so.
    let () = server.ask("ACL SETUSER reader on >secret ~* -@all +@connection +scan +rlock.info");
    let url = format!("redis://reader:secret@127.0.0.1:{}", server.port);
    let words = ["release", "--url", &url, "--owner", "ann", "--all", "--yes"];
    let (code, out, complaint) = server.run(&words);
    assert!(code == 125 && out.contains("not released: "), "{out}{complaint}");
    assert_eq!(server.ask::<u64>("RLOCK.HOLDS d ann"), 1);
}

#[test]
fn a_semaphore_with_many_holders_hides_no_owner() {
    let server = Server::start(&[]);
    let mut many = redis::pipe();
    for each in 0..250 {
        many.cmd("RLOCK.ACQUIRE").arg("pool").arg(format!("w{each}")).arg("LIMIT").arg(1000);
        many.arg("LEASE").arg(600_000).ignore();
    }
    let () = many.query(&mut server.connect()).unwrap();
    let (_, out, _) = server.run(&["ls", "--owner", "w249"]);
    assert_eq!(out.lines().count(), 2, "{out}");
    let (code, out, _) = server.run(&["release", "--owner", "w249", "--all", "--yes"]);
    assert!(code == 0 && out.contains("w249"), "{out}");
    assert_eq!(server.ask::<u64>("RLOCK.HOLDS pool w249"), 0);
}

#[test]
fn a_long_list_is_read_in_portions_and_ends_at_a_signal() {
    let server = Server::start(&[]);
    acquire_many(&server, 10_000);
    let () = server.ask("CONFIG RESETSTAT");
    let (code, out, complaint) = server.run(&["ls"]);
    assert_eq!((code, complaint.as_str()), (0, ""));
    let keys: BTreeSet<&str> =
        out.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(keys.len(), 10_000);
    let stats: String = server.ask("INFO commandstats");
    let scans = stats.lines().find_map(|line| line.strip_prefix("cmdstat_scan:calls="));
    let scans: u32 = scans.unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(scans >= 10, "{stats}");

    let mut child = server.rlock(&["ls"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut String::new()).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{complaint}");
    assert!(complaint.starts_with("rlock: ended early: "), "{complaint}");
    assert!(rest.ends_with('\n') && rest.lines().count() < 10_000);

    // On a terminal, the progress is shown.
    let line = format!("{} ls many:99*", env!("CARGO_BIN_EXE_rlock"));
    let mut command = std::process::Command::new("timeout");
    command.args(["60", "script", "-qec", &line, "/dev/null"]).env("RLOCK_URL", server.url());
    let shown = command.stdin(std::process::Stdio::null()).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("server 1 of 1, 127.0.0.1:") && shown.contains(" %"), "{shown}");
    // A reader that closes the pipe is no error.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "\"$0\" ls | head -n 1", env!("CARGO_BIN_EXE_rlock")]);
    let output = shell.env("RLOCK_URL", server.url()).output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.stdout.starts_with(b"LOCK"));
}

#[test]
fn all_servers_of_a_cluster_are_listed() {
    let mut servers = cluster(&["0 8191", "8192 16383"]);
    // The slots are 12182 and 5061.
    servers[1].ask::<u64>("RLOCK.ACQUIRE foo ann LEASE 600000");
    servers[0].ask::<u64>("RLOCK.ACQUIRE bar ann LEASE 600000");
    let (code, out, complaint) = servers[1].run(&["ls", "--cluster"]);
    assert_eq!((code, complaint.as_str()), (0, ""), "{out}");
    assert_eq!(out.lines().count(), 3, "{out}");
    let words = ["release", "--cluster", "--owner", "ann", "--all", "--yes"];
    servers[0].kill();
    let (code, out, complaint) = servers[1].run(&words);
    assert_eq!((code, out.lines().count()), (125, 1), "{out}");
    assert!(out.starts_with("foo: ann holds write"), "{out}");
    assert!(complaint.contains("not listed: ") && complaint.contains("released 1"), "{complaint}");
}

#[test]
fn a_lock_is_taken_from_a_holder_that_hangs() {
    let server = Server::start(&[]);
    let old: u64 = server.ask("RLOCK.ACQUIRE order:42 ann LEASE 600000");
    let _waits = server.send("RLOCK.ACQUIRE order:42 cy BLOCK 0");
    until("cy waits", || server.ask::<Option<u64>>("RLOCK.PLACE order:42 cy") == Some(1));
    let (code, out, complaint) =
        server.run(&["take", "order:42", "--owner", "me", "--lease", "1h"]);
    assert_eq!((code, complaint.as_str()), (0, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("ann held write for "), "{out}");
    assert!(lines[0].ends_with(&format!(", token {old}")), "{out}");
    assert!(lines[1].starts_with("me holds order:42 for "), "{out}");
    assert_eq!(server.ask::<u64>("RLOCK.HOLDS order:42 me"), 1);
    assert_eq!(server.ask::<Option<u64>>("RLOCK.PLACE order:42 cy"), Some(1));
    // A second time, nothing is taken.
    let (code, out, _) = server.run(&["take", "order:42", "--owner", "me"]);
    assert_eq!((code, out.lines().count()), (0, 1), "{out}");
    assert_eq!(server.run(&["take"]).0, 125);
    let (_, out, _) = server.run(&["take", "other", "--owner", "me"]);
    assert!(out.starts_with("nobody held other\nme holds other for "), "{out}");

    let new = Server::start(&["--rlock.grace-ms", "600000"]);
    let (code, out, complaint) = new.run(&["take", "order:42"]);
    assert_eq!((code, out.as_str()), (1, ""), "{complaint}");
    assert!(complaint.contains("this new primary grants nothing"), "{complaint}");
}
