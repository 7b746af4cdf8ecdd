//! A lease that runs out while somebody waits: the grant follows the deadline at once, never before
//! it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::Value;

use rlock_testkit::{
    Client, Lateness, Listener, LockView, Server, Waiter, integer, items, now_ms, spin_for,
    time_ms, time_us, until,
};

/// The milliseconds from `deadline_ms` to now, which must not be negative.
#[track_caller]
fn late_ms(deadline_ms: i64) -> i64 {
    let late_ms = now_ms() - deadline_ms;
    assert!(late_ms >= 0, "{} ms too early", -late_ms);
    late_ms
}

/// Has ann hold `door` with this lease. Returns its deadline.
#[track_caller]
fn ann_holds(client: &mut Client, lease_ms: u64) -> i64 {
    let line = format!("RLOCK.ACQUIRE door ann LEASE {lease_ms}");
    let replies = client.all(&[&line, "PEXPIRETIME door"]);
    client.deadline_of(integer(&replies[1]))
}

/// zed holds `door`, and these wait for it in this order: so ann's lease begins when zed releases
/// it.
fn behind_zed<const N: usize>(server: &Server, waiters: [&str; N]) -> [Waiter; N] {
    server.client().granted("RLOCK.ACQUIRE door zed LEASE 600000");
    waiters.map(|words| Waiter::parked(server, &format!("RLOCK.ACQUIRE door {words} BLOCK 0")))
}

