//! The waiters, as an operator sees them: `RLOCK.INFO`, `RLOCK.QUEUES`, `INFO rlock`.

use redis::Value;

use rlock_testkit::{Client, Server, Waiter, flat_map, integer, items, text, until};

fn held() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    (server, client)
}

#[test]
fn info_shows_each_waiter_with_its_mode_its_kind_and_its_time() {
    let (server, mut client) = held();
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob READ BLOCK 60000");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 50000");
    let _dan = Waiter::parked(&server, "RLOCK.ACQUIRE door dan BLOCK 0");
    assert_eq!(client.queue("door"), "bob read block, cid write queue, dan write block");
    let waiters = client.waiters("door");
    assert!((30_000..=60_000).contains(&waiters[0].left_ms), "{waiters:?}");
    assert!((30_000..=50_000).contains(&waiters[1].left_ms), "{waiters:?}");
    assert_eq!(waiters[2].left_ms, -1);
    until(5_000, || client.waiters("door")[0].waited_ms >= 20);
    let waiters = client.waiters("door");
    assert!(waiters[0].waited_ms >= waiters[2].waited_ms, "{waiters:?}");
    assert!(waiters[0].waited_ms < 20_000, "{waiters:?}");
}

#[test]
fn a_ticket_that_becomes_a_blocked_wait_has_waited_from_the_beginning() {
    let (server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    until(5_000, || client.waiters("door")[0].waited_ms >= 30);
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    assert!(client.waiters("door")[0].waited_ms >= 30);
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    assert!(client.waiters("door")[0].waited_ms >= 30);
}

#[test]
fn info_shows_the_first_ten_unless_told_otherwise() {
    let (_server, mut client) = held();
    for number in 0..30 {
        client.refused(&format!("RLOCK.ACQUIRE door w{number} QUEUE 60000"));
    }
    let mut shown = |words: &str| {
        let reply = client.ask(&format!("RLOCK.INFO door {words}"));
        let fields = flat_map(&reply);
        assert_eq!(integer(&fields["queue-length"]), 30);
        let waiters = items(&fields["waiters"]).iter().map(flat_map);
        let owners: Vec<String> = waiters.map(|waiter| text(&waiter["owner"])).collect();
        let in_order = owners.iter().enumerate().all(|(at, owner)| *owner == format!("w{at}"));
        assert!(in_order, "{owners:?}");
        owners.len()
    };
    assert_eq!(shown(""), 10);
    for (words, count) in [("WAITERS 0", 0), ("WAITERS 1", 1), ("waiters 30", 30)] {
        assert_eq!(shown(words), count, "{words}");
    }
    assert_eq!(shown("WAITERS 10000"), 30);
    for bad in ["-1", "1000001", "x", ""] {
        let error = client.error(&format!("RLOCK.INFO door WAITERS {bad}"));
        assert!(error.contains("WAITERS") && error.contains("from 0 to 10000"), "{error}");
    }
}

#[test]
fn info_in_resp3_is_a_map_of_maps() {
    let (server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    let reply = server.client_resp3().ask("RLOCK.INFO door");
    let Value::Map(_) = reply else { panic!("{reply:?}") };
    let fields = flat_map(&reply);
    assert!(matches!(items(&fields["waiters"])[0], Value::Map(_)));
    assert!(matches!(items(&fields["holders"])[0], Value::Map(_)));
    assert_eq!(integer(&fields["queue-length"]), 1);
}

#[test]
fn a_lock_that_is_kept_for_a_turn_shows_free_and_whose_turn_it_is() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(client.shows("door"), "free:");
    assert_eq!(client.number("EXISTS door"), 0);
    assert_eq!(client.queue("door"), "bob write queue turn");
}

/// `RLOCK.QUEUES` as `key length`.
fn queues(client: &mut Client, words: &str) -> Vec<String> {
    let reply = client.ask(&format!("RLOCK.QUEUES {words}"));
    let rows = items(&reply).iter().map(|row| {
        let row = items(row);
        assert_eq!(row.len(), 3);
        assert!(integer(&row[2]) >= 0, "{row:?}");
        format!("{} {}", text(&row[0]), integer(&row[1]))
    });
    rows.collect()
}

#[test]
fn queues_are_listed_longest_first() {
    let (server, mut client) = held();
    assert_eq!(queues(&mut client, ""), [""; 0]);
    for (key, length) in [("one", 1), ("three", 3), ("two", 2)] {
        client.granted(&format!("RLOCK.ACQUIRE {key} ann LEASE 600000"));
        for number in 0..length {
            client.refused(&format!("RLOCK.ACQUIRE {key} w{number} QUEUE 60000"));
        }
    }
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE two bob BLOCK 0");
    let _cid = Waiter::parked(&server, "RLOCK.ACQUIRE three cid BLOCK 0");
    assert_eq!(queues(&mut client, ""), ["three 4", "two 3", "one 1"]);
    assert_eq!(queues(&mut client, "COUNT 2"), ["three 4", "two 3"]);
    client.ask(&format!("CLIENT UNBLOCK {}", bob.id()));
    bob.refused();
    client.ask("RLOCK.CANCEL one w0");
    assert_eq!(queues(&mut client, "count 1000"), ["three 4", "two 2"]);
    client.ask("SELECT 5");
    assert_eq!(queues(&mut client, ""), [""; 0]);
}

/// `INFO keyspace` does not name a database in which a lock is only reserved: it has no key.
#[test]
fn info_names_the_databases_in_which_somebody_waits() {
    let (server, mut client) = held();
    let named = |client: &mut Client| -> Vec<String> {
        let info = text(&client.ask("INFO rlock"));
        info.lines().filter(|line| line.contains("_queues_db")).map(str::to_owned).collect()
    };
    assert_eq!(named(&mut client), [""; 0]);
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.ask("SELECT 5");
    for key in ["one", "two"] {
        client.granted(&format!("RLOCK.ACQUIRE {key} ann"));
        client.refused(&format!("RLOCK.ACQUIRE {key} cid QUEUE 60000"));
        client.ask(&format!("RLOCK.RELEASE {key} ann"));
    }
    assert_eq!(client.info("keyspace", "db5"), None);
    assert_eq!(named(&mut client), ["rlock_queues_db0:1", "rlock_queues_db5:2"]);
    client.granted("RLOCK.ACQUIRE one cid");
    assert_eq!(named(&mut client), ["rlock_queues_db0:1", "rlock_queues_db5:1"]);
    client.ask("SWAPDB 5 6");
    client.ask("RLOCK.CANCEL two cid");
    client.ask("SELECT 0");
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    until(5_000, || named(&mut client).is_empty());
}

#[test]
fn queues_say_how_long_the_head_has_waited() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    until(5_000, || client.waiters("door")[0].waited_ms >= 40);
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    let reply = client.ask("RLOCK.QUEUES");
    let waited_ms = integer(&items(&items(&reply)[0])[2]);
    assert!((40..20_000).contains(&waited_ms), "{waited_ms}");
}

