//! Grants of several locks that are confirmed once replicas have acknowledged all of them.

use rlock_testkit::{Client, Listener, Server, Waiter, aof_commands, until};

/// A primary, and a replica that has acknowledged.
fn pair(settings: &[&str]) -> (Server, Server) {
    let primary = Server::primary(settings);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    until(10_000, || client.attempt("RLOCK.ACQUIRE probe p ACKS 1").is_ok());
    client.number("RLOCK.RELEASE probe p");
    (primary, replica)
}

/// A caller whose grant stands, and is not acknowledged.
#[track_caller]
fn pending(server: &Server, line: &str) -> Waiter {
    let mut client = server.client();
    let before = client.info_number("rlock", "rlock_acks_pending");
    let mut waiter = Waiter::connect(server);
    waiter.say(line);
    until(5000, || client.info_number("rlock", "rlock_acks_pending") > before);
    waiter
}

fn shows(client: &mut Client, keys: &str) -> Vec<String> {
    keys.split(' ').map(|key| client.shows(key)).collect()
}

const FREE: [&str; 2] = ["free:"; 2];

#[test]
fn a_confirmed_grant_is_on_the_replica_as_a_whole_when_it_is_told() {
    let (primary, replica) = pair(&[]);
    let (mut here, mut there) = (primary.client(), replica.client());
    let before = here.info_number("rlock", "rlock_groups_granted");
    for round in 0..30 {
        let keys = format!("b:{round} a:{round}");
        let token = here.granted(&format!("RLOCK.MACQUIRE 2 {keys} ann LEASE 60000 ACKS 1"));
        for key in keys.split(' ') {
            assert_eq!(there.lock(key).hold("ann", "write").token, token);
            assert_eq!(here.number(&format!("RLOCK.CHECK {key} {token}")), 1);
        }
        assert_eq!(here.number(&format!("RLOCK.MRENEW 2 {keys} ann LEASE 90000 ACKS 1")), 1);
        for key in keys.split(' ') {
            assert_eq!(here.deadline(key), there.deadline(key));
        }
    }
    assert_eq!(here.info_number("rlock", "rlock_groups_granted"), before + 30);
    assert_eq!(here.info_number("rlock", "rlock_acks_pending"), 0);
}

#[test]
fn who_waited_is_told_when_the_replica_has_all_of_it() {
    let (primary, replica) = pair(&[]);
    let (mut here, mut there) = (primary.client(), replica.client());
    here.granted("RLOCK.ACQUIRE b bob");
    let mut ann = Waiter::connect(&primary);
    ann.say("RLOCK.MACQUIRE 2 a b ann BLOCK 20000 ACKS 1");
    until(5000, || here.queue("b") == "ann write block");
    here.number("RLOCK.RELEASE b bob");
    let token = ann.granted();
    for key in ["a", "b"] {
        assert_eq!(there.lock(key).hold("ann", "write").token, token);
    }
}

#[test]
fn what_is_not_acknowledged_in_time_is_revoked_as_a_whole() {
    let (primary, replica) =
        pair(&["rlock.acks-timeout-ms", "500", "notify-keyspace-events", "KEd"]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE c ann");
    replica.freeze();
    let mut events = Listener::to(&primary);
    let mut ann = pending(&primary, "RLOCK.MACQUIRE 3 a b c ann ACKS 1");
    assert_eq!(client.number("RLOCK.HOLDS a ann"), 0);
    client.refused("RLOCK.ACQUIRE b bob");
    let mut bob = Waiter::connect(&primary);
    bob.say("RLOCK.ACQUIRE b bob BLOCK 20000");
    let error = ann.reply().expect_err("nobody acknowledged it");
    assert!(error.starts_with("NOACKS "), "{error}");
    bob.granted();
    let heard = events.heard_after_a_turn(&mut client);
    let revoked: Vec<&String> = heard.iter().filter(|it| it.contains("unconfirmed")).collect();
    assert_eq!(revoked, ["rlock.unconfirmed a", "rlock.unconfirmed b"]);
    assert_eq!((client.shows("a"), client.number("RLOCK.HOLDS c ann")), ("free:".into(), 1));
    replica.thaw();
}

#[test]
fn whatever_ends_one_of_its_holds_ends_all() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    let ends = [
        "RLOCK.RELEASE b ann",
        "RLOCK.FORCE a",
        "DEL b",
        "FLUSHALL",
        "RENAME a elsewhere",
        "SET b value",
    ];
    for end in ends {
        client.ask("FLUSHALL");
        replica.freeze();
        let mut ann = pending(&primary, "RLOCK.MACQUIRE 2 a b ann LEASE 60000 ACKS 1");
        client.ask(end);
        let error = ann.reply().expect_err(end);
        assert!(error.starts_with("NOACKS "), "{end}: {error}");
        client.ask("DEL elsewhere");
        if end.starts_with("SET") {
            client.ask("DEL b");
        }
        until(5000, || shows(&mut client, "a b") == FREE);
        assert_eq!(client.info_number("rlock", "rlock_acks_pending"), 0, "{end}");
        replica.thaw();
    }
}