#[test]
fn the_grant_follows_the_deadline_and_is_never_before_it() {
    let server = Server::with(&["hz", "1"]);
    let mut client = server.client();
    let mut lateness = Lateness::default();
    for round in 0..30 {
        // Whether the server sweeps makes no difference.
        client.ask(&format!("DEBUG SET-ACTIVE-EXPIRE {}", round % 2));
        let mut bob = Waiter::connect(&server);
        let deadline_ms = ann_holds(&mut client, 20 + round);
        bob.say("RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
        bob.answer();
        lateness.add(1_000 * late_ms(deadline_ms).unsigned_abs() as u128);
        lateness.compare(&mut client);
        assert_eq!(client.shows("door"), "write: bob write 1");
        client.ask("RLOCK.RELEASE door bob");
    }
    lateness.assert_prompt();
}

/// Measured with a clock that is finer than the server's milliseconds.
#[test]
fn a_lease_lasts_no_less_than_was_asked_for_and_no_more_than_that_is_said() {
    let server = Server::start();
    let mut client = server.client();
    let mut bob = Waiter::connect(&server);
    for lease_ms in 20..60 {
        let began = Instant::now();
        let line = format!("RLOCK.ACQUIRE door ann LEASE {lease_ms} WITHTTL");
        let replies = client.all(&[&line, "PTTL door", "RLOCK.INFO door"]);
        assert_eq!(integer(&items(&replies[0])[1]), lease_ms);
        // On a server that may expire a key within its last millisecond, the key's expiry is one
        // millisecond later.
        let longer_ms = 1 - client.deadline_of(0);
        assert!(integer(&replies[1]) <= lease_ms + longer_ms);
        assert!(LockView::read(&replies[2]).holds.iter().all(|hold| hold.ttl_ms <= lease_ms));
        bob.say("RLOCK.ACQUIRE door bob BLOCK 0");
        bob.granted();
        let lasted_us = began.elapsed().as_micros();
        assert!(lasted_us >= lease_ms as u128 * 1000, "{lasted_us} us of {lease_ms} ms");
        client.ask("RLOCK.RELEASE door bob");
    }
}

/// Nobody waits, so the server's own expiry ends them; this is repeated, so that it finds many in
/// their last millisecond.
#[test]
fn the_server_ends_no_lease_before_its_deadline() {
    let server = Server::with(&["notify-keyspace-events", "KEd", "hz", "500"]);
    let mut client = server.client();
    let mut listener = Listener::to(&server);
    let mut deadlines = HashMap::new();
    for number in 0..6_000 {
        let lease_ms = 1_500 + number * 7 % 1_500;
        let line = format!("RLOCK.ACQUIRE lock{number} ann LEASE {lease_ms}");
        let replies = client.all(&["TIME", &line]);
        let earliest_ms = (time_us(&replies[0]) + 999) / 1_000 + lease_ms;
        deadlines.insert(format!("rlock.expired lock{number}"), earliest_ms);
    }
    while !deadlines.is_empty() {
        let event = listener.next_event();
        if let Some(deadline_ms) = deadlines.remove(&event) {
            late_ms(deadline_ms);
        }
    }
}

#[test]
fn a_writer_enters_when_the_last_of_the_readers_ends() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    let mut listener = Listener::to(&server);
    let mut bob = Waiter::connect(&server);
    let replies = client.all(&[
        "RLOCK.ACQUIRE door r1 READ LEASE 200",
        "RLOCK.ACQUIRE door r2 READ LEASE 400",
        "RLOCK.ACQUIRE door r3 READ LEASE 300",
        "PEXPIRETIME door",
    ]);
    bob.say("RLOCK.ACQUIRE door bob BLOCK 0");
    bob.granted();
    late_ms(client.deadline_of(integer(&replies[3])));
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
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 600000");
    let mut bob = Waiter::connect(&server);
    let mut ann = Waiter::connect(&server);
    let replies = client.all(&[
        "RLOCK.ACQUIRE door r1 READ LEASE 200",
        "RLOCK.ACQUIRE door r2 READ LEASE 400 WITHTTL",
        "TIME",
    ]);
    bob.park(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    ann.say("RLOCK.ACQUIRE door ann UPGRADE BLOCK 0");
    ann.granted();
    late_ms(time_ms(&replies[2]) + integer(&items(&replies[1])[1]) - 1);
    assert_eq!(client.shows("door"), "write: ann write 1, ann read 1");
    bob.still_waits(&mut client);
}

#[test]
fn all_readers_at_the_head_enter_when_the_writer_ends() {
    let server = Server::start();
    let mut client = server.client();
    let mut readers = ["r1", "r2", "r3"].map(|owner| (owner, Waiter::connect(&server)));
    let deadline_ms = ann_holds(&mut client, 300);
    for (owner, reader) in &mut readers {
        reader.say(&format!("RLOCK.ACQUIRE door {owner} READ BLOCK 0"));
    }
    for (_, reader) in &mut readers {
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
    let replies = client.all(&[
        "RLOCK.ACQUIRE door ann LEASE 200",
        "PEXPIRETIME door",
        "RLOCK.ACQUIRE door bob QUEUE 60000",
    ]);
    assert_eq!(replies[2], Value::Nil);
    for event in ["rlock.acquired door", "rlock.expired door", "rlock.turn:bob door"] {
        assert_eq!(listener.next_event(), event);
    }
    late_ms(client.deadline_of(integer(&replies[1])));
    client.granted("RLOCK.ACQUIRE door bob");
}

#[test]
fn each_hold_that_ends_while_somebody_waits_says_so_exactly_once() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    let mut listener = Listener::to(&server);
    let (mut bob, mut cid) = (Waiter::connect(&server), Waiter::connect(&server));
    client.all(&["RLOCK.ACQUIRE door ann LEASE 200", "RLOCK.ACQUIRE door ann READ LEASE 240"]);
    bob.say("RLOCK.ACQUIRE door bob LEASE 60 BLOCK 0");
    cid.say("RLOCK.ACQUIRE door cid LEASE 30 BLOCK 0");
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
fn the_key_ends_with_its_lock_when_the_last_who_waited_upgrades() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 60000");
    let ends_ms = client.key_ends_at("door");
    let mut ann = Waiter::connect(&server);
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 1000");
    ann.park(&server, "RLOCK.ACQUIRE door ann LEASE 2000 UPGRADE BLOCK 0");
    assert_eq!(client.key_ends_at("door"), ends_ms + 1000);
    client.ask("RLOCK.RELEASE door bob");
    ann.granted();
    assert_eq!(client.key_ends_at("door"), ends_ms);
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
    let waiters = ["ann LEASE 100", "bob LEASE 100", "cid LEASE 600000"];
    let [mut ann, mut bob, mut cid] = behind_zed(&server, waiters);
    let mut listener = Listener::to(&server);
    client.ask("RLOCK.RELEASE door zed");
    ann.granted();
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
    let [_ann, mut bob] = behind_zed(&server, ["ann LEASE 300", "bob"]);
    let replies = client.all(&[
        "RLOCK.RELEASE door zed",
        "RLOCK.RENEW door ann LEASE 800",
        "TIME",
        "RLOCK.INFO door",
    ]);
    let ttl_ms = LockView::read(&replies[3]).hold("ann", "write").ttl_ms;
    assert!(ttl_ms > 300, "{ttl_ms}");
    bob.granted();
    late_ms(time_ms(&replies[2]) + ttl_ms - 1);
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
    let mut lateness = Lateness::default();
    for (deadline_ms, waiter) in &mut all {
        assert!(matches!(waiter.answer(), Value::Int(_)));
        lateness.add(1_000 * late_ms(*deadline_ms).unsigned_abs() as u128);
    }
    (0..20).for_each(|_| lateness.compare(&mut client));
    lateness.assert_prompt();
}

#[test]
fn what_readers_of_the_state_see_is_over_at_the_deadline_not_at_the_grant() {
    let server = Server::start();
    let mut client = server.client();
    let [mut ann, _bob] = behind_zed(&server, ["ann LEASE 200", "bob LEASE 600000"]);
    // Nothing is granted in a pause, but the lease ends in it.
    client.all(&["RLOCK.RELEASE door zed", "CLIENT PAUSE 600000 WRITE"]);
    let token = integer(&ann.answer());
    until(5_000, || client.shows("door") == "free:");
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 0);
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 0);
    client.ask("CLIENT UNPAUSE");
    until(5_000, || client.shows("door") == "write: bob write 1");
}

/// Another client's command at the lock does not see an expired hold, either.
#[test]
fn a_command_that_comes_right_after_the_deadline_finds_the_next_one_inside() {
    let server = Server::start();
    let mut client: Client = server.client();
    for _ in 0..30 {
        let mut bob = Waiter::connect(&server);
        let deadline_ms = ann_holds(&mut client, 15);
        bob.say("RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
        // Before eve in any case, however busy the machine is.
        until(5_000, || bob.has_reply() || !client.queue("door").is_empty());
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
