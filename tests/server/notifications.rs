//! Unlock messages: what is published, once, by which server, and what is not published.

use rlock_testkit::{Client, Listener, Server, integer, now_ms, until};

/// A server that publishes all events of this module, a listener, and a client.
fn speaking_server() -> (Server, Listener, Client) {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let listener = Listener::to(&server);
    let client = server.client();
    (server, listener, client)
}

/// Sends each line, and compares the events that follow.
#[track_caller]
fn play(client: &mut Client, listener: &mut Listener, steps: &[(&str, &[&str])]) {
    for (line, events) in steps {
        client.attempt(line).ok();
        assert_eq!(listener.heard(client), *events, "after {line}");
    }
}

#[test]
fn an_event_is_said_on_the_channel_of_the_key_and_on_that_of_the_event() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    let mut listener = Listener::to(&server);
    client.ask("SELECT 3");
    client.granted("RLOCK.ACQUIRE door ann");
    let said = [
        ("__keyspace@3__:door".to_owned(), "rlock.acquired".to_owned()),
        ("__keyevent@3__:rlock.acquired".to_owned(), "door".to_owned()),
    ];
    assert_eq!(listener.heard_raw(&mut client), said);
    for (setting, channels) in [("Kd", 1), ("Ed", 1), ("KEA", 2)] {
        client.ask("RLOCK.FORCE door");
        client.ask(&format!("CONFIG SET notify-keyspace-events {setting}"));
        listener.heard_raw(&mut client);
        client.granted("RLOCK.ACQUIRE door ann");
        let said = listener.heard_raw(&mut client);
        let of_ours = said.iter().filter(|(channel, payload)| {
            channel.ends_with(":rlock.acquired") || payload == "rlock.acquired"
        });
        assert_eq!(of_ours.count(), channels, "{setting}: {said:?}");
    }
}

#[test]
fn a_lock_says_when_it_is_taken_and_when_it_is_let_go() {
    let (_server, mut listener, mut client) = speaking_server();
    play(
        &mut client,
        &mut listener,
        &[
            ("RLOCK.ACQUIRE door ann", &["rlock.acquired door"]),
            ("RLOCK.RELEASE door ann", &["rlock.released door"]),
            ("RLOCK.ACQUIRE door ann READ", &["rlock.acquired door"]),
            ("RLOCK.ACQUIRE door bob READ", &["rlock.acquired door"]),
            ("RLOCK.RELEASE door ann", &["rlock.released door"]),
            ("RLOCK.RELEASE door bob ALL", &["rlock.released door"]),
        ],
    );
}

#[test]
fn re_entries_inner_releases_renewals_refusals_and_questions_say_nothing() {
    let (_server, mut listener, mut client) = speaking_server();
    client.granted("RLOCK.ACQUIRE door ann");
    listener.heard(&mut client);
    let silent: [&str; 14] = [
        "RLOCK.ACQUIRE door ann",
        "RLOCK.ACQUIRE door ann DEPTH 3",
        "RLOCK.ACQUIRE door ann DEPTH 3 LEASE 90000",
        "RLOCK.RELEASE door ann",
        "RLOCK.RELEASE door ann DEPTH 1",
        "RLOCK.RENEW door ann LEASE 95000",
        "RLOCK.ACQUIRE door bob",
        "RLOCK.RELEASE door bob",
        "RLOCK.RELEASE door bob DEPTH 0",
        "RLOCK.FORCE door READ",
        "RLOCK.FORCE elsewhere",
        "RLOCK.HOLDS door ann",
        "RLOCK.INFO door",
        "RLOCK.CHECK door 5",
    ];
    for line in silent {
        play(&mut client, &mut listener, &[(line, &[])]);
    }
}

#[test]
fn an_upgrade_and_a_downgrade_have_their_own_events() {
    let (_server, mut listener, mut client) = speaking_server();
    play(
        &mut client,
        &mut listener,
        &[
            ("RLOCK.ACQUIRE door ann READ", &["rlock.acquired door"]),
            ("RLOCK.ACQUIRE door ann UPGRADE", &["rlock.upgraded door"]),
            ("RLOCK.ACQUIRE door ann UPGRADE", &[]),
            ("RLOCK.RELEASE door ann", &[]),
            ("RLOCK.RELEASE door ann", &["rlock.downgraded door"]),
            ("RLOCK.ACQUIRE door ann UPGRADE", &["rlock.upgraded door"]),
            ("RLOCK.RELEASE door ann READ", &["rlock.released door"]),
            ("RLOCK.RELEASE door ann", &["rlock.released door"]),
        ],
    );
}

