//! `BLOCK`: the connection waits in line, and the server hands the lock over in the very step that
//! frees it. First come, first served; readers that are neighbors enter together; nobody overtakes
//! anybody.

use std::time::Instant;

use redis::Value;

use rlock_testkit::{Client, Lateness, Server, Waiter, integer, items, until};

fn parked<const N: usize>(server: &Server, lines: [&str; N]) -> [Waiter; N] {
    lines.map(|line| Waiter::parked(server, &format!("RLOCK.ACQUIRE door {line}")))
}

#[test]
fn a_lock_that_is_let_go_belongs_to_the_first_in_line_in_the_same_step() {
    let server = Server::start();
    let mut client = server.client();
    let first = client.granted("RLOCK.ACQUIRE door ann");
    let [mut bob, mut cid] = parked(&server, ["bob BLOCK 0", "cid BLOCK 60000"]);
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
    assert_eq!(client.shows("door"), "write: bob write 1");
    let second = bob.granted();
    cid.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door bob");
    assert!(first < second && second < cid.granted());
    assert_eq!(client.shows("door"), "write: cid write 1");
    client.ask("RLOCK.RELEASE door cid");
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn an_inner_release_hands_nothing_over() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut bob] = parked(&server, ["bob BLOCK 0"]);
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 1);
    bob.still_waits(&mut client);
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
    bob.granted();
}

#[test]
fn a_free_lock_is_granted_without_waiting() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann BLOCK 0");
    client.granted("RLOCK.ACQUIRE door ann BLOCK 1");
    client.granted("RLOCK.ACQUIRE door ann READ BLOCK 0");
    assert_eq!(client.shows("door"), "write: ann write 2, ann read 1");
    assert_eq!(client.counted("handed_off"), 0);
}

#[test]
fn a_hundred_are_granted_in_the_order_in_which_they_came_one_command_and_one_wake_each() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let mut waiters: Vec<Waiter> = Vec::new();
    for number in 0..100 {
        waiters.push(Waiter::parked(&server, &format!("RLOCK.ACQUIRE door w{number} BLOCK 0")));
    }
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
    let mut last = 0;
    for number in 0..100 {
        let mut behind = waiters.split_off(1);
        let waiter = &mut waiters[0];
        let token = integer(&waiter.answer());
        assert!(token > last, "w{number}: {token} after {last}");
        last = token;
        assert!(behind.iter_mut().all(|waiter| !waiter.has_reply()), "not only w{number}");
        assert_eq!(waiter.number(&format!("RLOCK.RELEASE door w{number}")), 0);
        waiters = behind;
    }
    assert_eq!(calls(&mut client, "rlock.release"), 101);
    assert_eq!(calls(&mut client, "rlock.acquire"), 101);
    assert_eq!(client.counted("handed_off"), 100);
    assert_eq!(client.number("EXISTS door"), 0);
}

/// How often a command was called.
fn calls(client: &mut Client, command: &str) -> i64 {
    let line = client.info("commandstats", &format!("cmdstat_{command}")).unwrap();
    let calls = line.split(',').find_map(|field| field.strip_prefix("calls="));
    calls.unwrap().parse().unwrap()
}

#[test]
fn readers_that_stand_together_enter_together_and_a_writer_between_them_parts_them() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut r1, mut r2, mut w, mut r3, mut r4] = parked(
        &server,
        ["r1 READ BLOCK 0", "r2 READ BLOCK 0", "w BLOCK 0", "r3 READ BLOCK 0", "r4 READ BLOCK 0"],
    );
    client.ask("RLOCK.RELEASE door ann");
    r1.granted();
    r2.granted();
    assert_eq!(client.shows("door"), "read: r1 read 1, r2 read 1");
    assert_eq!(client.queue("door"), "w write block, r3 read block, r4 read block");
    client.ask("RLOCK.RELEASE door r1");
    w.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door r2");
    w.granted();
    r3.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door w");
    r3.granted();
    r4.granted();
    assert_eq!(client.shows("door"), "read: r3 read 1, r4 read 1");
}

#[test]
fn a_reader_behind_a_waiting_writer_waits_so_that_writers_do_not_starve() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    let [mut bob] = parked(&server, ["bob BLOCK 0"]);
    client.refused("RLOCK.ACQUIRE door cid READ");
    let [mut dan] = parked(&server, ["dan READ BLOCK 0"]);
    // An owner that holds the lock may enter again all the same.
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.ask("RLOCK.RELEASE door ann ALL");
    bob.granted();
    dan.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door bob");
    dan.granted();
}

#[test]
fn a_newcomer_never_passes_those_who_wait_not_even_in_the_step_of_the_release() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut bob] = parked(&server, ["bob BLOCK 0"]);
    let mut thief = Waiter::connect(&server);
    thief.say_all(&["RLOCK.RELEASE door ann", "RLOCK.ACQUIRE door ann"]);
    assert_eq!((thief.answer(), thief.answer()), (Value::Int(0), Value::Nil));
    bob.granted();
    let [mut cid] = parked(&server, ["cid READ BLOCK 0"]);
    thief.say_all(&["MULTI", "RLOCK.RELEASE door bob", "RLOCK.ACQUIRE door eve", "EXEC"]);
    (0..3).for_each(|_| drop(thief.answer()));
    assert_eq!(thief.answer(), Value::Array(vec![Value::Int(0), Value::Nil]));
    cid.granted();
    // Nobody waits anymore: a reader finds only readers.
    client.granted("RLOCK.ACQUIRE door fay READ");
}

