//! `TELL`: permissions, sessions, acknowledgments, order, clusters, files, and what operators see.

use redis::Value;
use rlock_testkit::{Cluster, Server, Subscriber, Waiter, flat_map, integer, items, text, until};

use crate::acks::pair;
use crate::tell::{tells, waiting, waits, words};

#[test]
fn t12_the_right_to_the_channel_is_checked_twice() {
    let server = Server::start();
    let mut admin = server.client();
    admin.ask("ACL SETUSER app on >secret ~* &allowed +@all");
    let mut client = server.client_of("app");
    let mut ears = Subscriber::to(&server, "allowed");
    admin.granted("RLOCK.ACQUIRE door ann");
    let refused = client.error("RLOCK.ACQUIRE door bob BLOCK 0 TELL other 1");
    assert!(refused.starts_with("NOPERM"), "{refused}");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL allowed 1");
    waits(&mut admin, "RLOCK.ACQUIRE door cid BLOCK 0 TELL allowed 2");
    // The user loses the permission for the channel, and then the user itself is removed.
    admin.ask("ACL SETUSER app resetchannels");
    admin.ask("RLOCK.RELEASE door ann");
    ears.granted("2");
    assert_eq!(tells(&mut admin), [0, 1, 1]);
    admin.ask("ACL SETUSER app &allowed");
    let mut client = server.client_of("app");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL allowed 3");
    waits(&mut admin, "RLOCK.ACQUIRE door dan BLOCK 0 TELL allowed 4");
    // The permission for the lock, as for a blocked connection.
    admin.ask("ACL SETUSER app -rlock.acquire");
    admin.ask("RLOCK.RELEASE door cid");
    assert!(ears.heard().starts_with("3 error NOPERM "));
    ears.granted("4");
    admin.ask("ACL SETUSER app +rlock.acquire");
    let mut client = server.client_of("app");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL allowed 5");
    waits(&mut admin, "RLOCK.ACQUIRE door eve BLOCK 0 TELL allowed 6");
    admin.ask("ACL DELUSER app");
    admin.ask("RLOCK.RELEASE door dan");
    ears.granted("6");
    ears.expect_silence();
}

#[test]
fn t13_a_session_is_tied_to_the_connection_that_asked() {
    let server = Server::start();
    let mut client = server.client();
    let mut ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    let mut asker = Waiter::connect(&server);
    for (id, owner) in ["bob", "cid"].iter().enumerate() {
        let line = format!("RLOCK.ACQUIRE door {owner} SESSION BLOCK 0 TELL ch {id}");
        assert_eq!(asker.ask(&line), waiting());
    }
    let mut gone = Waiter::connect(&server);
    let line = "RLOCK.ACQUIRE door dan SESSION BLOCK 0 TELL ch 9";
    assert_eq!(gone.ask(line), waiting());
    client.ask(&format!("CLIENT KILL ID {}", gone.id()));
    until(5000, || client.counted("tells") == 2);
    client.ask("RLOCK.RELEASE door ann");
    ears.granted("0");
    assert_eq!(client.session_of("door", "bob"), asker.id());
    client.ask(&format!("CLIENT KILL ID {}", asker.id()));
    until(5000, || client.shows("door") == "free" || client.counted("tells") == 0);
    ears.expect_silence();
    assert_eq!(tells(&mut client), [0, 1, 0]);
}

#[test]
fn t14_acks_without_a_blocked_connection() {
    let (primary, replica) = pair(&[]);
    let mut client = primary.client();
    let mut ears = Subscriber::to(&primary, "ch");
    waits(&mut client, "RLOCK.ACQUIRE door ann ACKS 1 TELL ch 1");
    let (token, _) = ears.granted("1");
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 1);
    waits(&mut client, "RLOCK.RENEW door ann ACKS 1 TELL ch 2");
    assert_eq!(ears.heard(), "2 renewed");
    waits(&mut client, "RLOCK.MACQUIRE 2 a b cid ACKS 1 TELL ch 3");
    ears.granted("3");
    waits(&mut client, "RLOCK.MRENEW 2 a b cid ACKS 1 TELL ch 4");
    assert_eq!(ears.heard(), "4 renewed");
    waits(&mut client, "RLOCK.ACQUIRE door bob ACKS 1 BLOCK 0 TELL ch 5");
    client.ask("RLOCK.RELEASE door ann");
    let (token, _) = ears.granted("5");
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 1);
    let all = client.all(&["MULTI", "RLOCK.ACQUIRE hall eve ACKS 1 TELL ch 6", "EXEC"]);
    assert_eq!(items(all.last().unwrap())[0], waiting());
    ears.granted("6");
    // A replica that is silent.
    client.ask("CONFIG SET rlock.acks-timeout-ms 50");
    replica.freeze();
    waits(&mut client, "RLOCK.ACQUIRE late fay ACKS 1 TELL ch 7");
    assert_eq!(client.number("RLOCK.CANCEL late fay"), 0);
    let message = ears.heard();
    assert!(message.starts_with("7 error NOACKS ") && message.contains("fay"), "{message}");
    assert_eq!(client.number("RLOCK.HOLDS late fay"), 0);
    replica.thaw();
    ears.expect_silence();
}