#[test]
fn queues_lists_ten_unless_told_otherwise() {
    let (_server, mut client) = held();
    for number in 0..25 {
        client.granted(&format!("RLOCK.ACQUIRE lock{number} ann"));
        client.refused(&format!("RLOCK.ACQUIRE lock{number} bob QUEUE 60000"));
    }
    assert_eq!(queues(&mut client, "").len(), 10);
    assert_eq!(queues(&mut client, "COUNT 1").len(), 1);
    assert_eq!(queues(&mut client, "COUNT 25").len(), 25);
    for bad in ["0", "1001", "x"] {
        let error = client.error(&format!("RLOCK.QUEUES COUNT {bad}"));
        assert!(error.contains("COUNT") && error.contains("from 1 to 1000"), "{error}");
    }
    assert!(client.error("RLOCK.QUEUES door").starts_with("ERR syntax error"));
}

#[test]
fn the_gauges_go_up_and_come_back_to_nothing() {
    let (server, mut client) = held();
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
    client.refused("RLOCK.ACQUIRE door dan QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door eve QUEUE 60000");
    let mut fay = Waiter::connect(&server);
    fay.number("RLOCK.ACQUIRE gate fay SESSION");
    fay.number("RLOCK.ACQUIRE wall fay SESSION");
    assert_eq!(client.gauges(), (2, 2, 2));
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    assert_eq!(client.gauges(), (1, 2, 2));
    drop((cid, fay));
    client.ask("RLOCK.CANCEL door eve");
    until(5_000, || client.gauges() == (0, 1, 0));
    client.ask("RLOCK.RELEASE door bob");
    client.granted("RLOCK.ACQUIRE door dan");
    assert_eq!(client.gauges(), (0, 0, 0));
    client.ask("RLOCK.RELEASE door dan");
    assert_eq!(client.counted("locks"), 0);
}

#[test]
fn the_totals_count_what_came_of_each_wait() {
    let (server, mut client) = held();
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.refused("RLOCK.ACQUIRE door cid BLOCK 30");
    client.refused("RLOCK.ACQUIRE door cid");
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    let mut session = Waiter::connect(&server);
    session.number("RLOCK.ACQUIRE gate dan SESSION");
    drop(session);
    until(5_000, || client.counted("disconnected") == 1);
    let _eve = Waiter::parked(&server, "RLOCK.ACQUIRE door eve BLOCK 0");
    client.granted("RLOCK.ACQUIRE wall eve");
    client.error("RLOCK.ACQUIRE wall bob BLOCK 0");
    let owed = [
        ("acquired", 4),
        ("handed_off", 1),
        ("timed_out", 1),
        ("refused", 1),
        ("released", 1),
        ("disconnected", 1),
        ("deadlocks", 1),
        ("deadlock_searches_given_up", 0),
        ("waiters", 1),
    ];
    for (name, count) in owed {
        assert_eq!(client.counted(name), count, "{name}");
    }
}

#[test]
fn the_waits_of_those_who_were_granted_are_counted_by_their_length() {
    let (server, mut client) = held();
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    until(5_000, || client.waiters("door")[0].waited_ms >= 120);
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    client.refused("RLOCK.ACQUIRE door cid BLOCK 5");
    assert_eq!(client.counted("wait_us_count"), 1);
    let waited_us = client.counted("wait_us_sum");
    assert!(waited_us >= 120_000, "{waited_us}");
    for bound in [100, 1_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 10_000_000] {
        let owed = i64::from(waited_us <= bound);
        assert_eq!(client.counted(&format!("wait_us_le_{bound}")), owed, "{waited_us}");
    }
    assert_eq!(client.counted("wait_us_le_inf"), 1);
}