#[test]
fn force_says_one_event_for_each_hold_it_ends() {
    let (_server, mut listener, mut client) = speaking_server();
    let forced: &[&str] = &["rlock.forced door"];
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE door ann");
    listener.heard(&mut client);
    play(&mut client, &mut listener, &[("RLOCK.FORCE door", forced)]);
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE door ann READ");
    listener.heard(&mut client);
    play(&mut client, &mut listener, &[("RLOCK.FORCE door WRITE", forced)]);
    client.granted("RLOCK.ACQUIRE door bob READ");
    client.granted("RLOCK.ACQUIRE door cid READ");
    listener.heard(&mut client);
    play(&mut client, &mut listener, &[("RLOCK.FORCE door", &[forced[0]; 3])]);
}

#[test]
fn a_lock_that_something_else_takes_from_its_name_is_removed_once() {
    for lazily in ["no", "yes"] {
        let server = Server::with(&[
            "notify-keyspace-events",
            "KEd",
            "lazyfree-lazy-user-del",
            lazily,
            "lazyfree-lazy-server-del",
            lazily,
            "lazyfree-lazy-expire",
            lazily,
        ]);
        let (mut listener, mut client) = (Listener::to(&server), server.client());
        every_removal_is_said_once(&mut client, &mut listener);
    }
}

#[track_caller]
fn every_removal_is_said_once(client: &mut Client, listener: &mut Listener) {
    let removals = ["DEL door", "UNLINK door", "RENAME door gate", "MOVE door 1", "SET door value"];
    for removal in removals {
        client.ask("FLUSHALL");
        client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
        client.granted("RLOCK.ACQUIRE door ann READ LEASE 60000");
        listener.heard(client);
        client.ask(removal);
        // If it is published a moment later, it must still be published once.
        let heard = listener.heard_after_a_turn(client);
        assert_eq!(heard, ["rlock.removed door"], "{removal}");
    }
    client.ask("FLUSHALL");
    client.ask("SET value 1");
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE door bob READ");
    listener.heard(client);
    client.ask("RENAME value door");
    assert_eq!(listener.heard_after_a_turn(client), ["rlock.removed door"]);
}

#[test]
fn a_deadline_set_in_the_past_is_said_as_the_server_says_it() {
    let server = Server::with(&["notify-keyspace-events", "KEA"]);
    let (mut listener, mut client) = (Listener::to(&server), server.client());
    client.ask("SET door value");
    client.ask("EXPIRE door -1");
    // Redis deletes such a key, Valkey lets it expire.
    let said = listener.heard_raw(&mut client);
    let is_expiry = said.iter().any(|(_, payload)| payload == "expired");
    let owed = if is_expiry { "rlock.expired door" } else { "rlock.removed door" };
    client.granted("RLOCK.ACQUIRE door ann");
    listener.heard(&mut client);
    client.ask("EXPIRE door -1");
    assert_eq!(listener.heard_after_a_turn(&mut client), [owed]);
}

#[test]
fn another_key_that_expires_in_the_same_turn_does_not_make_a_removal_an_expiry() {
    let (_server, mut listener, mut client) = speaking_server();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    listener.heard(&mut client);
    until_over(&mut client, "SET other value PX 200", "other");
    for line in ["MULTI", "DEL door", "GET other", "EXEC"] {
        client.ask(line);
    }
    assert_eq!(listener.heard_after_a_turn(&mut client), ["rlock.removed door"]);
}

#[test]
fn a_flush_says_nothing() {
    let (_server, mut listener, mut client) = speaking_server();
    for flush in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC", "FLUSHDB SYNC"] {
        client.granted("RLOCK.ACQUIRE door ann");
        client.granted("RLOCK.ACQUIRE gate bob READ");
        listener.heard(&mut client);
        client.ask(flush);
        let heard = listener.heard_after_a_turn(&mut client);
        assert!(heard.is_empty(), "{flush}: {heard:?}");
    }
}

/// One event for a key that the server removes. On a busy machine, the module's timer is often
/// first, which ends each hold with an event of its own.
#[test]
fn a_lease_that_the_server_sweeps_is_said_to_have_expired_once() {
    let (_server, mut listener, mut client) = speaking_server();
    for number in 0..100 {
        // In a transaction, so that both end in the same millisecond.
        client.all(&[
            "MULTI",
            &format!("RLOCK.ACQUIRE door{number} ann LEASE 200"),
            &format!("RLOCK.ACQUIRE door{number} ann READ LEASE 200"),
            "EXEC",
        ]);
        let [acquired, expired] =
            ["acquired", "expired"].map(|what| format!("rlock.{what} door{number}"));
        assert_eq!(listener.next_event(), acquired);
        assert_eq!(listener.next_event(), acquired);
        assert_eq!(listener.next_event(), expired);
        until(5000, || client.info_number("rlock", "rlock_expired") == 2 * (number + 1));
        let rest = listener.heard_after_a_turn(&mut client);
        if rest.is_empty() {
            return;
        }
        assert_eq!(rest, [expired]);
    }
    panic!("the server swept none of a hundred locks");
}

