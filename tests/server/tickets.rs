//! `QUEUE`: a place in line for connections that must not block. The reply is immediate; an owner
//! that is refused asks again before its window ends, and the lock is reserved for it when its turn
//! comes.

use redis::Value;

use rlock_testkit::{Client, Listener, Server, Waiter, items, now_ms, text, until};

/// A server that publishes all events, with `door` held by `ann`.
fn held() -> (Server, Client) {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    (server, client)
}

#[test]
fn a_ticket_keeps_its_place_from_poll_to_poll() {
    let (_server, mut client) = held();
    for owner in ["bob", "cid", "dan", "bob", "dan", "cid", "bob"] {
        client.refused(&format!("RLOCK.ACQUIRE door {owner} QUEUE 60000"));
    }
    assert_eq!(client.queue("door"), "bob write queue, cid write queue, dan write queue");
    assert_eq!(client.gauges(), (0, 3, 0));
    client.ask("RLOCK.RELEASE door ann");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door ann QUEUE 60000");
    client.granted("RLOCK.ACQUIRE door bob QUEUE 60000");
    assert_eq!(client.queue("door"), "cid write queue, dan write queue, ann write queue");
    assert_eq!(client.shows("door"), "write: bob write 1");
}

#[test]
fn a_turn_is_said_to_its_owner_and_the_lock_is_kept_for_it() {
    let (server, mut client) = held();
    let mut listener = Listener::to(&server);
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    let said = ["rlock.released door", "rlock.turn:bob door"];
    assert_eq!(listener.heard(&mut client), said);
    assert_eq!(client.queue("door"), "bob write queue turn, cid write queue");
    assert_eq!(client.shows("door"), "free:");
    for stranger in ["RLOCK.ACQUIRE door eve", "RLOCK.ACQUIRE door eve READ"] {
        client.refused(stranger);
    }
    client.refused("RLOCK.ACQUIRE door cid");
    let reply = client.ask("RLOCK.ACQUIRE door eve WITHTTL");
    assert_eq!(items(&reply), [Value::Nil, Value::Int(-1)]);
    // It is the ticket's turn, with or without words for the queue.
    client.granted("RLOCK.ACQUIRE door bob");
    assert_eq!(listener.heard(&mut client), ["rlock.acquired door"]);
    assert_eq!(client.queue("door"), "cid write queue");
}

/// S5: whoever subscribes to the channel of its name hears its turn, whatever bytes the name has.
#[test]
fn the_channel_of_a_turn_has_its_owners_bytes_as_they_are() {
    let (server, mut client) = held();
    client.ask("RLOCK.RELEASE door ann");
    let every_byte: Vec<u8> = (1..=255).collect();
    let long = vec![b'x'; 512];
    let names: [(&[u8], &[u8]); 9] = [
        (b"bob", b"bob"),
        (b"CORP\\alice", b"CORP\\alice"),
        ("Zoë".as_bytes(), "Zoë".as_bytes()),
        ("用户".as_bytes(), "用户".as_bytes()),
        (b"a\r\n%s* \xff", b"a\r\n%s* \xff"),
        (br"\x00", br"\x00"),
        (&every_byte, &every_byte),
        (&long, &long),
        // No event can carry a NUL: four characters stand for it.
        (b"a\0b\0", br"a\x00b\x00"),
    ];
    for (owner, published) in names {
        let mut ears = server.client();
        let channel = [b"__keyevent@0__:rlock.turn:", published].concat();
        ears.ask_bytes(&[b"SUBSCRIBE", &channel]);
        client.ask_bytes(&[b"RLOCK.ACQUIRE", b"door", b"ann"]);
        client.ask_bytes(&[b"RLOCK.ACQUIRE", b"door", owner, b"QUEUE", b"60000"]);
        client.ask_bytes(&[b"RLOCK.RELEASE", b"door", b"ann"]);
        // Otherwise, it would wait forever: the mark comes after whatever was published.
        client.ask_bytes(&[b"PUBLISH", &channel, b"mark"]);
        let message = ears.receive();
        assert_eq!(text(&items(&message)[2]), "door", "{}", owner.escape_ascii());
        client.ask_bytes(&[b"RLOCK.CANCEL", b"door", owner]);
    }
}

