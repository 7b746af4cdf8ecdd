//! The view of the real server at `127.0.0.1:$PORT`: drawn here, and printed by the program.

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use redis::Connection;
use rlock_top::snapshot::Snapshot;
use rlock_top::view;

fn url() -> String {
    format!("redis://127.0.0.1:{}", env::var("PORT").expect("PORT says where the server is"))
}

fn connection() -> Connection {
    redis::Client::open(url()).unwrap().get_connection().unwrap()
}

fn command(line: &str) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    command.arg(line.split(' ').collect::<Vec<_>>());
    command
}

/// Sends a command and does not wait for its reply.
fn send(line: &str) -> Connection {
    let mut connection = connection();
    connection.send_packed_command(&command(line).get_packed_command()).unwrap();
    connection
}

fn drawn(before: Option<&Snapshot>, now: &Snapshot) -> String {
    let mut terminal = Terminal::new(TestBackend::new(110, 12)).unwrap();
    terminal.draw(|frame| view::draw(frame, "here", before, now)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn shows_the_longest_queue_first_its_holder_and_what_happens() {
    let mut asker = connection();
    let mut ask = |line: &str| command(line).exec(&mut asker).unwrap();
    ask("RLOCK.ACQUIRE top:short ann LEASE 60000");
    ask("RLOCK.ACQUIRE top:long rita READ LEASE 60000");
    ask("RLOCK.ACQUIRE top:long ron READ LEASE 60000");
    let mut session = send("RLOCK.ACQUIRE top:tied sue SESSION");
    session.recv_response().unwrap();
    let waiting = [
        send("RLOCK.ACQUIRE top:short bob BLOCK 0"),
        send("RLOCK.ACQUIRE top:tied bob BLOCK 0"),
        send("RLOCK.ACQUIRE top:long will BLOCK 0"),
        send("RLOCK.ACQUIRE top:long zoe BLOCK 0"),
    ];
    let end = Instant::now() + Duration::from_secs(10);
    let before = loop {
        let now = Snapshot::take(&mut connection(), 10).unwrap();
        if now.queues.iter().map(|queue| queue.length).sum::<u64>() == 4 {
            break now;
        }
        assert!(Instant::now() < end, "four wait:\n{}", drawn(None, &now));
    };
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
    assert!(first.contains("blocked 4   tickets 0   sessions 1"), "{first}");

    // What happens between two looks is shown per second.
    ask("RLOCK.RELEASE top:short ann");
    let mut now = Snapshot::take(&mut connection(), 10).unwrap();
    now.at = before.at + Duration::from_millis(500);
    let second = drawn(Some(&before), &now);
    assert!(second.contains("acquired 2   handed off 2   released 2   renewed 0"), "{second}");
    assert!(second.contains("waits: 1   mean"), "{second}");
    assert!(!second.contains("top:short"), "{second}");

    let printed =
        Command::new(env!("CARGO_BIN_EXE_rlock-top")).args([&url(), "--once"]).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("the longest queues") && printed.contains("top:long"), "{printed}");
    drop(waiting);
    ask("DEL top:short top:long top:tied");
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let program = Command::new(env!("CARGO_BIN_EXE_rlock-top"))
        .args(["redis://127.0.0.1:1", "--once"])
        .output();
    let output = program.unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8(output.stderr).unwrap().contains("refused"));
}
