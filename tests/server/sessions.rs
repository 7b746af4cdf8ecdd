//! `SESSION`: a hold that lasts as long as a connection. The end of the connection, whatever the
//! cause, ends the hold and lets the next in line enter; and whatever else ends the hold closes the
//! connection.

use redis::Value;

use rlock_testkit::{
    Client, Listener, Program, Server, Waiter, integer, is_connected, items, now_ms, until,
};

const HOLD: &str = "RLOCK.ACQUIRE door ann LEASE 600000 SESSION";
const WAIT: &str = "RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0";

/// `ann` holds `door` by a session, `bob` waits for it.
fn scene() -> (Server, Client, Waiter, Waiter) {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut ann = Waiter::connect(&server);
    ann.number(HOLD);
    let bob = Waiter::parked(&server, WAIT);
    let client = server.client();
    (server, client, ann, bob)
}

/// Asserts that `bob` has entered because a connection ended, and that nothing remains of its
/// session.
#[track_caller]
fn bob_enters(client: &mut Client, bob: &mut Waiter) {
    bob.granted();
    assert_eq!(client.shows("door"), "write: bob write 1");
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn a_connection_that_is_closed_ends_its_hold_and_the_next_enters() {
    let (server, mut client, ann, mut bob) = scene();
    let mut listener = Listener::to(&server);
    assert_eq!(client.gauges(), (1, 0, 1));
    assert_eq!(client.session_of("door", "ann"), ann.id());
    drop(ann);
    bob_enters(&mut client, &mut bob);
    assert_eq!(client.counted("disconnected"), 1);
    assert_eq!(client.session_of("door", "bob"), 0);
    let said = ["rlock.disconnected door", "rlock.acquired door"];
    assert_eq!(listener.heard_after_a_turn(&mut client), said);
}

#[test]
fn a_client_that_is_killed_with_sigkill_ends_its_hold() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Program::start(&server);
    assert!(ann.ask(HOLD).contains(|character: char| character.is_ascii_digit()));
    let mut bob = Waiter::parked(&server, WAIT);
    ann.kill_9();
    bob_enters(&mut client, &mut bob);
}

#[test]
fn a_hold_whose_connection_ends_while_nobody_waits_is_gone_too() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    for key in ["door", "gate", "wall"] {
        ann.number(&format!("RLOCK.ACQUIRE {key} ann LEASE 600000 SESSION"));
    }
    ann.number("RLOCK.ACQUIRE plain ann LEASE 600000");
    ann.number("RLOCK.ACQUIRE gate ann READ LEASE 600000 SESSION");
    assert_eq!(client.gauges(), (0, 0, 4));
    drop(ann);
    until(5_000, || client.number("EXISTS door gate wall") == 0);
    assert_eq!(client.shows("plain"), "write: ann write 1");
    assert_eq!(client.gauges(), (0, 0, 0));
    assert_eq!(client.counted("disconnected"), 4);
}

#[test]
fn client_kill_and_quit_end_the_hold() {
    let (_server, mut client, mut ann, mut bob) = scene();
    client.ask(&format!("CLIENT KILL ID {}", ann.id()));
    ann.expect_close();
    bob_enters(&mut client, &mut bob);
    let (_server, mut client, mut ann, mut bob) = scene();
    ann.say("QUIT");
    ann.last_words();
    bob_enters(&mut client, &mut bob);
}

#[test]
fn a_connection_that_reads_too_slowly_is_cut_off_and_its_hold_ends() {
    let (_server, mut client, mut ann, mut bob) = scene();
    let limit: [&[u8]; 4] =
        [b"CONFIG", b"SET", b"client-output-buffer-limit", b"pubsub 100000 0 0"];
    client.ask_bytes(&limit);
    ann.say("SUBSCRIBE news");
    until(5_000, || integer(&items(&client.ask("PUBSUB NUMSUB news"))[1]) == 1);
    let page = vec![b'x'; 50_000];
    until(10_000, || {
        client.ask_bytes(&[b"PUBLISH", b"news", &page]);
        !is_connected(&mut client, ann.id())
    });
    bob_enters(&mut client, &mut bob);
}

#[test]
fn a_session_that_waited_begins_with_the_grant() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door zoe");
    let mut ann = Waiter::parked(&server, "RLOCK.ACQUIRE door ann LEASE 600000 SESSION BLOCK 0");
    let mut bob = Waiter::parked(&server, WAIT);
    assert_eq!(client.gauges(), (2, 0, 0));
    client.ask("RLOCK.RELEASE door zoe");
    ann.granted();
    assert_eq!(client.session_of("door", "ann"), ann.id());
    drop(ann);
    bob_enters(&mut client, &mut bob);
}

