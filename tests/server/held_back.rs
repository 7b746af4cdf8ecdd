//! Commands that the server holds back during a pause: they bypass the filter when the pause ends,
//! but the commands of a session that was lost meanwhile are not executed.

use redis::Value;

use rlock_testkit::{Server, Waiter, is_connected, until};

/// Ann holds `door` by a session, and bob waits for it.
fn with_session(server: &Server, lease_ms: u32) -> (Waiter, Waiter) {
    let mut ann = Waiter::connect(server);
    ann.number(&format!("RLOCK.ACQUIRE door ann LEASE {lease_ms} SESSION"));
    let bob = Waiter::parked(server, "RLOCK.ACQUIRE door bob BLOCK 0");
    (ann, bob)
}

/// The holder of `door` loses it right behind the command that ends the pause. Returns how many
/// holds there are.
fn lost_with_the_pause(server: &Server) -> Value {
    let mut teller = Waiter::connect(server);
    teller.say_all(&["CLIENT UNPAUSE", "RLOCK.FORCE door"]);
    teller.answer();
    teller.answer()
}

#[test]
fn a_command_that_a_pause_held_back_does_not_run_after_its_session_was_lost() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    ann.number("RLOCK.ACQUIRE door ann LEASE 600000 SESSION");
    client.ask("CLIENT PAUSE 600000 WRITE");
    ann.park(&server, "SET mark 1");
    assert_eq!(lost_with_the_pause(&server), Value::Int(1));
    until(5_000, || !is_connected(&mut client, ann.id()));
    assert_eq!(client.number("EXISTS mark"), 0);
}

#[test]
fn a_held_command_does_not_run_after_a_held_del_of_its_session() {
    for pause_ms in [600_000, 700] {
        let server = Server::start();
        let mut client = server.client();
        let (mut ann, mut bob) = with_session(&server, 600_000);
        client.ask(&format!("CLIENT PAUSE {pause_ms} WRITE"));
        let mut teller = Waiter::connect(&server);
        teller.park(&server, "DEL door");
        ann.park(&server, "SET mark 1");
        if pause_ms == 600_000 {
            client.ask("CLIENT UNPAUSE");
        }
        assert_eq!(teller.answer(), Value::Int(1));
        bob.granted();
        assert!(ann.last_words().is_empty());
        assert_eq!(client.number("EXISTS mark"), 0, "{pause_ms}");
    }
}

#[test]
fn a_held_flush_of_a_lost_session_does_not_end_the_next_hold() {
    for flush in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"] {
        let server = Server::start();
        let mut client = server.client();
        let (mut ann, mut bob) = with_session(&server, 600_000);
        client.ask("CLIENT PAUSE 600000 WRITE");
        ann.park(&server, flush);
        assert_eq!(lost_with_the_pause(&server), Value::Int(1));
        bob.granted();
        assert!(ann.last_words().is_empty(), "{flush}");
        assert_eq!(client.number("RLOCK.HOLDS door bob"), 1, "{flush}");
    }
}

#[test]
fn a_session_whose_lease_is_over_in_a_pause_is_closed_though_it_waits_to_flush() {
    for flush in ["FLUSHALL", "SWAPDB 0 1"] {
        let server = Server::start();
        let mut client = server.client();
        let (mut ann, mut bob) = with_session(&server, 1_000);
        client.ask("CLIENT PAUSE 600000 WRITE");
        ann.park(&server, flush);
        until(10_000, || !is_connected(&mut client, ann.id()));
        assert!(ann.last_words().is_empty(), "{flush}");
        client.ask("CLIENT UNPAUSE");
        bob.granted();
        assert_eq!(client.number("RLOCK.HOLDS door bob"), 1, "{flush}");
    }
}

#[test]
fn no_held_command_runs_however_many_sessions_are_lost_at_once() {
    let server = Server::start();
    let mut client = server.client();
    let mut all: Vec<Waiter> = (0..90)
        .map(|n| {
            let mut one = Waiter::connect(&server);
            one.number(&format!("RLOCK.ACQUIRE door o{n} READ LEASE 600000 SESSION"));
            one
        })
        .collect();
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.ask("CLIENT PAUSE 600000 WRITE");
    all.iter_mut().for_each(|one| one.park(&server, "INCR mark"));
    assert_eq!(lost_with_the_pause(&server), Value::Int(90));
    bob.granted();
    all.iter_mut().for_each(|one| assert!(one.last_words().is_empty()));
    assert_eq!(client.number("EXISTS mark"), 0);
}
