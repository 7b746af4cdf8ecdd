//! A lease that runs out while somebody waits: the grant follows the deadline at once, never before
//! it.

use std::time::{Duration, Instant};

use redis::Value;

use crate::support::{Client, Listener, Server, Waiter, integer, items, now_ms, spin_for, until};

/// Milliseconds from `deadline_ms` to now, of which there must not be fewer than none.
#[track_caller]
fn late_ms(deadline_ms: i64) -> i64 {
    let late_ms = now_ms() - deadline_ms;
    assert!(late_ms >= 0, "{} ms too early", -late_ms);
    late_ms
}

/// This machine is busy with other tests: the quicker half shows what the server does.
#[track_caller]
fn assert_prompt(mut all_late_ms: Vec<i64>) {
    all_late_ms.sort_unstable();
    assert!(all_late_ms[all_late_ms.len() / 2] <= 3, "late by {all_late_ms:?} ms");
}

#[test]
fn the_grant_follows_the_deadline_and_is_never_before_it() {
    let server = Server::with(&["hz", "1"]);
    let mut client = server.client();
    let mut all_late_ms = Vec::new();
    for round in 0..30 {
        // Whether the server sweeps makes no difference.
        client.ask(&format!("DEBUG SET-ACTIVE-EXPIRE {}", round % 2));
        client.granted(&format!("RLOCK.ACQUIRE door ann LEASE {}", 20 + round));
        let deadline_ms = client.deadline("door");
        let mut bob = Waiter::connect(&server);
        bob.say("RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
        bob.answer();
        all_late_ms.push(late_ms(deadline_ms));
        assert_eq!(client.shows("door"), "write: bob write 1");
        client.ask("RLOCK.RELEASE door bob");
    }
    assert_prompt(all_late_ms);
}

/// By a clock that is finer than the server's milliseconds.
#[test]
fn a_lease_lasts_no_less_than_was_asked_for_and_no_more_than_that_is_said() {
    let server = Server::start();
    let mut client = server.client();
    let mut bob = Waiter::connect(&server);
    for lease_ms in 20..60 {
        let began = Instant::now();
        let line = format!("RLOCK.ACQUIRE door ann LEASE {lease_ms} WITHTTL");
        assert_eq!(integer(&items(&client.ask(&line))[1]), lease_ms);
        assert!(client.number("PTTL door") <= lease_ms);
        assert!(client.lock("door").hold("ann", "write").ttl_ms <= lease_ms);
        bob.say("RLOCK.ACQUIRE door bob BLOCK 0");
        bob.granted();
        let lasted_us = began.elapsed().as_micros();
        assert!(lasted_us >= lease_ms as u128 * 1000, "{lasted_us} us of {lease_ms} ms");
        client.ask("RLOCK.RELEASE door bob");
    }
}

#[test]
fn a_writer_enters_when_the_last_of_the_readers_ends() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    let mut listener = Listener::to(&server);
    for (owner, lease_ms) in [("r1", 40), ("r2", 120), ("r3", 80)] {
        client.granted(&format!("RLOCK.ACQUIRE door {owner} READ LEASE {lease_ms}"));
    }
    let deadline_ms = client.deadline("door");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    bob.granted();
    late_ms(deadline_ms);
    let mut events = listener.heard_after_a_turn(&mut client);
    assert_eq!(events.pop().unwrap(), "rlock.acquired door");
    let expired = events.iter().filter(|event| *event == "rlock.expired door").count();
    assert_eq!((expired, events.len()), (3, 6), "{events:?}");
    assert_eq!(client.counted("expired"), 3);
}

#[test]
fn an_upgrader_enters_when_the_last_of_the_other_readers_ends() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door r1 READ LEASE 60");
    client.granted("RLOCK.ACQUIRE door r2 READ LEASE 120");
    let deadline_ms = client.deadline("door");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 600000");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let mut ann = Waiter::parked(&server, "RLOCK.ACQUIRE door ann UPGRADE BLOCK 0");
    ann.granted();
    late_ms(deadline_ms);
    assert_eq!(client.shows("door"), "write: ann write 1, ann read 1");
    bob.still_waits(&mut client);
}

#[test]
fn all_readers_at_the_head_enter_when_the_writer_ends() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 150");
    let deadline_ms = client.deadline("door");
    let mut readers = ["r1", "r2", "r3"]
        .map(|owner| Waiter::parked(&server, &format!("RLOCK.ACQUIRE door {owner} READ BLOCK 0")));
    for reader in &mut readers {
        reader.granted();
        late_ms(deadline_ms);
    }
    assert_eq!(client.shows("door"), "read: r1 read 1, r2 read 1, r3 read 1");
}

#[test]
fn a_ticket_has_its_turn_when_the_lease_ends() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    let mut listener = Listener::to(&server);
    client.granted("RLOCK.ACQUIRE door ann LEASE 60");
    let deadline_ms = client.deadline("door");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    for event in ["rlock.acquired door", "rlock.expired door", "rlock.turn:bob door"] {
        assert_eq!(listener.next_event(), event);
    }
    late_ms(deadline_ms);
    client.granted("RLOCK.ACQUIRE door bob");
}