#[test]
fn a_downgrade_lets_the_readers_in_and_nobody_else() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE door ann READ");
    let [mut bob, mut cid, mut dan] =
        parked(&server, ["bob READ BLOCK 0", "cid READ BLOCK 0", "dan BLOCK 0"]);
    assert_eq!(client.number("RLOCK.RELEASE door ann WRITE"), 0);
    bob.granted();
    cid.granted();
    assert_eq!(client.shows("door"), "read: ann read 1, bob read 1, cid read 1");
    dan.still_waits(&mut client);
    for owner in ["ann", "bob", "cid"] {
        client.ask(&format!("RLOCK.RELEASE door {owner}"));
    }
    dan.granted();
}

#[test]
fn a_second_connection_of_the_owner_enters_with_the_first_wherever_it_stands() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut bob, mut cid, mut bob_too] =
        parked(&server, ["bob BLOCK 0", "cid BLOCK 0", "bob BLOCK 0"]);
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(bob.granted(), bob_too.granted());
    assert_eq!(client.shows("door"), "write: bob write 2");
    cid.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door bob ALL");
    cid.granted();
}

#[test]
fn a_wait_that_becomes_a_re_entry_too_deep_is_told_so() {
    let server = Server::with(&["rlock.max-depth", "1"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut bob, mut bob_too, mut cid] =
        parked(&server, ["bob BLOCK 0", "bob BLOCK 0", "cid BLOCK 0"]);
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    assert!(bob_too.error().starts_with("TOOMANY "));
    assert_eq!(client.shows("door"), "write: bob write 1");
    client.ask("RLOCK.RELEASE door bob");
    cid.granted();
}

#[test]
fn a_parked_write_whose_owner_comes_to_read_stays_parked() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut reads, mut writes] = parked(&server, ["bob READ BLOCK 0", "bob BLOCK 0"]);
    client.ask("RLOCK.RELEASE door ann");
    reads.granted();
    writes.still_waits(&mut client);
    assert_eq!(client.shows("door"), "read: bob read 1");
    client.ask("RLOCK.RELEASE door bob READ");
    writes.granted();
    assert_eq!(client.shows("door"), "write: bob write 1");
}

#[test]
fn a_parked_read_enters_with_its_owners_write() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut writes, mut cid, mut reads] =
        parked(&server, ["bob BLOCK 0", "cid BLOCK 0", "bob READ BLOCK 0"]);
    client.ask("RLOCK.RELEASE door ann");
    assert!(writes.granted() < reads.granted());
    assert_eq!(client.shows("door"), "write: bob write 1, bob read 1");
    cid.still_waits(&mut client);
}

#[test]
fn a_wait_ends_when_its_time_is_over_and_never_before() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut lateness = Lateness::default();
    for wait_ms in (1..=40).map(|number| number * 3) {
        let began = Instant::now();
        client.refused(&format!("RLOCK.ACQUIRE door bob BLOCK {wait_ms}"));
        let waited_us = began.elapsed().as_micros();
        assert!(waited_us >= wait_ms * 1000, "{waited_us} us of {wait_ms} ms");
        lateness.add(waited_us.saturating_sub(wait_ms * 1000));
        lateness.compare(&mut client);
    }
    lateness.assert_prompt();
    assert_eq!(client.counted("timed_out"), 40);
    assert_eq!(client.queue("door"), "");
}

#[test]
fn zero_is_for_ever_and_a_wait_is_at_most_seven_days() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let [_bob, _cid] = parked(&server, ["bob BLOCK 0", "cid BLOCK 604800000"]);
    let left_ms: Vec<i64> = client.waiters("door").iter().map(|waiter| waiter.left_ms).collect();
    assert_eq!(left_ms[0], -1);
    assert!((604_700_000..=604_800_000).contains(&left_ms[1]), "{left_ms:?}");
    for bad in ["604800001", "-1", "1.5", "x", "18446744073709551616"] {
        let error = client.error(&format!("RLOCK.ACQUIRE door dan BLOCK {bad}"));
        let owed = "ERR BLOCK must be an integer from 0 to 604800000 milliseconds";
        assert!(error.starts_with(owed), "{error}");
    }
    let error = client.error("RLOCK.ACQUIRE door dan BLOCK 1 QUEUE 1");
    assert!(error.contains("BLOCK") && error.contains("QUEUE"), "{error}");
}

