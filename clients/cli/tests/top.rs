//! The views of real servers: drawn here, and printed by the program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use rlock_cli::snapshot::{Ask, Lock, Name, Snapshot, look};
use rlock_cli::view;
use rustix::process::{Pid, Signal, kill_process};
use support::{Rlock, Server, cluster, until};

fn drawn(before: Option<&Snapshot>, now: &Snapshot) -> String {
    let mut terminal = Terminal::new(TestBackend::new(110, 14)).unwrap();
    terminal.draw(|frame| view::draw(frame, "here", before, now, Some(0))).unwrap();
    terminal.backend().to_string()
}

fn drawn_lock(key: &str, lock: &Lock, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(110, rows)).unwrap();
    terminal.draw(|frame| view::draw_lock(frame, "here", &Name(key.into()), lock)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn a_server_without_waiters_is_shown() {
    let server = Server::start(&[]);
    let now = Snapshot::take(&mut [server.connect()], 0, Ask::longest(10)).unwrap();
    let page = drawn(None, &now);
    assert!(
        page.contains("nobody waits")
            && page.contains("locks held 0")
            && page.contains("waits: none"),
        "{page}"
    );
    server.ask::<u64>("RLOCK.ACQUIRE job ann");
    let (code, page, complaint) = server.run(&["top", "--once"]);
    assert!(
        code == 0 && page.contains("locks held 1") && page.contains("nobody waits"),
        "{page}{complaint}"
    );
    assert_eq!(server.run(&["queues"]), (0, "nobody waits\n".to_owned(), String::new()));
    let (code, page, _) = server.run(&["who", "job"]);
    assert!(
        code == 0 && page.starts_with("ann holds write for ") && page.contains(", token "),
        "{page}"
    );
    assert_eq!(server.run(&["who", "other"]), (0, "other is free\n".to_owned(), String::new()));
}

#[test]
fn top_shows_queues_by_length_with_holders_and_rates() {
    let server = Server::start(&[]);
    server.ask::<u64>("RLOCK.ACQUIRE top:short ann LEASE 60000");
    server.ask::<u64>("RLOCK.ACQUIRE top:long rita READ LEASE 60000");
    server.ask::<u64>("RLOCK.ACQUIRE top:long ron READ LEASE 60000");
    let mut session = server.send("RLOCK.ACQUIRE top:tied sue SESSION");
    session.recv_response().unwrap();
    let waiting = [
        server.send("RLOCK.ACQUIRE top:short bob BLOCK 0"),
        server.send("RLOCK.ACQUIRE top:tied bob BLOCK 0"),
        server.send("RLOCK.ACQUIRE top:long will BLOCK 0"),
    ];
    let look_now = || Snapshot::take(&mut [server.connect()], 0, Ask::longest(10)).unwrap();
    let lengths = || look_now().queues.iter().map(|queue| queue.length).sum::<u64>();
    until("three wait", || lengths() == 3);
    let mut last = server.send("RLOCK.ACQUIRE top:long zoe READ BLOCK 60000");
    until("four wait", || lengths() == 4);
    let before = look_now();
    let first = drawn(None, &before);
    let line = |page: &str, key: &str| page.lines().position(|line| line.contains(key)).unwrap();
    assert!(line(&first, "top:long") < line(&first, "top:short"), "{first}");
    let words = |key: &str| {
        let line = first.lines().find(|line| line.contains(key)).unwrap();
        line.replace('"', "").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let long = words("top:long");
    assert_eq!([&long[1], &long[3], &long[4], &long[5]], ["2", "read", "rita", "+1"], "{first}");
    let tied = words("top:tied");
    assert_eq!((tied[1].as_str(), tied[4].as_str(), tied[6].as_str()), ("1", "sue", "session"));
    assert!(first.contains("blocked 4   by message 0   tickets 0   sessions 1"), "{first}");

    let (_, page, _) = server.run(&["queues"]);
    assert!(page.starts_with("top:long: 2 ") && page.contains("held by rita and 1 more"), "{page}");

    // One lock in detail: who holds and who waits, first in line on top.
    let lock = look(&mut server.connect(), &Name(b"top:long".to_vec())).unwrap();
    let close = drawn_lock("top:long", &lock, 24);
    for rows in 0..9 {
        drawn_lock("top:long", &lock, rows); // a terminal may have any size
    }
    assert!(line(&close, "will") < line(&close, "zoe") && close.contains("forever"), "{close}");
    assert!(close.contains("held by 2   awaited by 2") && close.contains("rita"), "{close}");
    if lock.waiters[1].client != 0 {
        // The module reports which connection waits, so that it can be unblocked.
        let ended: u64 = server.ask(&format!("CLIENT UNBLOCK {}", lock.waiters[1].client));
        assert_eq!((ended, last.recv_response().unwrap()), (1, redis::Value::Nil));
    }
    let (_, page, _) = server.run(&["who", "top:long"]);
    assert!(page.contains("rita holds read") && page.contains("will has waited for"), "{page}");

    // A wait with TELL has no connection: its channel identifies it.
    let said: String = server.ask("RLOCK.ACQUIRE top:long tess BLOCK 60000 TELL tess:told 1");
    assert_eq!(said, "WAITING");
    let (_, page, _) = server.run(&["who", "top:long"]);
    let tess = page.lines().find(|line| line.starts_with("tess has waited")).unwrap();
    assert!(tess.ends_with("by a message to tess:told"), "{page}");
    assert!(drawn(None, &look_now()).contains("by message 1"), "{page}");
    let ended: u64 = server.ask("RLOCK.CANCEL top:long tess");
    assert_eq!(ended, 1);

    // What happens between two looks is shown per second.
    server.ask::<u64>("RLOCK.RELEASE top:short ann");
    let mut now = look_now();
    now.at = before.at + Duration::from_millis(500);
    let second = drawn(Some(&before), &now);
    assert!(second.contains("acquired 2   handed off 2   released 2   renewed 0"), "{second}");
    assert!(second.contains("waits: ") && second.contains("99.9 % ~"), "{second}");
    assert!(!second.contains("top:short"), "{second}");
    let (_, printed, _) = server.run(&["top", "--once"]);
    assert!(printed.contains("the longest queues") && printed.contains("top:long"), "{printed}");
    drop(waiting);
}

/// The reader may be a file or a program, which may need the whole name.
#[test]
fn what_is_printed_once_is_not_cut() {
    let server = Server::start(&[]);
    let long = |what: &str| format!("{what}:{}:end", "x".repeat(150));
    let (key, owner) = (long("key"), long("owner"));
    server.ask::<u64>(&format!("RLOCK.ACQUIRE {key} {owner}"));
    let _waits = server.send(&format!("RLOCK.ACQUIRE {key} bob BLOCK 0"));
    until("one waits", || server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len() == 1);
    for columns in ["", "stty cols 80; "] {
        let line = format!("{columns}{} top --once", env!("CARGO_BIN_EXE_rlock"));
        let mut command = std::process::Command::new("timeout");
        command.args(["60", "script", "-qec", &line, "/dev/null"]).env("RLOCK_URL", server.url());
        let page = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(page.contains(&key) && page.contains(&owner), "{page}");
        let row = page.lines().find(|line| line.contains(&key)).unwrap();
        assert!(row.trim_end().ends_with('s') && row.contains(" write "), "{row}");
    }
    let (_, page, _) = server.run(&["top", "--once"]);
    assert!(page.contains(&key) && page.contains(&owner), "{page}");
    assert!(page.contains("sessions 0") && page.lines().all(|line| !line.ends_with(' ')), "{page}");
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let server = Server::start(&[]);
    let folder = std::env::temp_dir().join(format!("rlock-top-{}", server.port));
    std::fs::create_dir_all(&folder).unwrap();
    let [before, pid, after, page] =
        ["before", "pid", "after", "page"].map(|name| folder.join(name));
    let line = format!(
        "stty rows 24 cols 100; stty -g >{}; sh -c 'echo $$ >{}; exec {} top'; echo $? >>{}; stty -g >>{}",
        before.display(),
        pid.display(),
        env!("CARGO_BIN_EXE_rlock"),
        after.display(),
        after.display()
    );
    let mut command = std::process::Command::new("timeout");
    command.args(["60", "script", "-qfec", &line]).arg(&page).env("RLOCK_URL", server.url());
    let mut terminal = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let text =
        |file| String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
    until("it is drawn", || text(&page).contains("nobody"));
    let top = Pid::from_raw(text(&pid).trim().parse().unwrap()).unwrap();
    kill_process(top, Signal::TERM).unwrap();
    terminal.wait().unwrap();
    assert_eq!(text(&after), format!("143\n{}", text(&before)));
    assert!(text(&page).contains("\u{1b}[?1049l"), "the alternate screen is left");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn passwords_come_from_the_url_or_the_environment() {
    let server = Server::start(&["--requirepass", "open-sesame"]);
    let out = |url: String, auth: Option<&str>| {
        let mut command = server.rlock(&["top", "--once", &url]);
        if let Some(auth) = auth {
            command.env("REDISCLI_AUTH", auth);
        }
        support::said(command.output().unwrap())
    };
    let (code, _, complaint) = out(server.url(), None);
    assert!(code == 125 && complaint.contains("NOAUTH"), "{complaint}");
    assert_eq!(out(server.url(), Some("open-sesame")).0, 0);
    assert_eq!(out(format!("redis://:open-sesame@127.0.0.1:{}", server.port), None).0, 0);
}

#[test]
fn an_unreachable_server_or_one_without_the_module_is_an_error() {
    let server = Server::bare(&[]);
    let (code, out, complaint) = server.run(&["top", "--once", "redis://127.0.0.1:1"]);
    assert!(code == 125 && out.is_empty() && complaint.contains("refused"), "{complaint}");
    for words in [["top", "--once"].as_slice(), &["queues"], &["who", "key"]] {
        let (code, _, complaint) = server.run(words);
        assert_eq!((code, complaint.as_str()), (125, "rlock: this server has no RLOCK module\n"));
    }
}

#[test]
fn all_primaries_of_a_cluster_are_shown_together() {
    let servers = cluster(&["0 8191", "8192 16383"]);
    // Slots 12182 and 5061.
    server_waits(&servers[1], "foo");
    server_waits(&servers[0], "bar");
    let end = Instant::now() + Duration::from_secs(10);
    let (code, page, complaint) = loop {
        let answer = servers[0].run(&["top", "--once", "--cluster"]);
        if answer.1.contains("tickets 2") || Instant::now() > end {
            break answer;
        }
    };
    assert!(
        code == 0 && page.contains("foo") && page.contains("bar") && page.contains("locks held 2"),
        "{page}{complaint}"
    );
    assert!(page.contains("and 1 more"), "{page}");
    let (code, page, complaint) = servers[0].run(&["who", "--cluster", "foo"]);
    assert!(code == 0 && page.contains("ann holds write"), "{page}{complaint}");
    assert_eq!(servers[0].run(&["run", "--cluster", "--wait", "1", "foo", "true"]).0, 1);
    assert_eq!(servers[0].run(&["run", "--cluster", "free", "true"]).0, 0);
}

fn server_waits(server: &Server, key: &str) {
    server.ask::<u64>(&format!("RLOCK.ACQUIRE {key} ann LEASE 60000"));
    assert_eq!(
        server.ask::<redis::Value>(&format!("RLOCK.ACQUIRE {key} bob QUEUE 60000")),
        redis::Value::Nil
    );
}
