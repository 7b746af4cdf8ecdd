//! `RLOCK.ACQUIRE`: who gets the lock, for how long, and what asking again does.

use std::time::{Duration, Instant};

use redis::Value;

use rlock_testkit::{Client, LEASE_MS_MAX, Server, TOKEN_END, integer, items, spin_for, until};

#[test]
fn a_free_lock_is_granted_with_a_token_near_the_unix_time_in_microseconds() {
    let server = Server::start();
    let mut client = server.client();
    let before_us = now_us();
    let token = client.granted("RLOCK.ACQUIRE door ann");
    let ahead_us_max = 60_000_000;
    assert!((before_us..before_us + ahead_us_max).contains(&token));
    assert!(token < TOKEN_END);
    assert_eq!(client.shows("door"), "write: ann write 1");
    assert_eq!(client.text("TYPE door"), "rlock-key");
}

#[test]
fn a_stranger_is_refused_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let before = client.dump("door");
    let key_ends_at = client.key_ends_at("door");
    client.refused("RLOCK.ACQUIRE door bob");
    client.refused("RLOCK.ACQUIRE door bob READ LEASE 600000");
    assert_eq!(client.dump("door"), before);
    assert_eq!(client.key_ends_at("door"), key_ends_at);
}

#[test]
fn locks_at_different_keys_and_in_different_databases_know_nothing_of_each_other() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE gate bob");
    client.ask("SELECT 1");
    client.granted("RLOCK.ACQUIRE door bob");
    assert_eq!(client.shows("door"), "write: bob write 1");
    client.ask("SELECT 0");
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn entering_again_adds_a_level_and_keeps_the_token_on_any_connection() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.granted("RLOCK.ACQUIRE door ann");
    assert_eq!(client.granted("RLOCK.ACQUIRE door ann"), token);
    let mut other = server.client();
    assert_eq!(other.granted("RLOCK.ACQUIRE door ann WRITE"), token);
    assert_eq!(client.shows("door"), "write: ann write 3");
}

#[test]
fn entering_again_extends_the_deadline_and_never_shortens_it() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    let key_ends_at = client.key_ends_at("door");
    client.granted("RLOCK.ACQUIRE door ann LEASE 1");
    assert_eq!(client.key_ends_at("door"), key_ends_at);
    assert!(client.lock("door").hold("ann", "write").ttl_ms > 30_000);
    client.granted("RLOCK.ACQUIRE door ann LEASE 120000");
    assert!(client.key_ends_at("door") >= key_ends_at + 60_000);
    assert!(client.lock("door").hold("ann", "write").ttl_ms > 90_000);
}

#[test]
fn without_a_lease_the_configured_one_holds_but_never_more_than_the_maximum() {
    let server = Server::start();
    let mut client = server.client();
    let mut lease_ms_of = |setting: &str, key: &str| {
        client.ask(&format!("CONFIG SET {setting}"));
        let reply = client.ask(&format!("RLOCK.ACQUIRE {key} ann WITHTTL"));
        integer(&items(&reply)[1])
    };
    let as_shipped = lease_ms_of("rlock.default-lease-ms 30000", "a");
    assert!((20_000..=30_000).contains(&as_shipped), "{as_shipped}");
    let as_set = lease_ms_of("rlock.default-lease-ms 90000", "b");
    assert!((80_000..=90_000).contains(&as_set), "{as_set}");
    let at_most = lease_ms_of("rlock.max-lease-ms 40000", "c");
    assert!((30_000..=40_000).contains(&at_most), "{at_most}");
}

#[test]
fn a_lease_is_from_one_millisecond_to_the_configured_maximum() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE short ann LEASE 1");
    client.granted(&format!("RLOCK.ACQUIRE long ann LEASE {LEASE_MS_MAX}"));
    for lease in [0, LEASE_MS_MAX + 1] {
        let error = client.error(&format!("RLOCK.ACQUIRE door ann LEASE {lease}"));
        assert!(error.starts_with("ERR ") && error.contains("LEASE"), "{error}");
    }
    client.ask("CONFIG SET rlock.max-lease-ms 10000");
    client.granted("RLOCK.ACQUIRE gate ann LEASE 10000");
    let error = client.error("RLOCK.ACQUIRE door ann LEASE 10001");
    assert!(error.contains("LEASE") && error.contains("10000"), "{error}");
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn the_key_lives_as_long_as_the_latest_deadline_in_it() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 20000");
    let first = client.key_ends_at("door");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 70000");
    let latest = client.key_ends_at("door");
    assert!((50_000..60_000).contains(&(latest - first)));
    client.granted("RLOCK.ACQUIRE door cid READ LEASE 40000");
    assert_eq!(client.key_ends_at("door"), latest);
    client.ask("RLOCK.RELEASE door bob");
    assert!((10_000..30_000).contains(&(client.key_ends_at("door") - first)));
}

