//! What a reply promises is kept, and what cannot be kept is not promised.

use rlock_testkit::{
    Listener, Server, Waiter, flat_map, integer, items, say_not_seen, text, until,
};

const LINE: &str = "RLOCK.ACQUIRE door bob BLOCK 0";

#[test]
fn whatever_promises_a_deadline_has_the_key_live_so_long() {
    let server = Server::start();
    let mut client = server.client();
    let deadline_of = ["RLOCK.RENEW door ann LEASE 1000", "RLOCK.ACQUIRE door ann LEASE 1000"];
    for promise in deadline_of {
        client.ask("RLOCK.ACQUIRE door ann LEASE 60000");
        client.ask("PEXPIRE door 1500");
        assert!(client.lives_ms("door") <= 1500);
        client.ask(promise);
        assert!(client.number("PTTL door") > 50_000, "{promise}");
        client.ask("RLOCK.FORCE door");
    }
    // A further reader's grant extends the key for both.
    client.ask("RLOCK.ACQUIRE door ann READ LEASE 60000");
    client.ask("PEXPIRE door 1500");
    client.ask("RLOCK.ACQUIRE door bob READ LEASE 50000");
    assert!(client.number("PTTL door") > 50_000);
    // A key that its user has made persistent stays persistent.
    client.ask("PERSIST door");
    client.ask("RLOCK.RENEW door ann LEASE 1000");
    assert_eq!(client.number("PTTL door"), -1);
}

/// WAIT behind a request that changed nothing must wait for what the request promises.
#[test]
fn a_promise_that_changes_nothing_moves_the_replication_offset() {
    let primary = Server::primary(&[]);
    let _replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000 DEPTH 1");
    let mut offset = client.info_number("replication", "master_repl_offset");
    for line in [
        "RLOCK.ACQUIRE door ann LEASE 1000 DEPTH 1",
        "RLOCK.RENEW door ann LEASE 1000",
        "RLOCK.ACQUIRE door ann LEASE 1000 DEPTH 1 WITHTTL",
    ] {
        client.ask(line);
        let after = client.info_number("replication", "master_repl_offset");
        // This is more than the PING that the server sends each second.
        assert!(after > offset + 20, "{line}: {offset} became {after}");
        offset = after;
    }
}

#[test]
fn who_is_first_in_line_with_a_ticket_hears_how_long_it_has_to_wait() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    let told = client.ask("RLOCK.ACQUIRE door bob WITHTTL");
    let ms = integer(&items(&told)[1]);
    assert!((50_000..=60_001).contains(&ms), "{ms}");
    let told = client.ask("RLOCK.ACQUIRE door cid WITHTTL");
    assert_eq!(integer(&items(&told)[1]), -1);
}

#[test]
fn a_hold_that_comes_by_rename_grants_its_owners_own_wait() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let token = client.granted("RLOCK.ACQUIRE gate bob");
    let mut bob = Waiter::parked(&server, LINE);
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
    client.ask("RENAME gate door");
    assert_eq!(bob.granted(), token);
    assert_eq!(client.shows("door"), "write: bob write 2");
    cid.still_waits(&mut client);
}

#[test]
fn a_turn_that_a_value_from_outside_contradicts_is_not_shown() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE gate eve");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(client.queue("door"), "bob write queue turn");
    let script =
        "EVAL redis.call('RENAME','gate','door');return(redis.call('RLOCK.INFO','door')) 0";
    let shown = flat_map(&client.ask(script));
    assert_eq!(text(&shown["mode"]), "write");
    let bob = flat_map(&items(&shown["waiters"])[0]);
    assert_eq!(integer(&bob["turn"]), 0);
    assert_eq!(client.queue("door"), "bob write queue");
}

#[test]
fn cancel_ends_blocked_waits_too() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    let mut first = Waiter::parked(&server, LINE);
    let mut second = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0 WITHTTL");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    assert_eq!(client.number("RLOCK.CANCEL door bob"), 3);
    first.refused();
    // It was queued behind the first one, which still existed when the second got its reply.
    assert!(second.refused_with_ttl() >= -1);
    cid.still_waits(&mut client);
    assert_eq!(client.number("RLOCK.CANCEL door bob"), 0);
    client.ask("RLOCK.RELEASE door ann");
    cid.granted();
    assert_eq!(client.number("RLOCK.CANCEL door cid"), 0);
    assert_eq!(client.shows("door"), "write: cid write 1");
}

#[test]
fn who_lost_the_right_while_it_waited_is_not_granted() {
    for change in [
        "ACL SETUSER bob -rlock.acquire",
        "ACL SETUSER bob resetkeys ~other",
        "ACL SETUSER bob off resetkeys",
    ] {
        let server = Server::start();
        let mut client = server.client();
        client.ask("ACL SETUSER bob on nopass +@all ~*");
        client.granted("RLOCK.ACQUIRE door ann");
        let mut bob = Waiter::connect_as(&server, "bob");
        bob.park(&server, LINE);
        let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
        client.ask(change);
        client.ask("RLOCK.RELEASE door ann");
        cid.granted();
        let error = bob.error();
        assert!(error.starts_with("NOPERM "), "{change}: {error}");
        assert_eq!(client.shows("door"), "write: cid write 1", "{change}");
    }
}

