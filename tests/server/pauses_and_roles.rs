//! Waiting while the server may not write: paused, demoted, shutting down, saving.

use rlock_testkit::{Client, Server, Waiter, now_ms, until};

fn paused(client: &mut Client, what: &str) {
    client.ask(&format!("CLIENT PAUSE 600000 {what}"));
}

/// How much this server has written into its append-only file.
fn written_bytes(client: &mut Client) -> i64 {
    client.info_number("persistence", "aof_current_size")
}

fn recording_server() -> (Server, Client) {
    let server = Server::with(&["appendonly", "yes", "appendfsync", "no"]);
    let client = server.client();
    (server, client)
}

/// zed holds `door`, and these wait for it in this order: so ann's lease begins when zed releases.
fn behind_zed<const N: usize>(server: &Server, waiters: [&str; N]) -> [Waiter; N] {
    server.client().granted("RLOCK.ACQUIRE door zed LEASE 600000");
    waiters.map(|words| Waiter::parked(server, &format!("RLOCK.ACQUIRE door {words} BLOCK 0")))
}

#[test]
fn what_is_due_in_a_pause_of_writes_is_done_after_it() {
    let (server, mut client) = recording_server();
    let [_ann, mut bob] = behind_zed(&server, ["ann LEASE 300", "bob"]);
    // The pause begins while ann holds both.
    client.all(&[
        "RLOCK.RELEASE door zed",
        "RLOCK.ACQUIRE gate ann LEASE 300",
        "RLOCK.ACQUIRE gate bob QUEUE 60000",
        "CLIENT PAUSE 600000 WRITE",
    ]);
    let written = written_bytes(&mut client);
    until(5_000, || client.shows("door") == "free:" && client.shows("gate") == "free:");
    let ended_ms = now_ms();
    until(5_000, || now_ms() > ended_ms + 150);
    bob.still_waits(&mut client);
    assert_eq!(client.queue("gate"), "bob write queue");
    assert_eq!(written_bytes(&mut client), written);
    client.ask("CLIENT UNPAUSE");
    bob.granted();
    until(5_000, || client.queue("gate") == "bob write queue turn");
    client.granted("RLOCK.ACQUIRE gate bob");
    assert!(written_bytes(&mut client) > written);
}

#[test]
fn a_wait_that_ends_in_a_pause_is_told_so_in_it() {
    for what in ["WRITE", "ALL"] {
        let (server, mut client) = recording_server();
        client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
        let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 1000");
        let began_ms = now_ms();
        client.ask(&format!("CLIENT PAUSE 4000 {what}"));
        assert_eq!(bob.answer(), redis::Value::Nil, "PAUSE {what}");
        assert!(now_ms() < began_ms + 3_900, "PAUSE {what}: {} ms", now_ms() - began_ms);
        bob.expect_silence();
        assert_eq!(client.queue("door"), "");
    }
}

#[test]
fn a_wait_ends_after_a_standstill_and_where_another_lock_got_the_name() {
    let server = Server::start();
    let mut client = server.client();
    let doors = ["door", "gate", "yard"];
    let [_, _, token] = doors.map(|door| client.granted(&format!("RLOCK.ACQUIRE {door} ann")));
    let waits = ["ACQUIRE door bob", "MACQUIRE 2 door hall cid", &format!("AWAIT yard {token}")];
    let mut waiters = waits.map(|it| Waiter::parked(&server, &format!("RLOCK.{it} BLOCK 500")));
    client.ask("RENAME gate door");
    server.freeze();
    let frozen_ms = now_ms();
    until(5_000, || now_ms() > frozen_ms + 700);
    server.thaw();
    for (waiter, line) in waiters.iter_mut().zip(waits) {
        assert_eq!(waiter.answer(), redis::Value::Nil, "{line}");
    }
}

#[test]
fn a_lease_that_ends_in_a_pause_of_everything_is_handed_over_after_it() {
    let (server, mut client) = recording_server();
    let [_ann, mut bob] = behind_zed(&server, ["ann LEASE 200", "bob"]);
    let began_ms = now_ms();
    client.all(&["RLOCK.RELEASE door zed", "CLIENT PAUSE 500 ALL"]);
    bob.granted();
    // The server may begin to count a millisecond earlier.
    assert!(now_ms() >= began_ms + 499, "{} ms", now_ms() - began_ms);
    assert_eq!(client.shows("door"), "write: bob write 1");
}

#[test]
fn one_who_leaves_in_a_pause_is_not_granted_after_it() {
    let (server, mut client) = recording_server();
    let [_ann, bob, mut cid, mut dan] = behind_zed(&server, ["ann LEASE 200", "bob", "cid", "dan"]);
    client.all(&["RLOCK.RELEASE door zed", "CLIENT PAUSE 600000 WRITE"]);
    until(5_000, || client.shows("door") == "free:");
    drop(bob);
    client.ask(&format!("CLIENT UNBLOCK {} TIMEOUT", cid.id()));
    cid.refused();
    until(5_000, || client.queue("door") == "dan write block");
    client.ask("CLIENT UNPAUSE");
    dan.granted();
    assert_eq!(client.counted("acquired"), 3); // zed, ann and dan
}