#[test]
fn while_the_connection_lives_the_server_renews_the_lease() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    let token = ann.number("RLOCK.ACQUIRE door ann LEASE 3000 SESSION");
    let mut bob = Waiter::parked(&server, WAIT);
    let began_ms = now_ms();
    until(20_000, || {
        let hold = client.lock("door").hold("ann", "write").clone();
        assert_eq!(hold.token, token);
        // Renewed after each third, so two thirds always remain; less if this machine is busy.
        assert!((100..=3_000).contains(&hold.ttl_ms), "{hold:?}");
        now_ms() > began_ms + 4_000
    });
    bob.still_waits(&mut client);
    // No RENEW commands: the field counts those.
    assert_eq!(client.counted("renewed"), 0);
    assert_eq!(ann.number("RLOCK.RELEASE door ann"), 0);
    bob_enters(&mut client, &mut bob);
    ann.expect_silence();
}

#[test]
fn a_release_ends_the_session_and_not_the_connection() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    ann.number(HOLD);
    ann.number(HOLD);
    assert_eq!(ann.number("RLOCK.RELEASE door ann"), 1);
    assert_eq!(client.session_of("door", "ann"), ann.id());
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
    assert_eq!(client.gauges(), (0, 0, 0));
    ann.number("RLOCK.ACQUIRE door ann LEASE 600000");
    drop(ann);
    client.refused("RLOCK.ACQUIRE door bob");
}

#[test]
fn a_hold_that_is_ended_otherwise_closes_the_connection() {
    for line in [
        "RLOCK.FORCE door",
        "DEL door",
        "UNLINK door",
        "FLUSHALL",
        "FLUSHDB ASYNC",
        "RENAME door elsewhere",
        "RENAME other door",
        "MOVE door 5",
        "SWAPDB 0 5",
        "SET door text",
    ] {
        let server = Server::start();
        let mut client = server.client();
        let mut ann = Waiter::connect(&server);
        ann.number(HOLD);
        client.ask("SET other text");
        client.ask(line);
        ann.expect_close();
        assert_eq!(client.gauges(), (0, 0, 0), "{line}");
    }
}

#[test]
fn a_database_swapped_with_itself_keeps_its_sessions_and_its_waiters() {
    let (_server, mut client, mut ann, mut bob) = scene();
    for line in ["SWAPDB 0 0", "SWAPDB 5 5", "MULTI", "SWAPDB 0 0", "EXEC"] {
        client.ask(line);
    }
    assert_eq!(client.gauges(), (1, 0, 1));
    bob.still_waits(&mut client);
    assert_eq!(ann.number("RLOCK.RELEASE door ann"), 0);
    bob_enters(&mut client, &mut bob);
}

#[test]
fn a_hold_that_was_moved_away_lives_on_with_its_lease() {
    let (_server, mut client, mut ann, mut bob) = scene();
    client.ask("RENAME door elsewhere");
    ann.expect_close();
    bob_enters(&mut client, &mut bob);
    assert_eq!(client.shows("elsewhere"), "write: ann write 1");
    assert_eq!(client.session_of("elsewhere", "ann"), 0);
}

#[test]
fn who_ends_the_hold_of_its_own_session_hears_so_before_the_connection_is_closed() {
    for (line, reply) in [
        ("RLOCK.FORCE door", Value::Int(1)),
        ("DEL door", Value::Int(1)),
        ("RENAME door elsewhere", Value::Okay),
        ("SET door text", Value::Okay),
        ("FLUSHALL", Value::Okay),
    ] {
        let server = Server::start();
        let mut ann = Waiter::connect(&server);
        ann.number(HOLD);
        ann.say(line);
        assert_eq!(ann.last_words(), [Ok(reply)], "{line}");
        assert_eq!(server.client().gauges(), (0, 0, 0), "{line}");
    }
}

#[test]
fn a_script_that_ends_the_hold_of_its_callers_session_goes_on_as_the_same_user() {
    let server = Server::start();
    let mut client = server.client();
    // The server removes a connection's user when it closes it: this may not happen during a
    // script.
    client.ask("CONFIG SET requirepass secret");
    client.ask("SET treasure gold");
    client.ask("ACL SETUSER guest on >secret ~door +eval +client +rlock.acquire +rlock.force +get");
    let mut guest = Waiter::connect_as(&server, "guest");
    guest.number("RLOCK.ACQUIRE door ann SESSION");
    let thief = "redis.call('RLOCK.FORCE',KEYS[1]);return{redis.pcall('GET','treasure')}";
    guest.say(&format!("EVAL {thief} 1 door"));
    let words = guest.last_words();
    assert_eq!(words.len(), 1, "{words:?}");
    assert!(!format!("{words:?}").contains("gold"), "{words:?}");
}

