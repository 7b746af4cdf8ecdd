//! `TELL`: a wait without a blocked connection, whose late reply is a message.

use rlock_testkit::{Client, Listener, Server, Subscriber, Waiter, flat_map, integer, items, text};

use redis::Value;

use crate::acks::pair;

pub fn waiting() -> Value {
    Value::SimpleString("WAITING".into())
}

/// Sends a request whose reply says that a message follows.
#[track_caller]
pub fn waits(client: &mut Client, line: &str) {
    assert_eq!(client.ask(line), waiting(), "{line}");
}

/// What `INFO rlock` shows of waits with TELL: waiting, answered, and not delivered.
pub fn tells(client: &mut Client) -> [i64; 3] {
    ["tells", "told", "untold"].map(|name| client.counted(name))
}

/// A message as its words.
pub fn words(message: &str) -> Vec<&str> {
    message.split(' ').collect()
}

#[test]
fn t1_it_is_the_same_wait_in_the_same_queue() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
    waits(&mut client, "RLOCK.ACQUIRE door dan READ BLOCK 0 TELL ch 2");
    waits(&mut client, "RLOCK.ACQUIRE door eve READ LIMIT 2 BLOCK 0 TELL ch 3");
    client.refused("RLOCK.ACQUIRE door zoe QUEUE 60000");
    assert_eq!(client.number("RLOCK.PLACE door eve"), 4);
    client.ask("RLOCK.RELEASE door ann");
    let (token, ms) = ears.granted("1");
    assert!((29_000..=30_000).contains(&ms), "{ms}");
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 1);
    client.ask("RLOCK.RELEASE door bob");
    cid.granted();
    ears.expect_silence();
    client.ask("RLOCK.RELEASE door cid");
    let readers = [ears.granted("2").0, ears.granted("3").0];
    assert!(readers[0] < readers[1], "{readers:?}");
    ears.expect_silence();
    assert_eq!(client.counted("handed_off"), 4);
    assert_eq!(tells(&mut client), [0, 3, 0]);
}

#[test]
fn t2_what_can_be_said_at_once_is_the_reply_and_no_message_follows() {
    for resp3 in [false, true] {
        let server = Server::start();
        let mut client = if resp3 { server.client_resp3() } else { server.client() };
        let mut ears = Subscriber::to(&server, "ch");
        client.granted("RLOCK.ACQUIRE door ann BLOCK 50 TELL ch 1");
        let pair = client.ask("RLOCK.ACQUIRE door ann DEPTH 1 BLOCK 50 WITHTTL TELL ch 2");
        assert_eq!(items(&pair).len(), 2, "{pair:?}");
        client.refused("RLOCK.ACQUIRE door bob ACKS 0 MAXQUEUE 0 BLOCK 50 TELL ch 3");
        assert!(
            client.error("RLOCK.ACQUIRE door ann DEPTH 9 BLOCK 5 TELL ch 4").starts_with("ERR")
        );
        client.ask("SET text value");
        let wrong = client.error("RLOCK.ACQUIRE text bob BLOCK 5 TELL ch 5");
        assert!(wrong.starts_with("WRONGTYPE"), "{wrong}");
        assert_eq!(client.ask("RLOCK.ACQUIRE door bob BLOCK 5000 WITHTTL TELL ch 6"), waiting());
        client.ask("RLOCK.RELEASE door ann");
        ears.granted("6");
        ears.expect_silence();
    }
}

#[test]
fn t3_exactly_one_message_for_each_waiting() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    for id in 0..300 {
        waits(&mut client, &format!("RLOCK.ACQUIRE door o{id} READ BLOCK 0 TELL ch {id}"));
    }
    client.ask("RLOCK.RELEASE door ann");
    // More than a portion: the rest is done in the next iteration of the loop.
    for id in 0..300 {
        ears.granted(&id.to_string());
    }
    ears.expect_silence();
    assert_eq!(tells(&mut client), [0, 300, 0]);
}

