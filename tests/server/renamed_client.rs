//! An administrator has taken `CLIENT` away, with which the module closes connections.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use redis::Value;

use rlock_testkit::{Server, Waiter, items, until};

/// The I/O threads of these servers may work on a connection while the module closes it; without
/// `CLIENT KILL` nothing waits for them.
fn refuses_sessions(server: &Server) -> bool {
    server.version().is_since((8, 0), (8, 0))
}

fn without_client(more: &str) -> Server {
    Server::of(&format!("rename-command CLIENT \"\"\n{more}"))
}

#[test]
fn a_session_is_refused_where_nothing_can_close_it_and_is_closed_elsewhere() {
    let server = without_client("");
    let (mut client, mut ann) = (server.client(), server.client());
    let line = "RLOCK.ACQUIRE door ann SESSION";
    if refuses_sessions(&server) {
        let error = ann.error(line);
        assert!(error.starts_with("ERR SESSION needs the server's CLIENT command"), "{error}");
        let replies = ann.all(&["MULTI", line, "EXEC"]);
        assert!(format!("{:?}", replies[2]).contains("CLIENT command"), "{replies:?}");
        assert_eq!(client.number("EXISTS door"), 0);
        return;
    }
    ann.granted(line);
    assert_eq!(client.number("RLOCK.FORCE door"), 1);
    until(5_000, || client.info_number("clients", "connected_clients") == 1);
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn a_session_in_a_transaction_needs_no_list_of_clients() {
    let server = without_client("");
    if refuses_sessions(&server) {
        return;
    }
    let (mut client, mut ann) = (server.client(), server.client());
    let replies = ann.all(&["MULTI", "RLOCK.ACQUIRE door ann SESSION", "EXEC"]);
    assert!(matches!(items(&replies[2]), [Value::Int(_)]), "{replies:?}");
    drop(ann);
    until(5_000, || client.shows("door") == "free:");
}

/// Says a hundred commands at a time until its connection is closed or `is_over`.
fn pipelines(server: &Server, own: usize, is_over: &AtomicBool) {
    let lines = vec!["SET mark value"; 100];
    while !is_over.load(Relaxed) {
        let mut one = Waiter::may_connect(&server.socket()).unwrap();
        let is_tied = one.may_say_all(&[&format!("RLOCK.ACQUIRE door:{own} o{own} SESSION")])
            && matches!(one.may_reply(20_000), Ok(Some(Ok(_))));
        for _ in 0..20 {
            if is_over.load(Relaxed) || !one.may_say_all(&lines) {
                break;
            }
            let are_told = (0..lines.len()).all(|_| one.may_reply(20_000).is_ok());
            if !are_told {
                assert!(is_tied, "a connection without a session was closed");
                break;
            }
        }
    }
}

#[test]
fn sessions_that_are_lost_under_load_with_io_threads_break_nothing() {
    let server = without_client("io-threads 4\n");
    let mut client = server.client();
    let is_over = AtomicBool::new(false);
    let is_refused = refuses_sessions(&server);
    thread::scope(|scope| {
        for own in 0..4 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || pipelines(server, own, is_over));
        }
        let mut lost = 0;
        for round in 0..2_000 {
            lost += client.number(&format!("RLOCK.FORCE door:{}", round % 4));
        }
        is_over.store(true, Relaxed);
        assert_eq!(lost == 0, is_refused, "{lost} sessions were lost");
    });
    assert!(server.is_running());
    until(5_000, || client.gauges() == (0, 0, 0));
}