#[test]
fn a_lease_that_nobody_swept_is_said_to_have_expired_before_the_next_grant() {
    let (_server, mut listener, mut client) = speaking_server();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    until_over(&mut client, "RLOCK.ACQUIRE door ann LEASE 200", "door");
    listener.heard(&mut client);
    client.granted("RLOCK.ACQUIRE door bob");
    let events = ["rlock.expired door", "rlock.acquired door"];
    assert_eq!(listener.heard_after_a_turn(&mut client), events);
}

#[test]
fn a_reader_whose_lease_ends_beside_others_has_expired_at_its_deadline() {
    let (_server, mut listener, mut client) = speaking_server();
    client
        .all(&["RLOCK.ACQUIRE door ann READ LEASE 200", "RLOCK.ACQUIRE door bob READ LEASE 60000"]);
    for event in ["rlock.acquired door", "rlock.acquired door", "rlock.expired door"] {
        assert_eq!(listener.next_event(), event);
    }
    client.granted("RLOCK.ACQUIRE door cid READ LEASE 60000");
    assert_eq!(listener.heard_after_a_turn(&mut client), ["rlock.acquired door"]);
    play(&mut client, &mut listener, &[("RLOCK.RENEW door bob LEASE 90000", &[])]);
}

#[test]
fn a_write_whose_lease_ends_above_its_read_has_expired_and_is_no_downgrade() {
    let (_server, mut listener, mut client) = speaking_server();
    client.all(&["RLOCK.ACQUIRE door ann LEASE 200", "RLOCK.ACQUIRE door ann READ LEASE 60000"]);
    until(5_000, || client.shows("door") == "read: ann read 1");
    client.ask("RLOCK.RENEW door ann LEASE 90000");
    let events = ["rlock.acquired door", "rlock.acquired door", "rlock.expired door"];
    assert_eq!(listener.heard_after_a_turn(&mut client), events);
}

#[test]
fn a_persisted_lock_that_ran_out_has_expired_once_when_it_is_touched() {
    let (_server, mut listener, mut client) = speaking_server();
    client.all(&["RLOCK.ACQUIRE door ann LEASE 200", "PERSIST door"]);
    until(5_000, || client.shows("door") == "free:");
    client.granted("RLOCK.ACQUIRE door bob");
    let events = ["rlock.acquired door", "rlock.expired door", "rlock.acquired door"];
    assert_eq!(listener.heard_after_a_turn(&mut client), events);
}

#[test]
fn an_evicted_lock_is_said_to_be_evicted_once() {
    let (_server, mut listener, mut client) = speaking_server();
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.ask("CONFIG SET maxmemory-policy allkeys-random");
    listener.heard(&mut client);
    client.ask("CONFIG SET maxmemory 1");
    until(10_000, || {
        client.attempt("SET straw 1").ok();
        client.number("EXISTS door") == 0
    });
    let heard = listener.heard_after_a_turn(&mut client);
    assert_eq!(heard, ["rlock.evicted door"]);
}

#[test]
fn nothing_is_said_when_messages_are_off() {
    let server = Server::start();
    let mut client = server.client();
    let mut listener = Listener::to(&server);
    for setting in ["\"\"", "KEg$xe", "d"] {
        let setting = setting.trim_matches('"');
        let words: [&[u8]; 4] = [b"CONFIG", b"SET", b"notify-keyspace-events", setting.as_bytes()];
        client.ask_bytes(&words);
        client.granted("RLOCK.ACQUIRE door ann");
        client.ask("RLOCK.RELEASE door ann");
        client.granted("RLOCK.ACQUIRE door ann");
        client.ask("DEL door");
        let heard = listener.heard_after_a_turn(&mut client);
        assert!(heard.is_empty(), "{setting}: {heard:?}");
    }
}

#[test]
fn a_transaction_says_what_it_did_in_its_order() {
    let (_server, mut listener, mut client) = speaking_server();
    for line in [
        "MULTI",
        "RLOCK.ACQUIRE door ann",
        "RLOCK.ACQUIRE gate ann",
        "RLOCK.RELEASE door ann",
        "EXEC",
    ] {
        client.ask(line);
    }
    let events = ["rlock.acquired door", "rlock.acquired gate", "rlock.released door"];
    assert_eq!(listener.heard(&mut client), events);
}