#[test]
fn a_session_whose_lease_was_cut_short_by_another_expiry_is_closed() {
    let (_server, mut client, mut ann, mut bob) = scene();
    client.ask("PEXPIRE door 30");
    ann.expect_close();
    bob_enters(&mut client, &mut bob);
}

#[test]
fn a_lock_that_is_evicted_closes_the_connection_of_its_session() {
    let (server, mut client, mut ann, mut bob) = scene();
    client.ask("CONFIG SET maxmemory-policy allkeys-lru");
    let mut teller = Waiter::connect(&server);
    teller.say_all(&["CONFIG SET maxmemory 1", "SET some text", "CONFIG SET maxmemory 0"]);
    ann.expect_close();
    bob_enters(&mut client, &mut bob);
}

#[test]
fn the_tie_outlives_a_reload() {
    let (_server, mut client, mut ann, mut bob) = scene();
    client.ask("DEBUG RELOAD");
    assert_eq!(client.session_of("door", "ann"), ann.id());
    ann.expect_silence();
    bob.still_waits(&mut client);
    drop(ann);
    bob_enters(&mut client, &mut bob);
}

#[test]
fn the_connection_that_asked_last_has_the_tie() {
    let (server, mut client, mut first, mut bob) = scene();
    let mut second = Waiter::connect(&server);
    second.number(&format!("{HOLD} DEPTH 1"));
    assert_eq!(client.session_of("door", "ann"), second.id());
    assert_eq!(client.gauges(), (1, 0, 1));
    first.expect_silence();
    drop(first);
    // A re-entry without SESSION leaves the hold tied to the same connection.
    client.granted("RLOCK.ACQUIRE door ann");
    assert_eq!(client.session_of("door", "ann"), second.id());
    assert_eq!(client.shows("door"), "write: ann write 2");
    bob.still_waits(&mut client);
    drop(second);
    bob_enters(&mut client, &mut bob);
}

#[test]
fn a_wait_that_is_denied_leaves_the_tie_to_the_other_connection() {
    const TIED: &str = "RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0 SESSION";
    let server = Server::start();
    let mut client = server.client();
    client.ask("ACL SETUSER guest on >secret ~* +@all");
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut first = Waiter::parked(&server, TIED);
    let mut denied = Waiter::connect_as(&server, "guest");
    denied.park(&server, TIED);
    let mut carl = Waiter::parked(&server, "RLOCK.ACQUIRE door carl LEASE 600000 BLOCK 0");
    client.ask("ACL SETUSER guest -rlock.acquire");
    client.ask("RLOCK.RELEASE door ann");
    first.granted();
    // It gets an error and is not closed, since it has lost no session.
    assert!(denied.error().starts_with("NOPERM "));
    assert_eq!(client.session_of("door", "bob"), first.id());
    let id = denied.id();
    drop(denied);
    until(5_000, || !is_connected(&mut client, id));
    assert_eq!(client.shows("door"), "write: bob write 1");
    carl.still_waits(&mut client);
    drop(first);
    carl.granted();
}

#[test]
fn a_hold_without_a_session_can_be_tied_later() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut bob = Waiter::parked(&server, WAIT);
    let mut ann = Waiter::connect(&server);
    ann.number(&format!("{HOLD} DEPTH 1"));
    drop(ann);
    bob_enters(&mut client, &mut bob);
}

#[test]
fn reset_does_not_end_a_session() {
    let (_server, mut client, mut ann, mut bob) = scene();
    ann.ask("RESET");
    ann.expect_silence();
    bob.still_waits(&mut client);
    assert_eq!(client.session_of("door", "ann"), ann.id());
    drop(ann);
    bob_enters(&mut client, &mut bob);
}