#[test]
fn t4_the_forms_of_the_message() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    let ann = client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 1 TELL ch ~nil");
    let message = ears.heard();
    let [id, "nil", ms] = words(&message)[..] else { panic!("{message}") };
    assert_eq!((id, ms.parse::<i64>().unwrap() > 500_000), ("~nil", true));
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch e");
    client.ask("SET other value");
    client.ask("RENAME other door");
    let message = ears.heard();
    assert!(message.starts_with("e error WRONGTYPE "), "{message}");
    client.ask("DEL door");
    let token = client.granted("RLOCK.ACQUIRE door ann");
    assert!(token > ann);
    waits(&mut client, &format!("RLOCK.AWAIT door {token} BLOCK 0 TELL ch h"));
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(ears.heard(), "h holder 0");
    waits(&mut client, "RLOCK.AWAIT door 0 BLOCK 0 TELL ch 01");
    let token = client.ask_bytes(&[b"RLOCK.ACQUIRE", b"door", b"a b\xff\r\n"]);
    let Value::Int(token) = token else { panic!("{token:?}") };
    let said = [format!("01 holder {token} ").as_bytes(), b"a b\xff\r\n"].concat();
    assert_eq!(ears.heard_bytes(), said);
    waits(&mut client, &format!("RLOCK.AWAIT door {token} BLOCK 1 TELL ch n"));
    assert_eq!(ears.heard(), "n nil -1");
}

#[test]
fn t4_a_bad_channel_or_id_is_an_error_that_names_the_word_and_the_range() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let long = "c".repeat(513);
    let id = "i".repeat(65);
    let ask = |client: &mut Client, channel: &[u8], id: &[u8]| {
        client.error_bytes(&[
            b"RLOCK.ACQUIRE",
            b"door",
            b"bob",
            b"BLOCK",
            b"0",
            b"TELL",
            channel,
            id,
        ])
    };
    for channel in [&b""[..], long.as_bytes()] {
        let line = ask(&mut client, channel, b"1");
        assert!(line.contains("channel of TELL must be 1 to 512 bytes"), "{line}");
    }
    for bad in [&b""[..], id.as_bytes(), b"a b", b"\x7f", b"\xc3\xa9", b"a\n"] {
        let line = ask(&mut client, b"ch", bad);
        assert!(line.contains("id of TELL must be 1 to 64 bytes"), "{line}");
    }
    for (line, part) in [
        ("RLOCK.ACQUIRE door bob BLOCK 0 TELL ch", "TELL needs a channel and an id"),
        ("RLOCK.ACQUIRE door bob TELL ch 1", "TELL needs BLOCK ms or ACKS n"),
        ("RLOCK.ACQUIRE door bob QUEUE 5 TELL ch 1", "mutually exclusive"),
        ("RLOCK.MACQUIRE 1 door bob QUEUE 5", "has no QUEUE: wait with BLOCK ms, and with TELL"),
        ("RLOCK.RENEW door ann TELL ch 1", "TELL needs ACKS n"),
        ("RLOCK.AWAIT door 0 TELL ch 1", "TELL needs BLOCK ms"),
        ("RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1 TELL ch 2", "TELL is given twice"),
        ("RLOCK.RELEASE door ann TELL ch 1", "syntax error"),
    ] {
        let said = client.error(line);
        assert!(said.starts_with("ERR ") && said.contains(part), "{line}: {said}");
    }
    assert_eq!(client.queue("door"), "");
}

#[test]
fn t5_whoever_does_not_listen_costs_the_queue_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let mut gone = Subscriber::to(&server, "gone");
    for id in 0..200 {
        waits(&mut client, &format!("RLOCK.ACQUIRE door dead{id} BLOCK 0 TELL gone {id}"));
    }
    let mut ears = Subscriber::to(&server, "ch");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    // A pattern does not count as a subscriber of a shard channel.
    let mut events = Listener::to(&server);
    client.ask("CONFIG SET notify-keyspace-events KEd");
    events.heard(&mut client);
    gone.leave("gone");
    // One step: what follows in the same transaction sees its result.
    client.all(&["MULTI", "RLOCK.RELEASE door ann", "EXEC"]);
    ears.granted("1");
    ears.expect_silence();
    gone.expect_silence();
    assert_eq!(events.heard(&mut client), ["rlock.released door", "rlock.acquired door"]);
    assert_eq!(tells(&mut client), [0, 1, 200]);
}

#[test]
fn t6_a_message_that_was_sent_counts_as_a_reply() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let mut ears = Subscriber::to(&server, "ch");
    let mut asker = Waiter::connect(&server);
    assert_eq!(asker.ask("RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1"), waiting());
    drop(asker);
    client.ask("RLOCK.RELEASE door ann");
    let (token, _) = ears.granted("1");
    drop(ears);
    client.ask("PING");
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 1);
}

