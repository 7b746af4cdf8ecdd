//! What can happen to a waiter: it is unblocked, killed, or disconnected before, in and after the
//! very loop iteration of its grant. Each gets exactly one reply, and none that departed holds a
//! lock.

use redis::Value;

use rlock_testkit::{Client, Listener, Server, Waiter, is_connected, text, until};

/// `ann` holds `door` for long, and these wait for it in this order.
fn held_and_waited_for<const N: usize>(lines: [&str; N]) -> (Server, Client, [Waiter; N]) {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let waiters = lines.map(|line| Waiter::parked(&server, line));
    (server, client, waiters)
}

const BOB: &str = "RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0";
const CID: &str = "RLOCK.ACQUIRE door cid LEASE 600000 BLOCK 0";

#[test]
fn client_unblock_is_the_end_of_the_wait() {
    let (_server, mut client, [mut bob, mut cid]) = held_and_waited_for([BOB, CID]);
    assert_eq!(client.number(&format!("CLIENT UNBLOCK {}", bob.id())), 1);
    bob.refused();
    assert_eq!(client.queue("door"), "cid write block");
    client.ask("RLOCK.RELEASE door ann");
    cid.granted();
    assert_eq!(client.number("RLOCK.RELEASE door cid"), 0);
    assert_eq!(client.shows("door"), "free:");
    assert_eq!(client.counted("timed_out"), 1);
}

#[test]
fn client_unblock_says_nil_in_the_form_that_was_asked_for() {
    let line = "RLOCK.ACQUIRE door bob BLOCK 60000 WITHTTL";
    let (_server, mut client, [mut bob]) = held_and_waited_for([line]);
    client.ask(&format!("CLIENT UNBLOCK {} TIMEOUT", bob.id()));
    // As at a timeout: the time until which ann's hold is in the way.
    assert!((500_000..=600_001).contains(&bob.refused_with_ttl()));
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn client_unblock_with_error_is_an_error_and_the_end_of_the_wait() {
    let (_server, mut client, [mut bob, mut cid]) = held_and_waited_for([BOB, CID]);
    assert_eq!(client.number(&format!("CLIENT UNBLOCK {} ERROR", bob.id())), 1);
    assert!(bob.error().starts_with("UNBLOCKED "));
    assert_eq!(client.queue("door"), "cid write block");
    client.ask("RLOCK.RELEASE door ann");
    cid.granted();
    assert_eq!(client.shows("door"), "write: cid write 1");
}

#[test]
fn one_who_is_killed_or_hangs_up_while_it_waits_leaves_the_queue() {
    let dan = "RLOCK.ACQUIRE door dan BLOCK 0";
    let (_server, mut client, [mut bob, cid, mut dan]) = held_and_waited_for([BOB, CID, dan]);
    client.ask(&format!("CLIENT KILL ID {}", bob.id()));
    bob.expect_close();
    drop(cid);
    until(5_000, || client.queue("door") == "dan write block");
    client.ask("RLOCK.RELEASE door ann");
    dan.granted();
    assert_eq!(client.shows("door"), "write: dan write 1");
    assert_eq!(client.counted("handed_off"), 1);
    assert_eq!(client.counted("disconnected"), 0);
}

#[test]
fn the_head_that_leaves_lets_in_those_who_waited_only_for_it() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    let mut writer = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let mut readers = ["cid", "dan"]
        .map(|owner| Waiter::parked(&server, &format!("RLOCK.ACQUIRE door {owner} READ BLOCK 0")));
    client.ask(&format!("CLIENT KILL ID {}", writer.id()));
    writer.expect_close();
    readers.iter_mut().for_each(|reader| assert!(reader.granted() > 0));
    assert_eq!(client.shows("door"), "read: ann read 1, cid read 1, dan read 1");
}

/// Sends these at once: they are executed in one iteration of the server's loop, in a transaction
/// or not.
fn in_one_turn(server: &Server, lines: &[&str], is_transaction: bool) -> Vec<Value> {
    let mut teller = Waiter::connect(server);
    if !is_transaction {
        teller.say_all(lines);
        return lines.iter().map(|_| teller.answer()).collect();
    }
    teller.say_all(&[&["MULTI"], lines, &["EXEC"]].concat());
    for _ in 0..=lines.len() {
        teller.answer();
    }
    match teller.answer() {
        Value::Array(replies) => replies,
        other => panic!("EXEC: {other:?}"),
    }
}