#[test]
fn those_who_gave_up_leave_the_others_in_order() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut bob, mut cid, mut dan, mut eve] =
        parked(&server, ["bob BLOCK 200", "cid BLOCK 0", "dan BLOCK 200", "eve BLOCK 0"]);
    bob.refused();
    dan.refused();
    assert_eq!(client.queue("door"), "cid write block, eve write block");
    client.ask("RLOCK.RELEASE door ann");
    cid.granted();
    client.ask("RLOCK.RELEASE door cid");
    eve.granted();
}

#[test]
fn a_writer_that_gives_up_lets_the_readers_behind_it_join_the_readers_inside() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    let [mut bob, mut cid] = parked(&server, ["bob BLOCK 200", "cid READ BLOCK 0"]);
    bob.refused();
    cid.granted();
    assert_eq!(client.shows("door"), "read: ann read 1, cid read 1");
}

#[test]
fn with_ttl_a_grant_after_a_wait_says_what_is_left_of_its_lease() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut bob] = parked(&server, ["bob LEASE 60000 BLOCK 0 WITHTTL"]);
    client.ask("RLOCK.RELEASE door ann");
    let (token, left_ms) = bob.granted_with_ttl();
    assert_eq!(client.lock("door").hold("bob", "write").token, token);
    // The lease counts from the grant, not from the request.
    assert_eq!(left_ms, 60_000);
}

#[test]
fn with_ttl_one_whose_time_is_over_hears_how_long_it_would_take_if_that_can_be_said() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    let mut waiter = Waiter::connect(&server);
    let mut in_the_way_ms = |words: &str| {
        waiter.say(&format!("RLOCK.ACQUIRE {words} BLOCK 50 WITHTTL"));
        waiter.refused_with_ttl()
    };
    let ms = in_the_way_ms("door bob");
    assert!((30_000..60_000).contains(&ms), "{ms}");
    let [_cid] = parked(&server, ["cid BLOCK 0"]);
    assert_eq!(in_the_way_ms("door dan"), -1, "somebody was queued before it");
    let reply = client.ask("RLOCK.ACQUIRE door eve WITHTTL");
    assert_eq!(items(&reply), [Value::Nil, Value::Int(-1)]);
    client.granted("RLOCK.ACQUIRE gate ann SESSION");
    assert_eq!(in_the_way_ms("gate fay"), -1, "a session holds");
}

#[test]
fn more_waiters_than_configured_are_refused_and_change_nothing() {
    let server = Server::with(&["rlock.max-waiters", "2"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE gate ann");
    let [mut bob] = parked(&server, ["bob BLOCK 0"]);
    // The limit is for the whole server, not for one lock.
    let _cid = Waiter::parked(&server, "RLOCK.ACQUIRE gate cid BLOCK 0");
    let error = client.error("RLOCK.ACQUIRE door dan BLOCK 0");
    assert!(error.starts_with("TOOMANY ") && error.contains("rlock.max-waiters"), "{error}");
    assert_eq!(client.queue("door"), "bob write block");
    // A request that need not wait is not refused.
    client.granted("RLOCK.ACQUIRE door ann BLOCK 0");
    client.refused("RLOCK.ACQUIRE door dan QUEUE 1000");
    client.ask("CONFIG SET rlock.max-waiters 3");
    let [_eve] = parked(&server, ["eve BLOCK 0"]);
    client.ask("RLOCK.RELEASE door ann ALL");
    bob.granted();
    until(5_000, || client.counted("waiters") == 2);
    client.ask("CONFIG SET rlock.max-waiters 0");
    assert!(client.error("RLOCK.ACQUIRE door fay BLOCK 1").starts_with("TOOMANY "));
}

#[test]
fn a_request_with_a_depth_may_be_sent_again_while_it_waits() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    // The client has lost its first connection, and asks again on another one.
    let line = "RLOCK.ACQUIRE door bob LEASE 60000 BLOCK 0 DEPTH 1";
    let [mut cid] = parked(&server, ["cid BLOCK 0"]);
    let mut first = Waiter::parked(&server, line);
    let mut again = Waiter::parked(&server, line);
    client.ask("RLOCK.RELEASE door ann");
    cid.granted();
    client.ask("RLOCK.RELEASE door cid");
    assert_eq!(first.granted(), again.granted());
    assert_eq!(client.shows("door"), "write: bob write 1");
    let error = client.error("RLOCK.ACQUIRE gate bob BLOCK 0 DEPTH 2");
    assert!(error.starts_with("NOTHELD "), "{error}");
}

#[test]
fn waits_at_many_locks_do_not_mix() {
    let server = Server::start();
    let mut client = server.client();
    let mut waiters: Vec<(String, Waiter)> = Vec::new();
    for number in 0..20 {
        client.granted(&format!("RLOCK.ACQUIRE lock{number} ann"));
        let line = format!("RLOCK.ACQUIRE lock{number} bob BLOCK 0");
        waiters.push((format!("lock{number}"), Waiter::parked(&server, &line)));
    }
    for (key, waiter) in waiters.iter_mut().rev() {
        waiter.still_waits(&mut client);
        client.ask(&format!("RLOCK.RELEASE {key} ann"));
        waiter.granted();
    }
    assert_eq!(client.gauges(), (0, 0, 0));
}