#[test]
fn a_replica_says_what_its_primary_did() {
    let primary = Server::primary(&["notify-keyspace-events", "KEd"]);
    let replica = Server::replica_of(&primary, &["notify-keyspace-events", "KEd"]);
    let mut client = primary.client();
    let mut here = Listener::to(&primary);
    let mut there = Listener::to(&replica);
    for line in [
        "RLOCK.ACQUIRE door ann READ",
        "RLOCK.ACQUIRE door ann READ",
        "RLOCK.ACQUIRE door ann UPGRADE",
        "RLOCK.RENEW door ann LEASE 90000",
        "RLOCK.RELEASE door ann",
        "RLOCK.ACQUIRE door bob READ",
        "RLOCK.RELEASE door ann ALL",
        "RLOCK.FORCE door",
        "RLOCK.ACQUIRE door cid",
        "RLOCK.ACQUIRE door cid READ",
        "RLOCK.FORCE door",
    ] {
        client.ask(line);
    }
    let said = here.heard(&mut client);
    assert_eq!(said.len(), 10, "{said:?}");
    assert_eq!(there.heard(&mut client), said);
}

#[test]
fn a_replica_says_that_a_reader_beside_others_has_expired() {
    let primary = Server::primary(&["notify-keyspace-events", "KEd"]);
    let replica = Server::replica_of(&primary, &["notify-keyspace-events", "KEd"]);
    let mut client = primary.client();
    let mut there = Listener::to(&replica);
    client
        .all(&["RLOCK.ACQUIRE door ann READ LEASE 200", "RLOCK.ACQUIRE door bob READ LEASE 60000"]);
    for event in ["rlock.acquired door", "rlock.acquired door", "rlock.expired door"] {
        assert_eq!(there.next_event(), event);
    }
    client.ask("RLOCK.RENEW door bob LEASE 90000");
    assert_eq!(there.heard(&mut client), [""; 0]);
}

#[test]
fn a_replica_says_a_removal_before_what_comes_after_it() {
    let primary = Server::primary(&["notify-keyspace-events", "KEd"]);
    let replica = Server::replica_of(&primary, &["notify-keyspace-events", "KEd"]);
    let mut client = primary.client();
    let mut here = Listener::to(&primary);
    let mut there = Listener::to(&replica);
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    // In one transaction, so that the replica gets all of it in one iteration of its loop.
    for line in ["MULTI", "DEL door", "RLOCK.ACQUIRE door bob", "RENAME door gate"] {
        client.ask(line);
    }
    client.ask("RLOCK.ACQUIRE door cid");
    client.ask("EXEC");
    let said = [
        "rlock.acquired door",
        "rlock.removed door",
        "rlock.acquired door",
        "rlock.removed door",
        "rlock.acquired door",
    ];
    assert_eq!(here.heard_after_a_turn(&mut client), said);
    assert_eq!(there.heard_after_a_turn(&mut client), said);
}

#[test]
fn a_replica_says_an_expiry_before_the_grant_that_follows_it() {
    let primary = Server::primary(&["notify-keyspace-events", "KEd"]);
    let replica = Server::replica_of(&primary, &["notify-keyspace-events", "KEd"]);
    let mut client = primary.client();
    let mut there = Listener::to(&replica);
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    until_over(&mut client, "RLOCK.ACQUIRE door ann LEASE 200", "door");
    client.granted("RLOCK.ACQUIRE door bob");
    let said = there.heard_after_a_turn(&mut client);
    let ends = ["rlock.acquired door", "rlock.expired door", "rlock.acquired door"];
    assert_eq!(said, ends);
}

#[test]
fn a_replica_says_that_a_lock_is_removed_once() {
    let primary = Server::primary(&["notify-keyspace-events", "KEd"]);
    let replica = Server::replica_of(&primary, &["notify-keyspace-events", "KEd"]);
    let mut client = primary.client();
    let mut there = Listener::to(&replica);
    for removal in ["DEL door", "RENAME door gate", "SET door value", "FLUSHALL"] {
        client.ask("DEL door");
        client.granted("RLOCK.ACQUIRE door ann");
        there.heard_after_a_turn(&mut client);
        client.ask(removal);
        let heard = there.heard_after_a_turn(&mut client);
        let owed: &[&str] = if removal == "FLUSHALL" { &[] } else { &["rlock.removed door"] };
        assert_eq!(heard, owed, "{removal}");
    }
}

/// Sends `line`, which creates the key, and waits until the key's time has passed, without touching
/// it, so that it still exists.
#[track_caller]
fn until_over(client: &mut Client, line: &str, key: &str) {
    let replies = client.all(&[line, &format!("PEXPIRETIME {key}")]);
    let ends_at = integer(&replies[1]);
    assert!(ends_at > 0, "{key} is over already");
    until(5_000, || now_ms() > ends_at + 1);
}