#[test]
fn a_script_or_a_function_has_no_session() {
    let server = Server::start();
    let mut client = server.client();
    let script = b"return redis.call('RLOCK.ACQUIRE', KEYS[1], 'ann', 'SESSION')";
    let error = client.error_bytes(&[b"EVAL", script, b"1", b"door"]);
    assert!(error.starts_with("ERR ") && error.contains("SESSION"), "{error}");
    let library = b"#!lua name=ties\nredis.register_function('ties', function(keys)\n\
        return redis.call('RLOCK.ACQUIRE', keys[1], 'ann', 'SESSION') end)";
    client.ask_bytes(&[b"FUNCTION", b"LOAD", library]);
    let error = client.error("FCALL ties 1 door");
    assert!(error.starts_with("ERR ") && error.contains("SESSION"), "{error}");
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn in_a_transaction_the_session_is_the_callers() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    ann.say_all(&["MULTI", HOLD, "EXEC"]);
    (0..3).for_each(|_| drop(ann.answer()));
    assert_eq!(client.session_of("door", "ann"), ann.id());
    drop(ann);
    until(5_000, || client.number("EXISTS door") == 0);
}

#[test]
fn the_lease_of_a_session_is_at_least_a_second() {
    let server = Server::start();
    let mut client = server.client();
    for bad in [1, 999] {
        let error = client.error(&format!("RLOCK.ACQUIRE door ann LEASE {bad} SESSION"));
        let owed = "ERR LEASE must be an integer from 1000 to 604800000 milliseconds";
        assert!(error.starts_with(owed) && error.contains("SESSION"), "{error}");
    }
    client.ask("CONFIG SET rlock.default-lease-ms 10");
    let reply = client.ask("RLOCK.ACQUIRE door ann SESSION WITHTTL");
    assert_eq!(integer(&items(&reply)[1]), 1_000);
    client.ask("RLOCK.RELEASE door ann");
    client.granted("RLOCK.ACQUIRE door ann LEASE 1000 SESSION");
}

#[test]
fn a_primary_that_is_demoted_closes_the_connections_of_its_sessions() {
    let (_server, mut client, mut ann, mut bob) = scene();
    client.ask("REPLICAOF 127.0.0.1 1");
    ann.expect_close();
    bob.last_words();
    assert_eq!(client.gauges(), (0, 0, 0));
    // The hold is data, and remains.
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn after_a_failover_the_lease_ends_what_was_a_session() {
    let mut primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut ann = Waiter::connect(&primary);
    ann.number("RLOCK.ACQUIRE door ann LEASE 2000 SESSION");
    replica.until_in_sync_with(&primary);
    let mut client = replica.client();
    // The replica does not know the session, but gets its renewals.
    assert_eq!(client.session_of("door", "ann"), 0);
    let deadline_ms = client.key_ends_at("door");
    until(10_000, || client.key_ends_at("door") > deadline_ms);
    primary.kill_9();
    client.ask("REPLICAOF NO ONE");
    let deadline_ms = client.deadline("door");
    let mut bob = Waiter::connect(&replica);
    bob.say(WAIT);
    bob.granted();
    assert!(now_ms() >= deadline_ms);
    assert_eq!(client.counted("disconnected"), 0);
    primary.start_again();
}

#[test]
fn a_session_that_ends_in_the_turn_of_its_grant_passes_the_lock_on() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door zoe");
    let mut ann = Waiter::parked(&server, "RLOCK.ACQUIRE door ann LEASE 600000 SESSION BLOCK 0");
    let mut bob = Waiter::parked(&server, WAIT);
    let mut teller = Waiter::connect(&server);
    teller.say_all(&["RLOCK.RELEASE door zoe", &format!("CLIENT KILL ID {}", ann.id())]);
    ann.last_words();
    bob_enters(&mut client, &mut bob);
    assert_eq!(client.counted("disconnected"), 1);
}

#[test]
fn many_sessions_of_many_connections_are_renewed_and_end_each_with_its_own() {
    let server = Server::start();
    let mut client = server.client();
    let mut connections: Vec<Waiter> = (0..30).map(|_| Waiter::connect(&server)).collect();
    for (number, connection) in connections.iter_mut().enumerate() {
        let lease_ms = 3_000 + 37 * number;
        for key in 0..5 {
            let key = format!("lock{number}:{key}");
            connection.number(&format!("RLOCK.ACQUIRE {key} o{number} LEASE {lease_ms} SESSION"));
        }
    }
    let began_ms = now_ms();
    until(20_000, || now_ms() > began_ms + 4_500);
    assert_eq!(client.gauges(), (0, 0, 150));
    assert_eq!(client.number("DBSIZE"), 150);
    drop(connections.split_off(10));
    until(5_000, || client.gauges() == (0, 0, 50) && client.number("DBSIZE") == 50);
    assert_eq!(client.counted("expired"), 0);
    for (number, connection) in connections.iter_mut().enumerate() {
        assert_eq!(connection.number(&format!("RLOCK.HOLDS lock{number}:4 o{number}")), 1);
    }
}