#[test]
fn a_lease_ends_the_hold_at_its_deadline_and_not_before() {
    let server = Server::start();
    let mut client = server.client();
    for server_sweeps in ["1", "0"] {
        client.ask(&format!("DEBUG SET-ACTIVE-EXPIRE {server_sweeps}"));
        let began = Instant::now();
        let token = client.granted("RLOCK.ACQUIRE door ann LEASE 60");
        until(5_000, || client.shows("door") == "free:");
        // The server's clock may be a millisecond behind when it begins to count.
        assert!(began.elapsed() >= Duration::from_millis(59));
        assert_eq!(client.number("RLOCK.HOLDS door ann"), 0);
        assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 0);
        let next = client.granted("RLOCK.ACQUIRE door bob");
        assert!(next > token);
        assert_eq!(client.shows("door"), "write: bob write 1");
        client.ask("RLOCK.RELEASE door bob");
    }
}

#[test]
fn an_owner_that_returns_after_its_deadline_has_a_new_hold() {
    let server = Server::start();
    let mut client = server.client();
    let old = client.granted("RLOCK.ACQUIRE door ann LEASE 30");
    client.granted("RLOCK.ACQUIRE door ann LEASE 30");
    until(5_000, || client.shows("door") == "free:");
    let new = client.granted("RLOCK.ACQUIRE door ann");
    assert!(new > old);
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn with_ttl_a_grant_says_what_is_left_of_that_mode() {
    let server = Server::start();
    let mut client = server.client();
    let reply = client.ask("RLOCK.ACQUIRE door ann LEASE 60000 WITHTTL");
    let token = integer(&items(&reply)[0]);
    assert!((50_000..=60_000).contains(&integer(&items(&reply)[1])));
    let again = client.ask("RLOCK.ACQUIRE door ann LEASE 5 WITHTTL");
    assert_eq!(integer(&items(&again)[0]), token);
    assert!((50_000..=60_000).contains(&integer(&items(&again)[1])));
    let read = client.ask("RLOCK.ACQUIRE door ann READ LEASE 9000 WITHTTL");
    assert!((1..=9_000).contains(&integer(&items(&read)[1])));
}

#[test]
fn with_ttl_a_refusal_says_when_the_latest_deadline_in_the_way_is_over() {
    let server = Server::start();
    let mut client = server.client();
    let in_the_way_ms = |reply: &Value| {
        assert_eq!(items(reply)[0], Value::Nil, "{reply:?}");
        integer(&items(reply)[1])
    };
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 60000");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 9000");
    let ms = in_the_way_ms(&client.ask("RLOCK.ACQUIRE door cid WRITE WITHTTL"));
    assert!((50_000..=60_001).contains(&ms), "{ms}");
    // An upgrader's own READ is not in its way.
    let ms = in_the_way_ms(&client.ask("RLOCK.ACQUIRE door ann UPGRADE WITHTTL"));
    assert!((1..=9_001).contains(&ms), "{ms}");
}

#[test]
fn who_waits_as_long_as_a_refusal_says_is_not_refused_again() {
    let server = Server::start();
    let mut client = server.client();
    let (mut seen, mut round) = (0, 0);
    while seen < 40 {
        round += 1;
        assert!(round < 1_000, "never refused");
        client.granted(&format!("RLOCK.ACQUIRE door ann LEASE {}", 20 + round % 40));
        // At any point within a millisecond of the server.
        spin_for(Duration::from_micros(100 * (round % 40)));
        let reply = client.ask("RLOCK.ACQUIRE door bob WITHTTL");
        // On a busy machine, the lease may have expired by then.
        if items(&reply)[0] == Value::Nil {
            let ms = integer(&items(&reply)[1]);
            spin_for(Duration::from_millis(ms.unsigned_abs()));
            client.granted("RLOCK.ACQUIRE door bob");
            seen += 1;
        }
        client.ask("RLOCK.RELEASE door bob");
    }
}