#[test]
fn t14_a_pending_request_is_asked_again_and_counts_once() {
    let (primary, replica) = pair(&[]);
    let mut client = primary.client();
    let (mut old, mut new) = (Subscriber::to(&primary, "old"), Subscriber::to(&primary, "new"));
    replica.freeze();
    waits(&mut client, "RLOCK.ACQUIRE door ann DEPTH 1 ACKS 1 TELL old 1");
    waits(&mut client, "RLOCK.ACQUIRE door ann DEPTH 1 ACKS 1 TELL new 2");
    waits(&mut client, "RLOCK.MACQUIRE 2 a b bob ACKS 1 TELL old 3");
    waits(&mut client, "RLOCK.MACQUIRE 2 a b bob ACKS 1 TELL new 4");
    assert_eq!((client.counted("tells"), client.counted("acks_pending")), (2, 2));
    replica.thaw();
    new.granted("2");
    new.granted("4");
    new.expect_silence();
    old.expect_silence();
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 1);
}

#[test]
fn t15_messages_of_one_step_come_after_its_events_in_the_order_of_the_grants() {
    let server = Server::with(&["notify-keyspace-events", "Ed"]);
    let mut client = server.client();
    let mut both = Waiter::connect(&server);
    both.ask("PSUBSCRIBE __keyevent@0__:rlock.*");
    both.ask("SSUBSCRIBE ch");
    client.granted("RLOCK.ACQUIRE door ann");
    both.answer();
    for id in 1..=3 {
        waits(&mut client, &format!("RLOCK.ACQUIRE door o{id} READ BLOCK 0 TELL ch {id}"));
    }
    client.ask("RLOCK.RELEASE door ann");
    let mut kinds = Vec::new();
    for _ in 0..7 {
        let message = both.answer();
        let parts = items(&message);
        let said = text(&parts[parts.len() - 1]);
        let is_event = text(&parts[0]) == "pmessage";
        kinds.push(if is_event { "event".into() } else { words(&said)[0].to_owned() });
    }
    assert_eq!(kinds, ["event", "event", "event", "event", "1", "2", "3"]);
}

#[test]
fn t16_in_a_cluster_the_channel_is_in_the_slot_of_the_key() {
    let cluster = Cluster::of_two();
    let mut client = cluster.client(0);
    let mut ears = Subscriber::to(cluster.node(0), "{hall}:1");
    client.granted("RLOCK.ACQUIRE hall ann");
    let refused = client.error("RLOCK.ACQUIRE hall bob BLOCK 0 TELL door 1");
    assert!(refused.starts_with("CROSSSLOT"), "{refused}");
    waits(&mut client, "RLOCK.ACQUIRE hall bob BLOCK 0 TELL {hall}:1 1");
    client.ask("RLOCK.RELEASE hall ann");
    ears.granted("1");
    waits(&mut client, "RLOCK.ACQUIRE hall cid BLOCK 0 TELL {hall}:1 2");
    cluster.move_slot(4903, 0, 1);
    // The server unsubscribes the channel: that is the signal to ask the new owner.
    let (kind, said) = ears.next_message();
    assert!(kind == "sunsubscribe" || said.starts_with("2 error "), "{kind} {said}");
    let mut client = cluster.client(1);
    until(5000, || client.attempt("RLOCK.HOLDS hall bob") == Ok(Value::Int(1)));
    let mut ears = Subscriber::to(cluster.node(1), "{hall}:1");
    waits(&mut client, "RLOCK.ACQUIRE hall cid BLOCK 0 TELL {hall}:1 3");
    client.ask("RLOCK.RELEASE hall bob");
    ears.granted("3");
}

#[test]
fn t17_a_waiting_request_is_neither_replicated_nor_saved() {
    let mut server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    server.restart();
    let mut client = server.client();
    assert_eq!((client.queue("door"), client.counted("tells")), (String::new(), 0));
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 1);
}

#[test]
fn t18_info_shows_kind_and_channel() {
    let server = Server::start();
    let mut client = server.client();
    let _ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob SESSION BLOCK 0 TELL ch 1");
    waits(&mut client, "RLOCK.MACQUIRE 2 door gate cid BLOCK 0 TELL ch 2");
    let mut blocked = Waiter::parked(&server, "RLOCK.ACQUIRE door dan BLOCK 0");
    let reply = client.ask("RLOCK.INFO door");
    let rows = flat_map(&reply);
    for (row, kind, channel) in items(&rows["waiters"])
        .iter()
        .zip([("tell", "ch"), ("tell", "ch"), ("block", "")])
        .map(|(row, (kind, channel))| (row, kind, channel))
    {
        let last = items(row);
        assert_eq!(text(&last[last.len() - 2]), "channel", "the last field");
        let row = flat_map(row);
        assert_eq!((text(&row["kind"]), text(&row["channel"])), (kind.into(), channel.into()));
        let client = integer(&row["client"]);
        assert_eq!(client, if kind == "tell" { 0 } else { blocked.id() });
    }
    waits(&mut client, "RLOCK.AWAIT free 0 BLOCK 0 TELL ch 3");
    assert_eq!(["tells", "waiters", "observers"].map(|name| client.counted(name)), [3, 1, 1]);
    blocked.still_waits(&mut client);
}