#[test]
fn a_closed_connection_and_client_unblock_end_it() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    replica.freeze();
    let ann = pending(&primary, "RLOCK.MACQUIRE 2 a b ann LEASE 60000 ACKS 1");
    drop(ann);
    until(5000, || shows(&mut client, "a b") == FREE);
    let mut ann = Waiter::connect(&primary);
    let id = ann.id();
    ann.say("RLOCK.MACQUIRE 2 a b ann LEASE 60000 ACKS 1");
    until(5000, || client.info_number("rlock", "rlock_acks_pending") == 1);
    assert_eq!(client.number(&format!("CLIENT UNBLOCK {id}")), 1);
    assert!(ann.reply().expect_err("it is unblocked").starts_with("NOACKS "));
    until(5000, || shows(&mut client, "a b") == FREE);
    replica.thaw();
}

#[test]
fn too_few_replicas_and_callers_that_cannot_be_blocked_are_refused() {
    let (primary, _replica) = pair(&[]);
    let mut client = primary.client();
    client.ask("SET b value");
    let error = client.error("RLOCK.MACQUIRE 2 a b ann ACKS 2");
    assert!(error.starts_with("NOREPLICAS need 2 acknowledging replicas for 'a'"), "{error}");
    assert!(client.error("RLOCK.MACQUIRE 2 a b ann ACKS 1").starts_with("WRONGTYPE"));
    for words in ["RLOCK.MACQUIRE 2 a c ann ACKS 1", "RLOCK.MRENEW 2 a c ann ACKS 1"] {
        let replies = client.all(&["MULTI", words, "EXEC"]);
        let error = format!("{:?}", replies[2]);
        assert!(error.contains("ACKS needs a connection that can block"), "{error}");
    }
    client.ask("CONFIG SET rlock.acks 1");
    let script = "return redis.pcall('RLOCK.MACQUIRE', '2', KEYS[1], KEYS[2], 'ann')";
    let error = client.attempt_bytes(&[b"EVAL", script.as_bytes(), b"2", b"a", b"c"]);
    assert!(error.unwrap_err().contains("ACKS needs a connection"));
    client.granted("RLOCK.MACQUIRE 2 a c ann");
    assert_eq!(client.number("RLOCK.MRELEASE 2 a c ann"), 2);
}

/// In the append-only file, the grant is one unit, and so is its end.
#[test]
fn a_grant_and_its_revocation_are_one_unit_each_in_the_file() {
    let (primary, replica) =
        pair(&["rlock.acks-timeout-ms", "300", "appendonly", "yes", "appendfsync", "always"]);
    let mut client = primary.client();
    replica.freeze();
    let mut ann = pending(&primary, "RLOCK.MACQUIRE 2 a b ann ACKS 1");
    assert!(ann.reply().is_err());
    let shape = || -> Vec<_> {
        let all = aof_commands(primary.folder());
        let ours = all.iter().skip_while(|command| command.get(1).is_none_or(|key| key != b"a"));
        ours.map(|command| String::from_utf8_lossy(&command[0]).into_owned()).collect()
    };
    // A command about one of the keys would first end the hold there, in a unit of its own.
    until(5000, || shape().len() > 1);
    assert_eq!(shape(), ["RLOCK.APPLY", "MULTI", "RLOCK.APPLY", "RLOCK.APPLY", "EXEC"]);
    assert_eq!(shows(&mut client, "a b"), FREE);
    replica.thaw();
}