#[test]
fn a_turn_that_nobody_takes_up_passes_on_by_itself() {
    let (server, mut client) = held();
    let mut listener = Listener::to(&server);
    // Read before it is sent: the server may have read its clock long before the reply arrives.
    let window_ends_ms = now_ms() + 299;
    client.all(&[
        "RLOCK.ACQUIRE door bob QUEUE 300",
        "RLOCK.ACQUIRE door cid QUEUE 60000",
        "RLOCK.RELEASE door ann",
    ]);
    let events = ["rlock.released door", "rlock.turn:bob door", "rlock.turn:cid door"];
    for event in events {
        assert_eq!(listener.next_event(), event);
    }
    assert!(now_ms() >= window_ends_ms);
    assert_eq!(client.queue("door"), "cid write queue turn");
    client.refused("RLOCK.ACQUIRE door bob");
    client.granted("RLOCK.ACQUIRE door cid");
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn a_ticket_that_is_not_asked_for_in_time_is_gone() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 30");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    until(5_000, || client.queue("door") == "cid write queue");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    assert_eq!(client.queue("door"), "cid write queue, bob write queue");
    // The end of a ticket does not count as a timeout, since no connection got one.
    assert_eq!(client.counted("timed_out"), 0);
}

#[test]
fn the_newest_window_counts_whether_it_is_longer_or_shorter() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 100");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    assert!(client.waiters("door")[0].left_ms > 50_000);
    client.refused("RLOCK.ACQUIRE door bob QUEUE 1000");
    assert!(client.waiters("door")[0].left_ms <= 1_000);
    until(5_000, || client.queue("door").is_empty());
}

#[test]
fn blocked_connections_and_tickets_stand_in_one_line() {
    let (server, mut client) = held();
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    let mut dan = Waiter::parked(&server, "RLOCK.ACQUIRE door dan BLOCK 0");
    client.refused("RLOCK.ACQUIRE door eve QUEUE 60000");
    let line = "bob write block, cid write queue, dan write block, eve write queue";
    assert_eq!(client.queue("door"), line);
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    client.ask("RLOCK.RELEASE door bob");
    dan.still_waits(&mut client);
    client.granted("RLOCK.ACQUIRE door cid QUEUE 60000");
    client.ask("RLOCK.RELEASE door cid");
    dan.granted();
    client.ask("RLOCK.RELEASE door dan");
    assert_eq!(client.queue("door"), "eve write queue turn");
}

#[test]
fn an_owner_that_asks_without_queue_leaves_its_ticket_as_it_was() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door bob");
    client.refused("RLOCK.ACQUIRE door bob READ");
    assert_eq!(client.queue("door"), "bob write queue, cid write queue");
}

#[test]
fn a_ticket_becomes_a_blocked_wait_in_the_same_place() {
    let (server, mut client) = held();
    for owner in ["bob", "cid"] {
        client.refused(&format!("RLOCK.ACQUIRE door {owner} QUEUE 60000"));
    }
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    assert_eq!(client.queue("door"), "bob write block, cid write queue");
    assert_eq!(client.gauges(), (1, 1, 0));
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    assert_eq!(client.queue("door"), "cid write queue");
}

