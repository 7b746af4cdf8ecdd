//! `LIMIT n`: at most n readers at once; `MAXQUEUE m`: no place if m already wait; and
//! `RLOCK.PLACE`.

use redis::Value;

use rlock_testkit::{Client, Listener, Server, Waiter, flat_map, integer, items, until};

const WORK: &str = "LIMIT 2 LEASE 600000";

fn held() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    client.granted(&format!("RLOCK.ACQUIRE pool ann {WORK}"));
    client.granted(&format!("RLOCK.ACQUIRE pool bob {WORK}"));
    (server, client)
}

#[test]
fn no_more_than_the_limit_hold_at_once_and_they_enter_in_order() {
    let (server, mut client) = held();
    client.refused(&format!("RLOCK.ACQUIRE pool cid READ {WORK}"));
    let mut waiters: Vec<Waiter> = (0..20)
        .map(|n| Waiter::parked(&server, &format!("RLOCK.ACQUIRE pool w{n} {WORK} BLOCK 0")))
        .collect();
    assert_eq!(client.shows("pool"), "read: ann read 1, bob read 1");
    let mut last = 0;
    for number in 0..20 {
        let leaves = match number {
            0 => "ann".to_owned(),
            1 => "bob".to_owned(),
            _ => format!("w{}", number - 2),
        };
        client.ask(&format!("RLOCK.RELEASE pool {leaves}"));
        let token = waiters[number].granted();
        assert!(token > last, "tokens rise");
        last = token;
        assert_eq!(client.lock("pool").holds.len(), 2);
        assert!(!waiters.iter_mut().skip(number + 1).any(Waiter::has_reply), "{number}");
    }
}

#[test]
fn a_dead_holder_gives_back_its_own_permit_and_no_other() {
    let (server, mut client) = held();
    client.ask("RLOCK.RELEASE pool bob");
    let mut dead = Waiter::connect(&server);
    dead.number(&format!("RLOCK.ACQUIRE pool dan {WORK} SESSION"));
    let mut cid = Waiter::parked(&server, &format!("RLOCK.ACQUIRE pool cid {WORK} BLOCK 0"));
    let mut eve = Waiter::parked(&server, &format!("RLOCK.ACQUIRE pool eve {WORK} BLOCK 0"));
    drop(dead);
    cid.granted();
    eve.still_waits(&mut client);
    assert_eq!(client.shows("pool"), "read: ann read 1, cid read 1");
    assert!(client.error("RLOCK.RELEASE pool bob").starts_with("NOTHELD "), "it holds none");
    eve.still_waits(&mut client);

    client.granted("RLOCK.ACQUIRE short one LIMIT 1 LEASE 30");
    let mut two = Waiter::connect(&server);
    two.say("RLOCK.ACQUIRE short two LIMIT 1 LEASE 600000 BLOCK 0");
    two.granted();
}

#[test]
fn entering_again_adds_a_level_and_no_permit() {
    let (_server, mut client) = held();
    let token = client.lock("pool").hold("ann", "read").token;
    assert_eq!(client.granted("RLOCK.ACQUIRE pool ann LIMIT 1 LEASE 600000"), token);
    assert_eq!(client.shows("pool"), "read: ann read 2, bob read 1");
    client.refused("RLOCK.ACQUIRE pool cid LIMIT 2");
    client.granted("RLOCK.ACQUIRE pool cid LIMIT 3");
}

#[test]
fn write_waits_for_all_permits_and_none_passes_it() {
    let (server, mut client) = held();
    let mut clean = Waiter::parked(&server, "RLOCK.ACQUIRE pool cleaner LEASE 600000 BLOCK 0");
    client.refused("RLOCK.ACQUIRE pool cid LIMIT 9");
    client.ask("RLOCK.RELEASE pool ann");
    clean.still_waits(&mut client);
    client.ask("RLOCK.RELEASE pool bob");
    clean.granted();
    client.refused("RLOCK.ACQUIRE pool cid LIMIT 9");
}

