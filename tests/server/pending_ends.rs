//! How the wait for acknowledgments ends if they do not come.

use rlock_testkit::{Client, Server, Waiter, until};

/// A primary whose replica has acknowledged, and is then frozen.
fn without_acks(settings: &[&str]) -> (Server, Server) {
    let primary = Server::primary(settings);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    until(10_000, || client.attempt("RLOCK.ACQUIRE probe p ACKS 1").is_ok());
    client.number("RLOCK.RELEASE probe p");
    (primary, replica)
}

/// Waits until this many callers wait for acknowledgments.
fn until_pending(client: &mut Client, count: i64) {
    until(5000, || client.info_number("rlock", "rlock_acks_pending") == count);
}

#[test]
fn after_a_stall_beyond_every_limit_they_hear_that_it_is_not_acknowledged() {
    let (primary, replica) = without_acks(&["rlock.acks-timeout-ms", "1000"]);
    let mut client = primary.client();
    for round in 0..3 {
        client.granted("RLOCK.ACQUIRE gate ann LEASE 1000");
        replica.freeze();
        let mut pending: Vec<Waiter> = (0..3).map(|_| Waiter::connect(&primary)).collect();
        pending[0].say("RLOCK.ACQUIRE door ann LEASE 1000 ACKS 1");
        pending[1].say("RLOCK.RENEW gate ann LEASE 1000 ACKS 1");
        pending[2].say("RLOCK.ACQUIRE hall ann LEASE 1000 BLOCK 900 ACKS 1 WITHTTL");
        until_pending(&mut client, 3);
        let before = client.info_number("rlock", "rlock_noacks");
        client.ask("DEBUG SLEEP 1.5");
        for (number, caller) in pending.iter_mut().enumerate() {
            let told = caller.reply();
            let error = told.expect_err(&format!("round {round}, caller {number}"));
            assert!(error.starts_with("NOACKS "), "round {round}, caller {number}: {error}");
        }
        assert_eq!(client.info_number("rlock", "rlock_noacks"), before + 3);
        until(5000, || ["door", "gate", "hall"].iter().all(|key| client.shows(key) == "free:"));
        assert_eq!(client.info_number("rlock", "rlock_acks_pending"), 0);
        replica.thaw();
    }
}

#[test]
fn where_the_key_was_renamed_or_moved_they_hear_that_the_hold_goes_on() {
    let (primary, replica) = without_acks(&["rlock.acks-timeout-ms", "60000"]);
    let (mut client, mut other) = (primary.client(), primary.client());
    other.ask("SELECT 1");
    for (line, key, is_elsewhere) in
        [("RENAME door hall", "hall", false), ("MOVE door 1", "door", true)]
    {
        let bob = client.granted("RLOCK.ACQUIRE door bob READ LEASE 60000");
        replica.freeze();
        let mut pending: Vec<Waiter> = (0..2).map(|_| Waiter::connect(&primary)).collect();
        pending[0].say("RLOCK.ACQUIRE door ann READ LEASE 60000 ACKS 1");
        pending[1].say("RLOCK.RENEW door bob LEASE 90000 ACKS 1");
        until_pending(&mut client, 2);
        client.ask(line);
        for caller in &mut pending {
            let error = caller.error();
            let expected = "NOACKS 'door' was deleted or renamed before enough replicas";
            assert!(error.starts_with(expected), "{line}: {error}");
        }
        let there = if is_elsewhere { &mut other } else { &mut client };
        let lock = there.lock(key);
        assert_eq!(lock.hold("bob", "read").token, bob);
        assert_eq!(lock.hold("ann", "read").depth, 1, "{line}: nobody was told of it");
        there.number(&format!("RLOCK.FORCE {key}"));
        replica.thaw();
    }
    assert_eq!(client.info_number("rlock", "rlock_noacks"), 4);
    assert_eq!(client.info_number("rlock", "rlock_acks_pending"), 0);
}