/// The server puts a grant into the connection's output at once, and from then on nobody knows
/// whether it has been read.
fn replies_at_once(server: &Server) -> bool {
    !server.version().is_since([7, 4], [8, 0])
}

#[test]
fn a_grant_to_one_who_is_killed_in_the_same_turn_goes_to_the_next_if_it_cannot_have_been_read() {
    let session = "RLOCK.ACQUIRE door bob LEASE 600000 SESSION BLOCK 0";
    for (is_transaction, line) in [(false, BOB), (true, BOB), (false, session), (true, session)] {
        let (server, mut client, [mut bob, mut cid]) = held_and_waited_for([line, CID]);
        let mut listener = Listener::to(&server);
        let kill = format!("CLIENT KILL ID {}", bob.id());
        let replies = in_one_turn(&server, &["RLOCK.RELEASE door ann", &kill], is_transaction);
        assert_eq!(replies, [Value::Int(0), Value::Int(1)]);
        bob.last_words();
        if line == BOB && replies_at_once(&server) {
            assert_eq!(client.shows("door"), "write: bob write 1");
            cid.still_waits(&mut client);
            continue;
        }
        cid.granted();
        assert_eq!(client.shows("door"), "write: cid write 1");
        let said = ["released", "acquired", "disconnected", "acquired"];
        let said = said.map(|event| format!("rlock.{event} door"));
        assert_eq!(listener.heard_after_a_turn(&mut client), said);
        assert_eq!(client.counted("disconnected"), 1);
        assert_eq!(client.gauges(), (0, 0, 0));
    }
}

#[test]
fn of_many_who_are_granted_and_killed_in_one_turn_none_holds() {
    let lines: [String; 12] = std::array::from_fn(|i| {
        format!("RLOCK.ACQUIRE door r{i} READ LEASE 600000 SESSION BLOCK 0")
    });
    let (server, mut client, readers) = held_and_waited_for(lines.each_ref().map(String::as_str));
    let kills: Vec<String> =
        readers[..10].iter().map(|reader| format!("CLIENT KILL ID {}", reader.id())).collect();
    let mut turn = vec!["RLOCK.RELEASE door ann"];
    turn.extend(kills.iter().map(String::as_str));
    in_one_turn(&server, &turn, false);
    until(5_000, || client.shows("door") == "read: r10 read 1, r11 read 1");
    assert_eq!(client.counted("disconnected"), 10);
}

#[test]
fn a_level_that_was_granted_to_one_who_is_killed_in_the_same_turn_is_taken_back() {
    let (server, mut client, [mut first, second]) = held_and_waited_for([BOB, BOB]);
    let kill = format!("CLIENT KILL ID {}", second.id());
    in_one_turn(&server, &["RLOCK.RELEASE door ann", &kill], false);
    first.granted();
    let levels = if replies_at_once(&server) { 2 } else { 1 };
    until(5_000, || client.shows("door") == format!("write: bob write {levels}"));
    assert_eq!(client.counted("disconnected"), 0);
}

#[test]
fn a_grant_that_another_reply_has_confirmed_stands_when_its_connection_is_killed() {
    let confirmations = [
        ("RLOCK.RENEW door bob", "write: bob write 1"),
        ("RLOCK.ACQUIRE door bob", "write: bob write 2"),
        ("RLOCK.ACQUIRE door bob DEPTH 1", "write: bob write 1"),
    ];
    for (confirmation, shown) in confirmations {
        let (server, mut client, [mut bob, mut cid]) = held_and_waited_for([BOB, CID]);
        let kill = format!("CLIENT KILL ID {}", bob.id());
        in_one_turn(&server, &["RLOCK.RELEASE door ann", confirmation, &kill], false);
        bob.last_words();
        until(5_000, || !is_connected(&mut client, bob.id()));
        assert_eq!(client.shows("door"), shown, "{confirmation}");
        cid.still_waits(&mut client);
    }
}