#[test]
fn t7_asking_again_takes_the_place_and_the_old_request_gets_no_message() {
    let server = Server::start();
    let mut client = server.client();
    let (mut old, mut new) = (Subscriber::to(&server, "old"), Subscriber::to(&server, "new"));
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob DEPTH 1 BLOCK 0 TELL old 1");
    waits(&mut client, "RLOCK.ACQUIRE door cid DEPTH 1 BLOCK 0 TELL old 2");
    waits(&mut client, "RLOCK.ACQUIRE door bob DEPTH 1 LEASE 50000 MAXQUEUE 1 BLOCK 0 TELL new 3");
    assert_eq!((client.number("RLOCK.PLACE door bob"), client.counted("tells")), (1, 2));
    // A request in another mode is a wait of its own.
    waits(&mut client, "RLOCK.ACQUIRE door bob READ DEPTH 1 BLOCK 0 TELL new 4");
    assert_eq!(client.counted("tells"), 3);
    assert_eq!(client.number("RLOCK.CANCEL door bob"), 2);
    waits(&mut client, "RLOCK.ACQUIRE door bob DEPTH 1 BLOCK 0 TELL new 5");
    waits(&mut client, "RLOCK.ACQUIRE door bob DEPTH 1 LEASE 50000 BLOCK 0 TELL new 6");
    assert_eq!(client.number("RLOCK.PLACE door bob"), 2);
    client.ask("RLOCK.RELEASE door ann");
    old.granted("2");
    client.ask("RLOCK.RELEASE door cid");
    let (token, ms) = new.granted("6");
    assert!(ms > 30_000, "{ms}");
    // After the grant, an ordinary request returns the token.
    assert_eq!(client.granted("RLOCK.ACQUIRE door bob DEPTH 1 BLOCK 0 TELL new 7"), token);
    old.expect_silence();
    new.expect_silence();
    assert_eq!(tells(&mut client), [0, 2, 0]);
}

#[test]
fn t7_with_block_it_becomes_the_blocked_wait_and_with_neither_it_stays() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    waits(&mut client, "RLOCK.ACQUIRE door cid BLOCK 0 TELL ch 2");
    client.refused("RLOCK.ACQUIRE door bob");
    assert_eq!(client.number("RLOCK.PLACE door bob"), 1);
    client.ask("CONFIG SET rlock.max-waiters 0");
    let refused = client.error("RLOCK.ACQUIRE door bob BLOCK 0");
    assert!(refused.starts_with("TOOMANY"), "{refused}");
    assert_eq!((client.number("RLOCK.PLACE door bob"), client.counted("tells")), (1, 2));
    client.ask("CONFIG SET rlock.max-waiters 10");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    assert_eq!((client.counted("waiters"), client.counted("tells")), (1, 1));
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    client.ask("RLOCK.RELEASE door bob");
    ears.granted("2");
    ears.expect_silence();
}

#[test]
fn t7_a_request_that_waits_only_for_acknowledgments_leaves_the_wait_as_it_is() {
    let (primary, _replica) = pair(&[]);
    let mut client = primary.client();
    let mut ears = Subscriber::to(&primary, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    waits(&mut client, "RLOCK.MACQUIRE 2 door gate cid BLOCK 0 TELL ch 2");
    client.refused("RLOCK.ACQUIRE door bob ACKS 1 TELL ch 3");
    client.refused("RLOCK.MACQUIRE 2 door gate cid ACKS 1 TELL ch 4");
    client.ask("RLOCK.RELEASE door ann");
    ears.granted("1");
    client.ask("RLOCK.RELEASE door bob");
    ears.granted("2");
    ears.expect_silence();
}

#[test]
fn t7_a_blocked_wait_that_need_not_wait_in_its_place_is_granted() {
    let server = Server::start();
    let mut client = server.client();
    for round in 0..20 {
        client.granted("RLOCK.ACQUIRE door ann READ");
        waits(&mut client, "RLOCK.ACQUIRE door bob LIMIT 1 BLOCK 0 TELL ch 1");
        server.client().granted("RLOCK.ACQUIRE door bob LIMIT 2 BLOCK 0");
        assert_eq!(client.number("RLOCK.FORCE door"), 2, "{round}");
    }
}

#[test]
fn t7_a_ticket_becomes_the_wait_in_its_place() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    waits(&mut client, "RLOCK.ACQUIRE door cid BLOCK 0 TELL ch 1");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 2");
    assert_eq!((client.counted("tickets"), client.counted("tells")), (0, 2));
    client.ask("RLOCK.RELEASE door ann");
    ears.granted("2");
    ears.expect_silence();
}

#[test]
fn t7_another_users_request_is_a_wait_of_its_own() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.ask("ACL SETUSER other on >secret ~* &* +@all");
    let mut other = server.client_of("other");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob DEPTH 1 BLOCK 0 TELL ch 1");
    waits(&mut other, "RLOCK.ACQUIRE door bob DEPTH 1 BLOCK 0 TELL ch 2");
    assert_eq!(client.counted("tells"), 2);
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(ears.granted("1").0, ears.granted("2").0);
    ears.expect_silence();
}