#[test]
fn options_come_in_any_order_and_any_case() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("RLOCK.ACQUIRE a ann READ LEASE 60000 DEPTH 1 UPGRADE WITHTTL");
    client.ask("rlock.acquire b ann withttl upgrade depth 1 lease 60000 read");
    client.ask("Rlock.Acquire c ann dEPTh 1 wIthtTL rEAd UpGrade LeAsE 60000");
    for key in ["a", "b", "c"] {
        assert_eq!(client.shows(key), "read: ann read 1");
        assert!(client.lock(key).hold("ann", "read").ttl_ms > 50_000);
    }
}

#[test]
fn an_option_given_twice_is_a_syntax_error_and_grants_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let twice = [
        "LEASE 1000 LEASE 1000",
        "READ READ",
        "WRITE WRITE",
        "READ WRITE",
        "WRITE LEASE 1000 READ",
        "DEPTH 1 DEPTH 1",
        "WITHTTL WITHTTL",
        "UPGRADE UPGRADE",
        "lease 1000 withttl LEASE 1000",
    ];
    for options in twice {
        let error = client.error(&format!("RLOCK.ACQUIRE door ann {options}"));
        assert!(error.starts_with("ERR "), "{options}: {error}");
    }
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn a_request_with_a_depth_may_be_sent_again() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.granted("RLOCK.ACQUIRE door ann DEPTH 1");
    for _ in 0..2 {
        assert_eq!(client.granted("RLOCK.ACQUIRE door ann DEPTH 1"), token);
        assert_eq!(client.shows("door"), "write: ann write 1");
    }
    for _ in 0..3 {
        assert_eq!(client.granted("RLOCK.ACQUIRE door ann DEPTH 2"), token);
        assert_eq!(client.shows("door"), "write: ann write 2");
    }
    assert_eq!(client.granted("RLOCK.ACQUIRE door ann DEPTH 1"), token);
    assert_eq!(client.shows("door"), "write: ann write 2");
}

#[test]
fn a_request_with_a_depth_that_is_reached_only_extends_the_deadline() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann DEPTH 1 LEASE 60000");
    let before = client.dump("door");
    client.granted("RLOCK.ACQUIRE door ann DEPTH 1 LEASE 1000");
    assert_eq!(client.dump("door"), before);
    client.granted("RLOCK.ACQUIRE door ann DEPTH 1 LEASE 600000");
    assert!(client.lock("door").hold("ann", "write").ttl_ms > 500_000);
}

#[test]
fn a_depth_is_at_most_one_more_than_the_present_one() {
    let server = Server::start();
    let mut client = server.client();
    let gone = client.error("RLOCK.ACQUIRE door ann DEPTH 2");
    assert!(gone.starts_with("NOTHELD "), "{gone}");
    assert_eq!(client.number("EXISTS door"), 0);
    client.granted("RLOCK.ACQUIRE door ann DEPTH 1");
    let before = client.dump("door");
    let error = client.error("RLOCK.ACQUIRE door ann DEPTH 3 LEASE 600000");
    assert!(error.starts_with("ERR ") && error.contains("DEPTH"), "{error}");
    assert_eq!(client.dump("door"), before);
    // Each mode has its own depth.
    client.granted("RLOCK.ACQUIRE door ann DEPTH 2");
    client.granted("RLOCK.ACQUIRE door ann READ DEPTH 1");
    assert_eq!(client.shows("door"), "write: ann write 2, ann read 1");
}

#[test]
fn of_many_clients_at_once_one_holds() {
    for io_threads in ["1", "4"] {
        let server = Server::with(&["io-threads", io_threads]);
        server.client().ask("SET room 0");
        std::thread::scope(|scope| {
            for worker in 0..6 {
                let mut client = server.client();
                scope.spawn(move || take_turns(&mut client, worker));
            }
        });
        // Each of them read the number and wrote back one more, which only the lock makes safe.
        assert_eq!(server.client().text("GET room"), "180");
    }
}

fn take_turns(client: &mut Client, worker: usize) {
    let mut last = 0;
    for _ in 0..30 {
        let acquire = format!("RLOCK.ACQUIRE door worker:{worker} LEASE 600000");
        let mut token = 0;
        until(60_000, || {
            let reply = client.ask(&acquire);
            token = if reply == Value::Nil { 0 } else { integer(&reply) };
            token != 0
        });
        assert!(token > last, "{token} after {last}");
        last = token;
        let count: i64 = client.text("GET room").parse().unwrap();
        client.ask(&format!("SET room {}", count + 1));
        assert_eq!(client.number(&format!("RLOCK.RELEASE door worker:{worker}")), 0);
    }
}

fn now_us() -> i64 {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    i64::try_from(since_1970.as_micros()).unwrap()
}