#[test]
fn a_grant_that_was_written_to_a_connection_that_then_ends_lasts_for_its_lease() {
    let line = "RLOCK.ACQUIRE door bob LEASE 300 BLOCK 0";
    let (_server, mut client, [mut bob, mut cid]) = held_and_waited_for([line, CID]);
    client.ask("RLOCK.RELEASE door ann");
    // It has the reply and crashes: the server cannot know how far its work has progressed.
    until(5_000, || bob.has_reply());
    let id = bob.id();
    drop(bob);
    until(5_000, || !is_connected(&mut client, id));
    assert_eq!(client.shows("door"), "write: bob write 1");
    cid.granted();
    assert_eq!(client.counted("expired"), 1);
    assert_eq!(client.counted("disconnected"), 0);
}

#[test]
fn client_unblock_in_the_turn_of_the_grant_changes_nothing() {
    for is_transaction in [false, true] {
        let (server, mut client, [mut bob, mut cid]) = held_and_waited_for([BOB, CID]);
        let unblock = format!("CLIENT UNBLOCK {} TIMEOUT", bob.id());
        in_one_turn(&server, &["RLOCK.RELEASE door ann", &unblock], is_transaction);
        bob.granted();
        assert_eq!(client.shows("door"), "write: bob write 1");
        cid.still_waits(&mut client);
    }
}

#[test]
fn client_unblock_of_one_whose_own_command_let_it_in_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let mut bob = Waiter::connect(&server);
    let mut teller = Waiter::connect(&server);
    let unblock = format!("CLIENT UNBLOCK {} TIMEOUT", bob.id());
    // The server reads both in one iteration and in this order, so it asks for the reply before the
    // module sends it.
    until(5_000, || {
        client.all(&["RLOCK.FORCE door", "RLOCK.CANCEL door rex", "RLOCK.CANCEL door bob"]);
        client.granted("RLOCK.ACQUIRE door zoe");
        client.refused("RLOCK.ACQUIRE door rex READ QUEUE 60000");
        client.refused("RLOCK.ACQUIRE door bob LIMIT 1 QUEUE 60000");
        client.ask("RLOCK.RELEASE door zoe");
        server.freeze();
        // Nobody is in its way once it has given up its ticket, which is behind a turn.
        bob.say("RLOCK.MACQUIRE 1 door bob MODES 3 LEASE 600000 BLOCK 60000");
        teller.say(&unblock);
        server.thaw();
        bob.granted();
        teller.answer() == Value::Int(1)
    });
    let mut cid = Waiter::parked(&server, CID);
    assert_eq!(client.shows("door"), "read: bob read 1");
    cid.still_waits(&mut client);
}

#[test]
fn client_unblock_with_error_in_the_turn_of_the_grant_takes_it_back_where_the_error_replaces_it() {
    let (server, mut client, [mut bob, mut cid]) = held_and_waited_for([BOB, CID]);
    let unblock = format!("CLIENT UNBLOCK {} ERROR", bob.id());
    in_one_turn(&server, &["RLOCK.RELEASE door ann", &unblock], false);
    let first = bob.reply();
    if first.is_ok() && !server.version().is_since([7, 4], [8, 0]) {
        // The older servers send the token, and then the error.
        assert!(bob.error().starts_with("UNBLOCKED "));
    }
    bob.expect_silence();
    match first {
        Ok(_) => {
            assert_eq!(client.shows("door"), "write: bob write 1");
            cid.still_waits(&mut client);
        }
        Err(error) => {
            assert!(error.starts_with("UNBLOCKED "), "{error}");
            cid.granted();
            assert_eq!(client.shows("door"), "write: cid write 1");
        }
    }
}