#[test]
fn a_session_that_ends_in_a_pause_ends_its_hold_after_it() {
    let (server, mut client) = recording_server();
    let mut ann = Waiter::connect(&server);
    ann.ask("RLOCK.ACQUIRE door ann LEASE 600000 SESSION");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let written = written_bytes(&mut client);
    paused(&mut client, "WRITE");
    let id = ann.id();
    drop(ann);
    until(5_000, || !rlock_testkit::is_connected(&mut client, id));
    let ended_ms = now_ms();
    until(5_000, || now_ms() > ended_ms + 120);
    bob.still_waits(&mut client);
    assert_eq!(written_bytes(&mut client), written);
    client.ask("CLIENT UNPAUSE");
    bob.granted();
    assert_eq!(client.counted("disconnected"), 1);
}

#[test]
fn a_session_that_cannot_be_renewed_in_a_long_pause_is_over_and_its_connection_closed() {
    let (server, mut client) = recording_server();
    let mut ann = Waiter::connect(&server);
    ann.ask("RLOCK.ACQUIRE door ann LEASE 1000 SESSION");
    paused(&mut client, "WRITE");
    until(5_000, || client.shows("door") == "free:");
    client.ask("CLIENT UNPAUSE");
    ann.expect_close();
    assert_eq!(client.shows("door"), "free:");
    // The end is counted when a sweep or the server finds it.
    until(5_000, || client.counted("expired") == 1);
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn a_session_outlives_a_short_pause() {
    let (server, mut client) = recording_server();
    let mut ann = Waiter::connect(&server);
    let token = ann.number("RLOCK.ACQUIRE door ann LEASE 4000 SESSION");
    client.ask("CLIENT PAUSE 1500 WRITE");
    let began_ms = now_ms();
    until(10_000, || {
        assert_eq!(client.lock("door").hold("ann", "write").token, token);
        now_ms() > began_ms + 5_000
    });
    ann.expect_silence();
}

#[test]
fn a_server_that_becomes_a_replica_sends_its_waiters_away_and_forgets_them() {
    let (server, mut client) = recording_server();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let waiters = ["bob", "cid"]
        .map(|owner| Waiter::parked(&server, &format!("RLOCK.ACQUIRE door {owner} BLOCK 0")));
    client.refused("RLOCK.ACQUIRE door dan QUEUE 60000");
    let mut session = Waiter::connect(&server);
    session.ask("RLOCK.ACQUIRE gate eve LEASE 600000 SESSION");
    // Nobody is at that port.
    client.ask("REPLICAOF 127.0.0.1 1");
    for mut waiter in waiters {
        let words = waiter.last_words();
        assert_eq!(words.len(), 1, "{words:?}");
        assert!(words[0].as_ref().is_err_and(|error| error.starts_with("UNBLOCKED ")), "{words:?}");
    }
    session.expect_close();
    assert_eq!(client.gauges(), (0, 0, 0));
    assert_eq!(client.shows("door"), "write: ann write 1");
    let mut other = Waiter::connect(&server);
    other.say("RLOCK.ACQUIRE door fay BLOCK 0");
    assert!(other.error().starts_with("READONLY "));
    client.ask("REPLICAOF NO ONE");
    assert_eq!(client.shows("gate"), "write: eve write 1");
    other.park(&server, "RLOCK.ACQUIRE door fay BLOCK 0");
    client.ask("RLOCK.RELEASE door ann");
    other.granted();
}

#[test]
fn a_lease_that_ends_on_a_replica_is_handed_over_when_it_is_a_primary_again() {
    let (server, mut client) = recording_server();
    client.granted("RLOCK.ACQUIRE door ann LEASE 100");
    client.ask("REPLICAOF 127.0.0.1 1");
    until(5_000, || client.shows("door") == "free:");
    client.ask("REPLICAOF NO ONE");
    let mut bob = Waiter::connect(&server);
    bob.say("RLOCK.ACQUIRE door bob BLOCK 0");
    bob.granted();
    assert_eq!(client.shows("door"), "write: bob write 1");
}

#[test]
fn a_server_that_is_told_to_shut_down_ends_with_its_waiters_and_keeps_the_holds() {
    let (mut server, mut client) = recording_server();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let mut cid = Waiter::connect(&server);
    cid.ask("RLOCK.ACQUIRE gate cid LEASE 600000 SESSION");
    server.restart();
    bob.last_words();
    cid.expect_close();
    let mut client = server.client();
    assert_eq!(client.shows("door"), "write: ann write 1");
    assert_eq!(client.shows("gate"), "write: cid write 1");
    assert_eq!(client.session_of("gate", "cid"), 0);
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn snapshots_and_rewrites_taken_meanwhile_disturb_nobody() {
    let (mut server, mut client) = recording_server();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid LEASE 600000 BLOCK 0");
    client.ask("BGSAVE");
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    until(20_000, || client.info_number("persistence", "rdb_bgsave_in_progress") == 0);
    client.ask("BGREWRITEAOF");
    client.ask("RLOCK.RELEASE door bob");
    let token = cid.granted();
    until(20_000, || client.info_number("persistence", "aof_rewrite_in_progress") == 0);
    server.restart();
    let mut client = server.client();
    assert_eq!(client.lock("door").hold("cid", "write").token, token);
    assert_eq!(client.queue("door"), "");
}