#[test]
fn a_ticket_whose_turn_it_is_need_not_block() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    client.granted("RLOCK.ACQUIRE door bob BLOCK 0");
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn readers_tickets_have_their_turns_together_and_the_blocked_readers_behind_them_enter() {
    let (server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door r1 READ QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door r2 READ QUEUE 60000");
    let mut r3 = Waiter::parked(&server, "RLOCK.ACQUIRE door r3 READ BLOCK 0");
    client.refused("RLOCK.ACQUIRE door r4 READ QUEUE 60000");
    let mut w = Waiter::parked(&server, "RLOCK.ACQUIRE door w BLOCK 0");
    client.ask("RLOCK.RELEASE door ann");
    r3.granted();
    let turns = "r1 read queue turn, r2 read queue turn, r4 read queue turn, w write block";
    assert_eq!(client.queue("door"), turns);
    client.granted("RLOCK.ACQUIRE door r4 READ QUEUE 60000");
    client.granted("RLOCK.ACQUIRE door r1 READ");
    // A reader that never queued is behind the writer.
    client.refused("RLOCK.ACQUIRE door r5 READ");
    for owner in ["r1", "r3", "r4"] {
        client.ask(&format!("RLOCK.RELEASE door {owner}"));
    }
    // One of them still has its turn.
    w.still_waits(&mut client);
    assert_eq!(client.number("RLOCK.CANCEL door r2"), 1);
    w.granted();
}

#[test]
fn a_free_lock_with_turns_for_readers_lets_other_readers_in() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door r1 READ QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    client.granted("RLOCK.ACQUIRE door r2 READ");
    client.granted("RLOCK.ACQUIRE door r1 READ");
    assert_eq!(client.shows("door"), "read: r1 read 1, r2 read 1");
}

#[test]
fn a_turn_whose_owner_asks_in_a_mode_that_cannot_enter_is_given_up_and_its_place_kept() {
    let (server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door r1 READ QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door r2 READ QUEUE 60000");
    let mut w = Waiter::parked(&server, "RLOCK.ACQUIRE door w BLOCK 0");
    client.ask("RLOCK.RELEASE door ann");
    client.granted("RLOCK.ACQUIRE door r1 READ");
    client.refused("RLOCK.ACQUIRE door r2 QUEUE 60000");
    assert_eq!(client.queue("door"), "r2 write queue, w write block");
    client.ask("RLOCK.RELEASE door r1");
    assert_eq!(client.queue("door"), "r2 write queue turn, w write block");
    client.granted("RLOCK.ACQUIRE door r2 QUEUE 60000");
    client.ask("RLOCK.RELEASE door r2");
    w.granted();
}

#[test]
fn a_turn_may_be_taken_up_in_the_other_mode_if_that_can_enter() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    client.granted("RLOCK.ACQUIRE door bob READ QUEUE 60000");
    assert_eq!(client.shows("door"), "read: bob read 1");
    assert_eq!(client.queue("door"), "");
}