#[test]
fn one_who_is_released_and_hangs_up_at_once_harms_nobody() {
    // The end of the connection may be seen before, in or after the turn of the grant.
    let (server, mut client, []) = held_and_waited_for([]);
    for round in 0..200 {
        let (holder, next) = if round % 2 == 0 { ("ann", "cid") } else { ("cid", "ann") };
        let bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob LEASE 40 BLOCK 0");
        let line = format!("RLOCK.ACQUIRE door {next} LEASE 600000 BLOCK 0");
        let mut next_one = Waiter::parked(&server, &line);
        let mut teller = Waiter::connect(&server);
        teller.say(&format!("RLOCK.RELEASE door {holder}"));
        drop(bob);
        next_one.granted();
        assert_eq!(teller.answer(), Value::Int(0));
        assert_eq!(client.shows("door"), format!("write: {next} write 1"));
        assert_eq!(client.queue("door"), "");
    }
}

#[test]
fn in_a_transaction_a_wait_is_over_at_once() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let lines = [
        "RLOCK.ACQUIRE door bob BLOCK 0",
        "RLOCK.ACQUIRE door bob BLOCK 60000 WITHTTL",
        "RLOCK.ACQUIRE gate bob BLOCK 0",
    ];
    let replies = in_one_turn(&server, &lines, true);
    assert_eq!(replies[0], Value::Nil);
    match &replies[1] {
        Value::Array(parts) => assert!(parts[0] == Value::Nil && parts[1] != Value::Int(-1)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(replies[2], Value::Int(_)));
    assert_eq!(client.shows("gate"), "write: bob write 1");
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn in_a_script_or_a_function_a_wait_is_over_at_once() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let script = b"return redis.call('RLOCK.ACQUIRE', KEYS[1], 'bob', 'BLOCK', '0')";
    assert_eq!(client.ask_bytes(&[b"EVAL", script, b"1", b"door"]), Value::Nil);
    assert!(matches!(client.ask_bytes(&[b"EVAL", script, b"1", b"gate"]), Value::Int(_)));
    let library = b"#!lua name=waits\nredis.register_function('waits', function(keys)\n\
        return redis.call('RLOCK.ACQUIRE', keys[1], 'cid', 'BLOCK', '60000') end)";
    assert_eq!(text(&client.ask_bytes(&[b"FUNCTION", b"LOAD", library])), "waits");
    assert_eq!(client.ask("FCALL waits 1 door"), Value::Nil);
    assert!(matches!(client.ask("FCALL waits 1 wall"), Value::Int(_)));
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn a_script_or_a_transaction_that_releases_hands_over() {
    let (server, mut client, [mut bob, mut cid]) = held_and_waited_for([BOB, CID]);
    let script = b"return redis.call('RLOCK.RELEASE', KEYS[1], 'ann')";
    assert_eq!(client.ask_bytes(&[b"EVAL", script, b"1", b"door"]), Value::Int(0));
    bob.granted();
    let replies = in_one_turn(&server, &["RLOCK.RELEASE door bob", "RLOCK.ACQUIRE door eve"], true);
    assert_eq!(replies, [Value::Int(0), Value::Nil]);
    cid.granted();
}

#[test]
fn one_who_wants_no_replies_waits_and_holds_like_any_other() {
    let (server, mut client, []) = held_and_waited_for([]);
    let mut bob = Waiter::connect(&server);
    bob.say_all(&["CLIENT REPLY OFF", BOB]);
    until(5_000, || client.queue("door") == "bob write block");
    client.ask("RLOCK.RELEASE door ann");
    until(5_000, || client.shows("door") == "write: bob write 1");
    assert_eq!(bob.ask("CLIENT REPLY ON"), Value::Okay);
    bob.say("CLIENT REPLY SKIP");
    bob.say("RLOCK.ACQUIRE gate bob BLOCK 0");
    bob.expect_silence();
    assert_eq!(client.shows("gate"), "write: bob write 1");
}

#[test]
fn what_a_parked_connection_says_further_is_answered_after_its_wait() {
    let (_server, mut client, [mut bob]) = held_and_waited_for([BOB]);
    bob.say_all(&["RLOCK.RELEASE door bob", "RLOCK.ACQUIRE door bob BLOCK 0"]);
    bob.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door ann");
    let first = bob.answer();
    assert_eq!(bob.answer(), Value::Int(0));
    let second = bob.answer();
    assert!(matches!((first, second), (Value::Int(first), Value::Int(second)) if first < second));
    bob.expect_silence();
}