#[test]
fn a_refusal_says_when_the_first_permit_is_back() {
    let server = Server::start();
    let mut client = server.client();
    let mut told = |line: &str| integer(&items(&client.ask(line))[1]);
    told("RLOCK.ACQUIRE pool ann LIMIT 2 LEASE 600000 WITHTTL");
    told("RLOCK.ACQUIRE pool bob LIMIT 2 LEASE 60000 WITHTTL");
    let ms = told("RLOCK.ACQUIRE pool cid LIMIT 2 WITHTTL");
    assert!((30_000..=60_001).contains(&ms), "{ms}");
    assert_eq!(told("RLOCK.ACQUIRE pool cid LIMIT 1 WITHTTL"), -1, "two must leave");
    assert_eq!(told("RLOCK.ACQUIRE pool cid LIMIT 2 QUEUE 60000 WITHTTL") / 100_000, 0);
    assert_eq!(told("RLOCK.ACQUIRE pool dan LIMIT 2 WITHTTL"), -1, "somebody is ahead");

    let mut session = Waiter::connect(&server);
    session.number("RLOCK.ACQUIRE kept eve LIMIT 2 LEASE 600000 SESSION");
    let mut client = server.client();
    let mut told = |line: &str| integer(&items(&client.ask(line))[1]);
    assert_eq!(told("RLOCK.ACQUIRE kept cid LIMIT 1 WITHTTL"), -1, "a session keeps it");
    told("RLOCK.ACQUIRE kept bob LIMIT 2 LEASE 60000 WITHTTL");
    let ms = told("RLOCK.ACQUIRE kept cid LIMIT 2 WITHTTL");
    assert!((30_000..=60_001).contains(&ms), "{ms}");
}

#[test]
fn a_ticket_has_its_turn_when_a_permit_is_back() {
    let server = Server::with(&["notify-keyspace-events", "EAd"]);
    let mut client = server.client();
    client.granted(&format!("RLOCK.ACQUIRE pool ann {WORK}"));
    client.granted(&format!("RLOCK.ACQUIRE pool bob {WORK}"));
    let mut listener = Listener::to(&server);
    for owner in ["cid", "dan"] {
        client.refused(&format!("RLOCK.ACQUIRE pool {owner} {WORK} QUEUE 60000"));
    }
    client.ask("RLOCK.RELEASE pool ann");
    let heard = listener.heard(&mut client).join(" ");
    assert!(heard.contains("turn:cid") && !heard.contains("turn:dan"), "{heard}");
    // The turn counts as held.
    client.refused("RLOCK.ACQUIRE pool eve LIMIT 2");
    client.refused("RLOCK.ACQUIRE pool dan LIMIT 2 QUEUE 60000");
    client.granted("RLOCK.ACQUIRE pool cid LIMIT 2");
}

#[test]
fn one_of_two_owners_that_wait_for_each_others_only_permit_is_told_so() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE one ann LIMIT 1 LEASE 600000");
    client.granted("RLOCK.ACQUIRE two bob LIMIT 1 LEASE 600000");
    let _ann = Waiter::parked(&server, "RLOCK.ACQUIRE two ann LIMIT 1 BLOCK 0");
    let error = client.error("RLOCK.ACQUIRE one bob LIMIT 1 BLOCK 0");
    assert!(error.starts_with("DEADLOCK "), "{error}");
    // Under a higher limit, another reader may leave: nothing is published, and the wait is
    // bounded.
    client.granted("RLOCK.ACQUIRE one eve LIMIT 2 LEASE 600000");
    client.refused("RLOCK.ACQUIRE one bob LIMIT 2 BLOCK 20");
}

#[test]
fn limits_survive_no_restart_because_there_are_none_to_keep() {
    let server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    client.granted(&format!("RLOCK.ACQUIRE pool ann {WORK}"));
    client.granted(&format!("RLOCK.ACQUIRE pool bob {WORK}"));
    client.ask("DEBUG RELOAD");
    assert_eq!(client.shows("pool"), "read: ann read 1, bob read 1");
    client.refused("RLOCK.ACQUIRE pool cid LIMIT 2");
    client.granted("RLOCK.ACQUIRE pool cid LIMIT 3");
}

#[test]
fn a_queue_that_is_long_enough_takes_nobody_more() {
    let (server, mut client) = held();
    client.refused("RLOCK.ACQUIRE pool cid LIMIT 2 BLOCK 0 MAXQUEUE 0");
    client.refused("RLOCK.ACQUIRE pool cid QUEUE 60000 MAXQUEUE 0");
    assert_eq!(client.queue("pool"), "");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE pool cid LIMIT 2 BLOCK 0 MAXQUEUE 1");
    client.refused("RLOCK.ACQUIRE pool dan LIMIT 2 BLOCK 0 MAXQUEUE 1");
    client.refused("RLOCK.ACQUIRE pool dan LIMIT 2 QUEUE 60000 MAXQUEUE 1");
    client.refused("RLOCK.ACQUIRE pool dan LIMIT 2 QUEUE 60000 MAXQUEUE 2");
    assert_eq!(client.queue("pool"), "cid read block, dan read queue");
    // It keeps its place, also as a blocked wait.
    client.refused("RLOCK.ACQUIRE pool dan LIMIT 2 QUEUE 60000 MAXQUEUE 0");
    let mut dan = Waiter::parked(&server, "RLOCK.ACQUIRE pool dan LIMIT 2 BLOCK 0 MAXQUEUE 0");
    client.ask("RLOCK.FORCE pool");
    cid.granted();
    dan.granted();
    // If nobody is in the way, there is no queue; without a wait, it has no effect.
    client.granted("RLOCK.ACQUIRE free ann LEASE 600000 BLOCK 0 MAXQUEUE 0");
    client.refused("RLOCK.ACQUIRE free bob MAXQUEUE 0");
}