#[test]
fn t8_cancel_ends_it_without_a_message_and_the_askers_end_does_not() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    let mut asker = Waiter::connect(&server);
    assert_eq!(asker.ask("RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1"), waiting());
    assert_eq!(client.number(&format!("CLIENT UNBLOCK {}", asker.id())), 0);
    client.ask(&format!("CLIENT KILL ID {}", asker.id()));
    waits(&mut client, "RLOCK.ACQUIRE door cid BLOCK 0 TELL ch 2");
    assert_eq!(client.number("RLOCK.CANCEL door cid"), 1);
    assert_eq!(tells(&mut client), [1, 0, 0]);
    client.ask("FLUSHALL");
    ears.granted("1");
    ears.expect_silence();
    assert_eq!(tells(&mut client), [0, 1, 0]);
}

#[test]
fn t8_demotion_is_told_as_an_error() {
    let primary = Server::primary(&[]);
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    waits(&mut client, "RLOCK.MACQUIRE 2 door gate cid BLOCK 0 TELL ch 2");
    waits(&mut client, "RLOCK.AWAIT hall 0 BLOCK 0 TELL ch 3");
    server.follow(&primary);
    for id in 1..=3 {
        let message = ears.heard();
        assert!(message.starts_with(&format!("{id} error UNBLOCKED ")), "{message}");
    }
    assert_eq!(client.counted("tells"), 0);
}

#[test]
fn t9_every_wait_has_an_end() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    let low = client.error("CONFIG SET rlock.max-tell-ms 999");
    assert!(low.contains("rlock.max-tell-ms") || low.contains("between"), "{low}");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    let left = |client: &mut Client| {
        let reply = client.ask("RLOCK.INFO door");
        let rows: Vec<_> = items(&flat_map(&reply)["waiters"]).iter().map(flat_map).collect();
        rows.iter().map(|row| integer(&row["left-ms"])).collect::<Vec<_>>()
    };
    assert!((3_590_000..=3_600_000).contains(&left(&mut client)[0]));
    client.ask("CONFIG SET rlock.max-tell-ms 1000");
    assert!(left(&mut client)[0] > 3_500_000, "it does not touch those that wait");
    waits(&mut client, "RLOCK.ACQUIRE door cid BLOCK 60000 TELL ch 2");
    assert!(left(&mut client)[1] <= 1000);
    assert!(ears.heard().starts_with("2 nil "));
}

#[test]
fn t10_transactions_and_scripts() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    let all = client.all(&["MULTI", "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1", "EXEC"]);
    assert_eq!(items(all.last().unwrap())[0], waiting());
    let script = "return redis.call('RLOCK.ACQUIRE','door','cid','BLOCK','0','TELL','ch','2')";
    let said = client.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
    assert_eq!(text(&said), "WAITING");
    client.ask("ACL SETUSER few on >secret ~* &* +eval +rlock.acquire");
    let mut few = server.client_of("few");
    let script = "return redis.call('RLOCK.ACQUIRE','door','dan','BLOCK','0','TELL','ch','3')";
    assert_eq!(text(&few.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"])), "WAITING");
    // The message is sent after the transaction; within it, it would be among the replies.
    client.all(&["MULTI", "RLOCK.RELEASE door ann", "RLOCK.RELEASE door bob", "EXEC"]);
    assert_eq!(words(&ears.heard())[..2], ["1", "token"]);
    assert_eq!(words(&ears.heard())[..2], ["2", "token"]);
    let script = "redis.call('RLOCK.RELEASE','door','cid') \
                  return redis.call('RLOCK.HOLDS','door','dan')";
    assert_eq!(client.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]), Value::Int(1));
    ears.granted("3");
    ears.expect_silence();
}

#[test]
fn t11_one_resp3_connection_asks_and_listens_in_any_database() {
    let server = Server::start();
    let mut client = server.client_resp3();
    let mut other = server.client();
    client.ask("SELECT 3");
    client.send(&["SSUBSCRIBE", "ch"]);
    let confirmed = client.receive();
    assert!(matches!(confirmed, Value::Push { .. }), "{confirmed:?}");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    other.ask("SELECT 3");
    other.ask("RLOCK.RELEASE door ann");
    let Value::Push { data, .. } = client.receive() else { panic!("not a push") };
    assert!(text(&data[1]).starts_with("1 token "), "{data:?}");
}
