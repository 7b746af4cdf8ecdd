//! `RLOCK.MACQUIRE … QUEUE`: places and turns at several locks for connections that must not block.

use rlock_testkit::{Listener, Server, Waiter, flat_map, integer, items, now_ms, text, until};

#[test]
fn one_message_says_that_all_locks_are_kept() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let (mut client, mut listener) = (server.client(), Listener::to(&server));
    client.granted("RLOCK.ACQUIRE stock bob LEASE 600000");
    client.refused("RLOCK.MACQUIRE 3 stock basket cart ann QUEUE 60000");
    assert_eq!(client.gauges(), (0, 3, 0));
    assert_eq!(client.info_number("rlock", "rlock_groups"), 1);
    assert_eq!(client.info_number("rlock", "rlock_group_turns"), 2);
    client.refused("RLOCK.ACQUIRE basket cy");
    for (key, turn) in [("basket", 1), ("stock", 0)] {
        let shown = flat_map(&client.ask(&format!("RLOCK.INFO {key}")));
        assert_eq!(integer(&shown["queue-length"]), 1, "{key}");
        let row = flat_map(&items(&shown["waiters"])[0]);
        assert_eq!((integer(&row["turn"]), integer(&row["keys"])), (turn, 3), "{key}");
        assert_eq!((text(&row["at"]), text(&row["kind"])), ("stock".into(), "queue".into()));
        assert_eq!(integer(&row["client"]), 0);
        assert!((1..=60_000).contains(&integer(&row["left-ms"])), "{row:?}");
        assert_eq!(client.number(&format!("RLOCK.PLACE {key} ann")), 1 - turn, "{key}");
    }
    assert_eq!(listener.heard(&mut client), ["rlock.acquired stock"]);
    client.number("RLOCK.RELEASE stock bob");
    assert_eq!(listener.heard(&mut client), ["rlock.released stock", "rlock.turn:ann basket"]);
    let shown = flat_map(&client.ask("RLOCK.INFO stock"));
    assert_eq!(text(&flat_map(&items(&shown["waiters"])[0])["at"]), "", "it has reached all");
    client.refused("RLOCK.ACQUIRE stock cy");
    let token = client.granted("RLOCK.MACQUIRE 3 cart stock basket ann QUEUE 60000");
    for key in ["basket", "cart", "stock"] {
        assert_eq!(client.number(&format!("RLOCK.CHECK {key} {token}")), 1, "{key}");
    }
    assert_eq!(client.gauges(), (0, 0, 0));
    assert_eq!(client.info_number("rlock", "rlock_group_turns"), 0);
    assert_eq!(client.counted("groups_granted"), 1);
}

#[test]
fn all_turns_end_with_the_window_and_whoever_waits_is_granted() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE c bob LEASE 600000");
    let asked_at = now_ms();
    client.refused("RLOCK.MACQUIRE 3 a b c ann QUEUE 200");
    let mut cy = Waiter::parked(&server, "RLOCK.ACQUIRE a cy BLOCK 0");
    let mut dan = Waiter::parked(&server, "RLOCK.ACQUIRE b dan BLOCK 0");
    cy.granted();
    dan.granted();
    assert!(now_ms() - asked_at >= 200);
    until(5_000, || client.gauges() == (0, 0, 0));
}

#[test]
fn a_blocked_wait_takes_the_places_over_and_keeps_nothing_when_it_ends() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE b bob LEASE 600000");
    client.refused("RLOCK.MACQUIRE 2 a b ann QUEUE 60000");
    client.refused("RLOCK.ACQUIRE b cy QUEUE 60000");
    let mut ann = Waiter::parked(&server, "RLOCK.MACQUIRE 2 b a ann BLOCK 0");
    assert_eq!(client.queue("b"), "ann write block, cy write queue");
    client.number("RLOCK.RELEASE b bob");
    ann.granted();
    client.number("RLOCK.MRELEASE 2 a b ann");
    client.number("RLOCK.CANCEL b cy");
    client.granted("RLOCK.ACQUIRE b bob LEASE 600000");
    client.refused("RLOCK.MACQUIRE 2 a b ann QUEUE 60000");
    let ann = Waiter::parked(&server, "RLOCK.MACQUIRE 2 a b ann BLOCK 0");
    client.ask(&format!("CLIENT KILL ID {}", ann.id()));
    until(5_000, || client.info_number("rlock", "rlock_groups") == 0);
    client.granted("RLOCK.ACQUIRE a dan");
}

#[test]
fn no_more_keys_have_tickets_than_allowed() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("CONFIG SET rlock.max-tickets 3");
    client.granted("RLOCK.ACQUIRE a bob");
    client.refused("RLOCK.MACQUIRE 2 a b ann QUEUE 60000");
    let error = client.error("RLOCK.MACQUIRE 2 a c cy QUEUE 60000");
    assert!(error.starts_with("TOOMANY "), "{error}");
    client.refused("RLOCK.ACQUIRE a cy QUEUE 60000");
    client.refused("RLOCK.MACQUIRE 2 b a ann QUEUE 60000");
    let error = client.error("RLOCK.ACQUIRE a dan QUEUE 60000");
    assert!(error.starts_with("TOOMANY "), "{error}");
    assert_eq!(client.gauges(), (0, 3, 0));
}

#[test]
fn a_replica_hears_of_a_grant_and_not_of_a_ticket() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE b bob LEASE 600000");
    client.refused("RLOCK.MACQUIRE 2 a b ann QUEUE 60000");
    let script = "return redis.call('RLOCK.MACQUIRE', 2, 'a', 'b', 'ann', 'QUEUE', 60000)";
    assert_eq!(client.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]), redis::Value::Nil);
    client.ask("WAIT 1 5000");
    let mut reader = replica.client();
    assert_eq!(reader.number("EXISTS a b"), 1);
    client.number("RLOCK.RELEASE b bob");
    client.granted("RLOCK.MACQUIRE 2 a b ann");
    client.ask("WAIT 1 5000");
    assert_eq!(reader.number("RLOCK.HOLDS a ann"), 1);
    assert_eq!(reader.number("RLOCK.HOLDS b ann"), 1);
}