/// Since Valkey 9.1 a user can be limited to databases.
#[test]
fn who_may_use_only_the_locks_database_is_granted_there_until_it_loses_that() {
    let server = Server::start();
    if !server.version().is_since([u32::MAX, 0], [9, 1]) {
        return say_not_seen("a user that is limited to a database");
    }
    for (change, is_granted) in [
        ("PING", true),
        ("ACL SETUSER bob db=5,3", true),
        ("ACL SETUSER bob alldbs", true),
        ("ACL SETUSER bob db=0", false),
        ("ACL SETUSER bob resetdbs", false),
    ] {
        let mut client = server.client();
        client.ask("ACL SETUSER bob reset on nopass +@all ~* db=3");
        client.ask("SELECT 3");
        client.granted("RLOCK.ACQUIRE door ann");
        let mut bob = Waiter::connect_as(&server, "bob");
        bob.ask("SELECT 3");
        bob.park(&server, LINE);
        let mut cid = Waiter::connect(&server);
        cid.ask("SELECT 3");
        cid.park(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
        client.ask(change);
        client.ask("RLOCK.RELEASE door ann");
        if is_granted {
            bob.granted();
            client.ask("RLOCK.RELEASE door bob");
        } else {
            let error = bob.error();
            assert!(error.starts_with("NOPERM "), "{change}: {error}");
        }
        cid.granted();
        client.ask("RLOCK.RELEASE door cid");
        // A sweep has no caller: it may run in another database.
        client.granted("RLOCK.ACQUIRE door ann LEASE 50");
        client.ask("ACL SETUSER bob db=3");
        let mut bob = Waiter::connect_as(&server, "bob");
        bob.ask("SELECT 3");
        bob.say(LINE);
        bob.granted();
        client.ask("RLOCK.RELEASE door bob");
    }
}

#[test]
fn what_is_replayed_from_a_file_is_published_by_nobody() {
    let mut server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    client.ask("CONFIG SET notify-keyspace-events KEAd");
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.granted("RLOCK.ACQUIRE gate ann LEASE 600000");
    client.ask("DEL gate");
    client.ask("CONFIG REWRITE");
    server.kill_9();
    server.start_again();
    let mut ears = Listener::to(&server);
    let mut client = server.client();
    client.ask("CONFIG SET notify-keyspace-events KEAd");
    client.ask("DEBUG LOADAOF");
    let heard = ears.heard_after_a_turn(&mut client);
    let ours: Vec<_> = heard.iter().filter(|line| line.contains("rlock.")).collect();
    assert!(ours.is_empty(), "{ours:?}");
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn a_session_by_another_modules_transaction_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    let error = client.error("EVAL return(redis.call('RLOCK.ACQUIRE','door','a','SESSION')) 0");
    assert!(error.contains("SESSION"), "{error}");
    assert_eq!(client.number("EXISTS door"), 0);
}

/// The first grant's own connection gets its token, and the loss of the second one does not affect
/// it.
#[test]
fn a_connection_that_is_about_to_be_closed_is_never_granted() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    let mut first = Waiter::parked(&server, LINE);
    let mut doomed = Waiter::connect(&server);
    doomed.number("RLOCK.ACQUIRE gate bob SESSION");
    doomed.park(&server, "RLOCK.ACQUIRE door bob SESSION BLOCK 0");
    let ends = "redis.call('DEL','gate');redis.call('RLOCK.RELEASE','door','ann')";
    client.ask(&format!("EVAL {ends} 0"));
    first.granted();
    doomed.expect_close();
    assert_eq!(client.shows("door"), "write: bob write 1");
    until(5_000, || client.gauges() == (0, 0, 0));
}

/// On Redis 7.0 and 7.2, the reply would be sent during the script, whose effects are not in the
/// append-only file before it ends.
#[test]
fn a_grant_is_told_when_the_script_is_over_that_gave_it() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("CONFIG SET lua-time-limit 50");
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    let mut bob = Waiter::parked(&server, LINE);
    let mut script = Waiter::connect(&server);
    // A comment is used where a space would end the word.
    script.say(
        "EVAL local--[[]]t=redis.call('TIME')[1];redis.call('RLOCK.RELEASE','door','ann');\
         while(redis.call('TIME')[1]-t<2)do--[[]]end 0",
    );
    until(10_000, || client.attempt("PING").is_err_and(|error| error.starts_with("BUSY ")));
    assert!(!bob.has_reply(), "told while the script ran");
    script.answer();
    bob.granted();
}

/// The replica and the file have the promise, as the primary does.
#[test]
fn what_is_promised_after_a_shorter_expiry_lasts_on_a_replica_and_after_a_restart() {
    let mut primary = Server::primary(&["appendonly", "yes"]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE k ann LEASE 600000");
    client.ask("PEXPIRE k 300000");
    assert_eq!(client.number("RLOCK.RENEW k ann LEASE 1000"), 1);
    let ends_at = client.key_ends_at("k");
    replica.until_in_sync_with(&primary);
    assert_eq!(replica.client().key_ends_at("k"), ends_at);
    primary.restart();
    assert_eq!(primary.client().key_ends_at("k"), ends_at);
}