#[test]
fn each_hold_that_ends_while_somebody_waits_says_so_exactly_once() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    let mut listener = Listener::to(&server);
    client.granted("RLOCK.ACQUIRE door ann LEASE 40");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 80");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob LEASE 60 BLOCK 0");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid LEASE 30 BLOCK 0");
    bob.granted();
    cid.granted();
    until(10_000, || client.number("EXISTS door") == 0);
    let events = listener.heard_after_a_turn(&mut client);
    let count = |name: &str| events.iter().filter(|event| *event == name).count();
    assert_eq!((count("rlock.acquired door"), count("rlock.expired door")), (4, 4), "{events:?}");
    assert_eq!(events.len(), 8);
    assert_eq!(client.counted("expired"), 4);
}

#[test]
fn while_somebody_waits_the_key_lives_at_most_a_second_beyond_its_deadline() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    let before_ms = client.key_ends_at("door");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let ends_ms = client.key_ends_at("door");
    assert!((before_ms + 1..=before_ms + 1_000).contains(&ends_ms), "{ends_ms}");
    assert!(client.lock("door").hold("ann", "write").ttl_ms <= 60_000);
    client.ask(&format!("CLIENT UNBLOCK {}", bob.id()));
    bob.refused();
    until(5_000, || client.key_ends_at("door") == before_ms);
}

#[test]
fn the_key_stays_in_place_when_the_lock_is_handed_over() {
    let server = Server::with(&["notify-keyspace-events", "KEA"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 100");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob LEASE 100 BLOCK 0");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid LEASE 600000 BLOCK 0");
    let mut listener = Listener::to(&server);
    bob.granted();
    cid.granted();
    let heard = listener.heard_raw(&mut client);
    let others = heard.iter().filter(|(channel, what)| {
        let is_of_key = channel == "__keyspace@0__:door";
        is_of_key && ["del", "expired", "new"].contains(&what.as_str())
    });
    assert_eq!(others.count(), 0, "{heard:?}");
}

#[test]
fn a_renewal_puts_the_grant_off() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 100");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.ask("RLOCK.RENEW door ann LEASE 400");
    let deadline_ms = now_ms() + client.lock("door").hold("ann", "write").ttl_ms - 1;
    bob.granted();
    late_ms(deadline_ms);
    let error = client.error("RLOCK.RELEASE door ann");
    assert!(error.starts_with("NOTHELD "), "{error}");
}

#[test]
fn leases_of_many_locks_end_each_at_its_time() {
    let server = Server::start();
    let mut client = server.client();
    let mut all: Vec<(i64, Waiter)> = (0..40)
        .map(|number| {
            let lease_ms = 1500 + (number * 37) % 200;
            client.granted(&format!("RLOCK.ACQUIRE lock{number} ann LEASE {lease_ms}"));
            let deadline_ms = client.deadline(&format!("lock{number}"));
            let line = format!("RLOCK.ACQUIRE lock{number} bob BLOCK 0");
            (deadline_ms, Waiter::parked(&server, &line))
        })
        .collect();
    all.sort_by_key(|(deadline_ms, _)| *deadline_ms);
    let mut all_late_ms = Vec::new();
    for (deadline_ms, waiter) in &mut all {
        assert!(matches!(waiter.answer(), Value::Int(_)));
        all_late_ms.push(late_ms(*deadline_ms));
    }
    assert_prompt(all_late_ms);
}

#[test]
fn what_readers_of_the_state_see_is_over_at_the_deadline_not_at_the_grant() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 60");
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
    // Nothing is granted in a pause, but the lease ends in it.
    client.ask("CLIENT PAUSE 600000 WRITE");
    until(5_000, || client.shows("door") == "free:");
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 0);
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 0);
    client.ask("CLIENT UNPAUSE");
    until(5_000, || client.shows("door") == "write: bob write 1");
}

/// Somebody else's command at the lock does not see what is over either.
#[test]
fn a_command_that_comes_right_after_the_deadline_finds_the_next_one_inside() {
    let server = Server::start();
    let mut client: Client = server.client();
    for _ in 0..30 {
        client.granted("RLOCK.ACQUIRE door ann LEASE 15");
        let deadline_ms = client.deadline("door");
        let mut bob = Waiter::connect(&server);
        bob.say("RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
        until(5_000, || now_ms() >= deadline_ms);
        client.refused("RLOCK.ACQUIRE door eve");
        bob.granted();
        client.ask("RLOCK.RELEASE door bob");
    }
}

#[test]
fn a_lease_that_ends_in_the_very_moment_in_which_the_wait_begins_is_no_harm() {
    let server = Server::start();
    let (mut ann, mut bob) = (server.client(), server.client());
    for round in 0..1_500_u64 {
        ann.granted("RLOCK.ACQUIRE door ann LEASE 1");
        spin_for(Duration::from_micros(round * 7919 % 2_200));
        bob.granted("RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
        assert_eq!(bob.number("RLOCK.RELEASE door bob"), 0);
    }
    assert_eq!(ann.counted("expired"), 1_500);
    assert_eq!(ann.gauges(), (0, 0, 0));
}