#[test]
fn t19_a_wait_with_tell_closes_a_cycle() {
    let server = Server::start();
    let mut client = server.client();
    let _ears = Subscriber::to(&server, "ch");
    client.granted("RLOCK.ACQUIRE one ann");
    client.granted("RLOCK.ACQUIRE two bob");
    waits(&mut client, "RLOCK.ACQUIRE two ann BLOCK 0 TELL ch 1");
    let refused = client.error("RLOCK.ACQUIRE one bob BLOCK 0 TELL ch 2");
    assert!(refused.starts_with("DEADLOCK"), "{refused}");
    // The same goes for a ticket whose owner asks again with TELL; if that is refused, it remains a
    // ticket.
    client.refused("RLOCK.ACQUIRE one bob QUEUE 60000");
    let refused = client.error("RLOCK.ACQUIRE one bob BLOCK 0 TELL ch 3");
    assert!(refused.starts_with("DEADLOCK"), "{refused}");
    assert_eq!((client.counted("tickets"), client.counted("tells")), (1, 1));
}

#[test]
fn t20_limits() {
    let server = Server::start();
    let mut client = server.client();
    let _ears = Subscriber::to(&server, "ch");
    client.ask("CONFIG SET rlock.max-tells 2");
    client.ask("CONFIG SET rlock.max-waiters 0");
    client.granted("RLOCK.ACQUIRE door ann");
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 1");
    waits(&mut client, "RLOCK.AWAIT hall 0 BLOCK 0 TELL ch 2");
    for line in [
        "RLOCK.ACQUIRE door cid BLOCK 0 TELL ch 3",
        "RLOCK.MACQUIRE 1 door cid BLOCK 0 TELL ch 3",
        "RLOCK.AWAIT gate 0 BLOCK 0 TELL ch 3",
    ] {
        let refused = client.error(line);
        assert!(
            refused.starts_with("TOOMANY") && refused.contains("rlock.max-tells is 2"),
            "{refused}"
        );
    }
    // An owner that has a place keeps it.
    waits(&mut client, "RLOCK.ACQUIRE door bob BLOCK 0 TELL ch 4");
    waits(&mut client, "RLOCK.AWAIT hall 0 BLOCK 0 TELL ch 2");
    assert_eq!(client.counted("tells"), 2);
    client.granted("RLOCK.ACQUIRE gate cid BLOCK 0 TELL ch 5");
}

#[test]
fn groups_wait_for_messages() {
    let server = Server::start();
    let mut client = server.client();
    let (mut ears, mut other) = (Subscriber::to(&server, "ch"), Subscriber::to(&server, "other"));
    client.granted("RLOCK.ACQUIRE a ann");
    client.granted("RLOCK.ACQUIRE b ann");
    waits(&mut client, "RLOCK.MACQUIRE 2 a b bob BLOCK 0 TELL other 1");
    waits(&mut client, "RLOCK.ACQUIRE a cid BLOCK 0 TELL ch 2");
    // It keeps its place before the single request.
    waits(&mut client, "RLOCK.MACQUIRE 2 b a bob LEASE 60000 BLOCK 0 TELL ch 3");
    assert_eq!((client.counted("tells"), client.counted("groups")), (2, 1));
    client.number("RLOCK.MRELEASE 2 a b ann");
    let (token, ms) = ears.granted("3");
    assert!(ms > 30_000, "{ms}");
    assert_eq!(client.number(&format!("RLOCK.MRELEASE 2 a b bob TOKEN {token}")), 2);
    ears.granted("2");
    other.expect_silence();
    // Nobody listens for a group: those behind it are served in the same step.
    waits(&mut client, "RLOCK.MACQUIRE 2 a b eve BLOCK 0 TELL nobody 4");
    waits(&mut client, "RLOCK.ACQUIRE a fay BLOCK 0 TELL ch 5");
    client.ask("RLOCK.RELEASE a cid");
    ears.granted("5");
    waits(&mut client, "RLOCK.MACQUIRE 2 a b eve BLOCK 0 TELL ch 6");
    assert_eq!(client.number("RLOCK.CANCEL b eve"), 1);
    waits(&mut client, "RLOCK.MACQUIRE 2 a b eve BLOCK 5 TELL ch 7");
    assert!(ears.heard().starts_with("7 nil "));
    ears.expect_silence();
    assert_eq!(client.counted("untold"), 1);
}
