//! `INFO rlock`: the current numbers, and the totals.

use rlock_testkit::{Client, Server, until};

const TOTALS: [&str; 8] = [
    "rlock_acquired",
    "rlock_reentered",
    "rlock_refused",
    "rlock_released",
    "rlock_renewed",
    "rlock_expired",
    "rlock_forced",
    "rlock_evicted",
];

/// The totals that `line` changes, as `name +n`.
#[track_caller]
fn counted(client: &mut Client, line: &str) -> Vec<String> {
    let before = totals(client);
    client.attempt(line).ok();
    let after = totals(client);
    let changes = TOTALS.iter().zip(before.iter().zip(after));
    let changes = changes.filter(|(_, (before, after))| *before != after);
    changes
        .map(|(name, (before, after))| {
            format!("{} +{}", name.trim_start_matches("rlock_"), after - before)
        })
        .collect()
}

#[track_caller]
fn totals(client: &mut Client) -> Vec<i64> {
    TOTALS.iter().map(|name| client.info_number("rlock", name)).collect()
}

#[test]
fn every_total_starts_at_zero_and_counts_its_own() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(totals(&mut client), [0; 8]);
    for (line, changes) in [
        ("RLOCK.ACQUIRE door ann", &["acquired +1"][..]),
        ("RLOCK.ACQUIRE door ann", &["reentered +1"]),
        ("RLOCK.ACQUIRE door bob", &["refused +1"]),
        ("RLOCK.ACQUIRE door bob READ", &["refused +1"]),
        ("RLOCK.RENEW door ann", &["renewed +1"]),
        ("RLOCK.RENEW door bob", &[]),
        ("RLOCK.ACQUIRE door ann LEASE none", &[]),
        ("RLOCK.RELEASE door bob", &[]),
        ("RLOCK.HOLDS door ann", &[]),
        ("RLOCK.ACQUIRE door ann READ", &["acquired +1"]),
        ("RLOCK.RELEASE door ann READ", &["released +1"]),
        ("RLOCK.FORCE door", &["forced +1"]),
        ("RLOCK.FORCE door", &[]),
        ("RLOCK.ACQUIRE door ann READ", &["acquired +1"]),
        ("RLOCK.ACQUIRE door bob READ", &["acquired +1"]),
        ("RLOCK.ACQUIRE door cid READ", &["acquired +1"]),
        ("RLOCK.FORCE door", &["forced +3"]),
    ] {
        assert_eq!(counted(&mut client, line), changes, "{line}");
    }
}

#[test]
fn an_expired_hold_is_counted_however_it_is_noticed() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE swept ann LEASE 20");
    until(10_000, || client.info_number("rlock", "rlock_expired") == 1);
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    client.granted("RLOCK.ACQUIRE touched ann LEASE 20");
    client.granted("RLOCK.ACQUIRE beside ann READ LEASE 20");
    client.granted("RLOCK.ACQUIRE beside bob READ LEASE 60000");
    until(5_000, || client.shows("touched") == "free:");
    until(5_000, || client.shows("beside") == "read: bob read 1");
    client.granted("RLOCK.ACQUIRE touched bob");
    until(5_000, || client.info_number("rlock", "rlock_expired") >= 2);
    client.granted("RLOCK.ACQUIRE beside cid READ");
    until(5_000, || client.info_number("rlock", "rlock_expired") >= 3);
    assert_eq!(client.info_number("rlock", "rlock_expired"), 3);
    assert_eq!(client.info_number("rlock", "rlock_released"), 0);
}

#[test]
fn an_evicted_lock_is_counted() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.ask("CONFIG SET maxmemory-policy allkeys-random");
    client.ask("CONFIG SET maxmemory 1");
    until(10_000, || {
        client.attempt("SET straw 1").ok();
        client.number("EXISTS door") == 0
    });
    until(5_000, || client.info_number("rlock", "rlock_evicted") == 1);
    assert_eq!(client.info_number("rlock", "rlock_expired"), 0);
}

#[test]
fn the_number_of_locks_is_that_of_the_keys_that_are_locks() {
    let server = Server::start();
    let mut client = server.client();
    let mut locks_are = |line: &str, count: i64| {
        client.ask(line);
        until(10_000, || client.info_number("rlock", "rlock_locks") == count);
    };
    locks_are("PING", 0);
    locks_are("RLOCK.ACQUIRE a ann READ LEASE 600000", 1);
    locks_are("RLOCK.ACQUIRE a bob READ LEASE 600000", 1);
    locks_are("RLOCK.ACQUIRE b ann LEASE 600000", 2);
    locks_are("SET other value", 2);
    locks_are("RLOCK.ACQUIRE c ann LEASE 30", 2);
    locks_are("RENAME b d", 2);
    locks_are("MOVE d 1", 2);
    locks_are("DEBUG RELOAD", 2);
    locks_are("RLOCK.RELEASE a ann", 2);
    locks_are("RLOCK.RELEASE a bob", 1);
    locks_are("SET a value", 1);
    locks_are("FLUSHALL", 0);
    locks_are("RLOCK.ACQUIRE a ann LEASE 600000", 1);
}

#[test]
fn the_number_of_locks_is_right_when_the_server_frees_them_in_the_background() {
    let server = Server::start();
    let mut client = server.client();
    for flush in ["FLUSHALL ASYNC", "FLUSHALL SYNC", "UNLINK 1 2 3 4 5 6 7 8 9"] {
        for _ in 0..50 {
            for key in 1..10 {
                // So many readers that the server frees them in a thread.
                for reader in 0..4 {
                    client.ask(&format!("RLOCK.ACQUIRE {key} reader:{reader} READ"));
                }
            }
            client.ask(flush);
        }
        until(10_000, || client.info_number("rlock", "rlock_locks") == 0);
        client.granted("RLOCK.ACQUIRE one ann");
        assert_eq!(client.info_number("rlock", "rlock_locks"), 1);
        client.ask("DEL one");
    }
}

#[test]
fn the_section_is_part_of_info_everything() {
    let server = Server::start();
    let mut client = server.client();
    for section in ["rlock", "everything", "modules"] {
        assert!(client.info(section, "rlock_acquired").is_some(), "INFO {section}");
    }
}

#[test]
fn a_replica_counts_its_locks() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE a ann LEASE 600000");
    client.granted("RLOCK.ACQUIRE b ann LEASE 600000");
    client.ask("RLOCK.RELEASE b ann");
    replica.until_in_sync_with(&primary);
    assert_eq!(replica.client().info_number("rlock", "rlock_locks"), 1);
}