#[test]
fn a_long_queue_comes_before_max_waiters_and_the_search_for_deadlocks() {
    let server = Server::with(&["rlock.max-waiters", "0"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE one ann LEASE 600000");
    client.refused("RLOCK.ACQUIRE one bob BLOCK 0 MAXQUEUE 0");
    assert!(client.error("RLOCK.ACQUIRE one bob BLOCK 0").starts_with("TOOMANY "));
    client.ask("CONFIG SET rlock.max-waiters 10");
    client.granted("RLOCK.ACQUIRE two bob LEASE 600000");
    let _ann = Waiter::parked(&server, "RLOCK.ACQUIRE two ann BLOCK 0");
    let _cid = Waiter::parked(&server, "RLOCK.ACQUIRE one cid BLOCK 0");
    client.refused("RLOCK.ACQUIRE one bob BLOCK 0 MAXQUEUE 1");
    assert!(client.error("RLOCK.ACQUIRE one bob BLOCK 0 MAXQUEUE 2").starts_with("DEADLOCK "));
}

#[test]
fn waiters_are_shown_with_their_limit_and_their_connection() {
    let (server, mut client) = held();
    let cid = Waiter::parked(&server, "RLOCK.ACQUIRE pool cid LIMIT 2 BLOCK 0");
    let dan = Waiter::parked(&server, "RLOCK.ACQUIRE pool dan BLOCK 0");
    client.refused("RLOCK.ACQUIRE pool eve LIMIT 7 QUEUE 60000");
    let reply = client.ask("RLOCK.INFO pool");
    let fields = flat_map(&reply);
    let rows: Vec<(i64, i64)> = items(&fields["waiters"])
        .iter()
        .map(flat_map)
        .map(|row| (integer(&row["limit"]), integer(&row["client"])))
        .collect();
    assert_eq!(rows, [(2, cid.id()), (0, dan.id()), (7, 0)]);
    // This is what the number is for.
    client.ask(&format!("CLIENT KILL ID {}", rows[0].1));
    until(5_000, || client.queue("pool") == "dan write block, eve read queue");
}

#[test]
fn place_says_how_many_come_before() {
    let (server, mut client) = held();
    let places = |client: &mut Client| {
        let place = |owner| client.ask(&format!("RLOCK.PLACE pool {owner}"));
        ["ann", "cid", "dan", "eve"].map(place)
    };
    let ints = |numbers: [i64; 3]| numbers.map(Value::Int);
    assert_eq!(places(&mut client), [const { Value::Nil }; 4]);
    client.refused("RLOCK.ACQUIRE pool cid LIMIT 2 QUEUE 60000");
    let _dan = Waiter::parked(&server, "RLOCK.ACQUIRE pool dan BLOCK 0");
    client.refused("RLOCK.ACQUIRE pool eve LIMIT 2 QUEUE 60000");
    assert_eq!(places(&mut client)[1..], ints([1, 2, 3]));
    client.ask("RLOCK.RELEASE pool ann");
    assert_eq!(places(&mut client)[1..], ints([0, 2, 3]), "the turn of cid");
    client.granted("RLOCK.ACQUIRE pool cid LIMIT 2");
    assert_eq!(places(&mut client), [Value::Nil, Value::Nil, Value::Int(1), Value::Int(2)]);
    assert_eq!(client.ask("RLOCK.PLACE nothing ann"), Value::Nil);
    client.ask("SET text x");
    assert!(client.error("RLOCK.PLACE text ann").starts_with("WRONGTYPE "));
}

#[test]
fn place_is_known_to_the_primary_alone() {
    let server = Server::primary(&[]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE pool ann LEASE 600000");
    client.refused("RLOCK.ACQUIRE pool cid QUEUE 60000");
    let replica = Server::replica_of(&server, &[]);
    let error = replica.client().error("RLOCK.PLACE pool cid");
    assert!(error.starts_with("ERR ") && error.contains("replica"), "{error}");
}