#[test]
fn a_ticket_that_asks_in_another_mode_keeps_its_place() {
    let (server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid READ BLOCK 0");
    client.refused("RLOCK.ACQUIRE door bob READ QUEUE 60000");
    assert_eq!(client.queue("door"), "bob read queue, cid read block");
    client.ask("RLOCK.RELEASE door ann");
    cid.granted();
    client.granted("RLOCK.ACQUIRE door bob READ QUEUE 60000");
}

#[test]
fn a_ticket_is_withdrawn_by_cancel_once() {
    let (server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
    for nobody in ["RLOCK.CANCEL door eve", "RLOCK.CANCEL gate bob", "RLOCK.CANCEL door ann"] {
        assert_eq!(client.number(nobody), 0, "{nobody}");
    }
    client.ask("RLOCK.RELEASE door ann");
    cid.still_waits(&mut client);
    assert_eq!(client.number("RLOCK.CANCEL door bob"), 1);
    cid.granted();
    assert_eq!(client.number("RLOCK.CANCEL door bob"), 0);
    client.ask("SET text text");
    assert!(client.error("RLOCK.CANCEL text bob").starts_with("WRONGTYPE "));
}

#[test]
fn any_grant_to_the_owner_withdraws_its_ticket() {
    let (server, mut client) = held();
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob READ BLOCK 0");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    assert_eq!(client.queue("door"), "cid write queue");
    assert_eq!(client.gauges(), (0, 1, 0));
}

#[test]
fn a_request_that_is_refused_with_an_error_leaves_the_ticket() {
    let (_server, mut client) = held();
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    let before = client.waiters("door");
    for bad in ["DEPTH 2 QUEUE 100", "LEASE 0 QUEUE 100", "QUEUE 0", "SESSION LEASE 5 QUEUE 9"] {
        client.error(&format!("RLOCK.ACQUIRE door bob {bad}"));
    }
    let after = client.waiters("door");
    assert_eq!(after.len(), 1);
    assert!((before[0].left_ms - after[0].left_ms) < 5_000);
}

#[test]
fn a_window_is_from_one_millisecond_to_a_minute() {
    let (_server, mut client) = held();
    for bad in ["0", "60001", "-1", "1.0", "x"] {
        let error = client.error(&format!("RLOCK.ACQUIRE door bob QUEUE {bad}"));
        let owed = "ERR QUEUE must be an integer from 1 to 60000 milliseconds";
        assert!(error.starts_with(owed), "{error}");
    }
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 1");
    until(5_000, || client.queue("door") == "bob write queue");
}

#[test]
fn more_tickets_than_configured_are_refused_and_change_nothing() {
    let (_server, mut client) = held();
    client.ask("CONFIG SET rlock.max-tickets 2");
    client.granted("RLOCK.ACQUIRE gate ann");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.refused("RLOCK.ACQUIRE gate bob QUEUE 60000");
    let error = client.error("RLOCK.ACQUIRE door cid QUEUE 60000");
    assert!(error.starts_with("TOOMANY ") && error.contains("rlock.max-tickets"), "{error}");
    assert_eq!(client.gauges(), (0, 2, 0));
    // An owner that has a ticket may ask again.
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.ask("RLOCK.CANCEL door bob");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    client.granted("RLOCK.ACQUIRE free cid QUEUE 60000");
}

#[test]
fn a_session_can_be_had_by_a_ticket() {
    let (server, mut client) = held();
    let mut bob = Waiter::connect(&server);
    bob.say("RLOCK.ACQUIRE door bob SESSION QUEUE 60000");
    bob.refused();
    client.ask("RLOCK.RELEASE door ann");
    let line = "RLOCK.ACQUIRE door bob LEASE 600000 SESSION QUEUE 60000";
    bob.number(line);
    assert_eq!(client.session_of("door", "bob"), bob.id());
    drop(bob);
    until(5_000, || client.number("EXISTS door") == 0);
}

#[test]
fn in_scripts_and_transactions_tickets_work_as_elsewhere() {
    let (server, mut client) = held();
    let script = b"return redis.call('RLOCK.ACQUIRE', KEYS[1], 'bob', 'QUEUE', '60000')";
    assert_eq!(client.ask_bytes(&[b"EVAL", script, b"1", b"door"]), Value::Nil);
    let mut teller = Waiter::connect(&server);
    teller.say_all(&["MULTI", "RLOCK.ACQUIRE door cid QUEUE 60000", "EXEC"]);
    (0..3).for_each(|_| drop(teller.answer()));
    assert_eq!(client.queue("door"), "bob write queue, cid write queue");
    client.ask("RLOCK.RELEASE door ann");
    assert!(matches!(client.ask_bytes(&[b"EVAL", script, b"1", b"door"]), Value::Int(_)));
}

#[test]
fn a_turn_at_a_lock_that_comes_to_be_held_otherwise_is_given_again() {
    let (server, mut client) = held();
    let mut listener = Listener::to(&server);
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    client.granted("RLOCK.ACQUIRE gate zoe LEASE 600000");
    client.ask("RENAME gate door");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    assert_eq!(client.queue("door"), "bob write queue");
    listener.heard_after_a_turn(&mut client);
    client.ask("RLOCK.RELEASE door zoe");
    let said = ["rlock.released door", "rlock.turn:bob door"];
    assert_eq!(listener.heard(&mut client), said);
    client.granted("RLOCK.ACQUIRE door bob");
}
