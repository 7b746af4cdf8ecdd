//! `RLOCK.TAKE`: a hung holder is replaced, ahead of those who wait.

use rlock_testkit::{Listener, Server, Waiter, items};

use crate::acks::pair;

#[test]
fn who_takes_a_lock_holds_it_and_those_who_wait_keep_their_places() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    let old = client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid READ BLOCK 0");
    let mut listener = Listener::to(&server);
    let new = client.granted("RLOCK.TAKE door operator LEASE 60000");
    assert!(new > old);
    assert_eq!(listener.heard(&mut client), ["rlock.forced door", "rlock.acquired door"]);
    assert_eq!(
        client.error("RLOCK.RENEW door ann"),
        "NOTHELD owner 'ann' does not hold 'door': WRITE is held by 'operator'"
    );
    assert_eq!(client.number(&format!("RLOCK.CHECK door {old}")), 0);
    bob.still_waits(&mut client);
    // Asking again changes nothing.
    assert_eq!(client.granted("RLOCK.TAKE door operator"), new);
    assert_eq!(client.number("RLOCK.RELEASE door operator"), 0);
    bob.granted();
    cid.still_waits(&mut client);
    assert_eq!(client.number("RLOCK.RELEASE door bob"), 0);
    cid.granted();
}

#[test]
fn every_reader_and_every_session_loses_what_is_taken() {
    let server = Server::start();
    let mut client = server.client();
    let mut session = Waiter::connect(&server);
    session.number("RLOCK.ACQUIRE door ann READ SESSION");
    client.granted("RLOCK.ACQUIRE door bob READ");
    client.granted("RLOCK.ACQUIRE door operator READ");
    client.granted("RLOCK.TAKE door operator");
    session.expect_close();
    assert_eq!(client.shows("door"), "write: operator write 1");
}

#[test]
fn a_free_lock_and_a_turn_are_taken_too() {
    let server = Server::start();
    let mut client = server.client();
    let reply = client.ask("RLOCK.TAKE door operator LEASE 5000 WITHTTL");
    assert_eq!(items(&reply).len(), 2);
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.number("RLOCK.RELEASE door operator");
    assert_eq!(client.number("RLOCK.PLACE door bob"), 0, "bob has the turn");
    client.granted("RLOCK.TAKE door operator");
    assert_eq!(client.number("RLOCK.PLACE door bob"), 1);
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.number("RLOCK.RELEASE door operator");
    client.granted("RLOCK.ACQUIRE door bob QUEUE 60000");
}

#[test]
fn in_a_transaction_and_on_replicas_it_is_one_step() {
    let (mut primary, replica) = pair(&["appendonly", "yes"]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut waiter = Waiter::parked(&primary, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.all(&["MULTI", "RLOCK.TAKE door operator", "RLOCK.TAKE gate operator", "EXEC"]);
    waiter.still_waits(&mut client);
    let shown = client.shows("door");
    assert_eq!(shown, "write: operator write 1");
    replica.until_in_sync_with(&primary);
    assert_eq!(replica.client().shows("door"), shown);
    assert!(replica.client().error("RLOCK.TAKE door me").starts_with("READONLY "));
    primary.restart();
    assert_eq!(primary.client().shows("door"), shown);
}

#[test]
fn with_acks_the_reply_waits_for_the_replicas() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "1000"]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    // Where it cannot wait, nothing is taken.
    let in_a_script = "EVAL return(redis.call('RLOCK.TAKE',KEYS[1],'me','ACKS','1')) 1 door";
    let error = client.error(in_a_script);
    assert!(error.contains("a connection that can block"), "{error}");
    assert_eq!(client.shows("door"), "write: ann write 1");
    let token = client.granted("RLOCK.TAKE door operator ACKS 1");
    assert_eq!(replica.client().lock("door").hold("operator", "write").token, token);
    assert!(client.error("RLOCK.TAKE door operator ACKS 9").starts_with("NOREPLICAS "));
    assert_eq!(client.shows("door"), "write: operator write 1");
    replica.freeze();
    // What was taken is ended, acknowledged or not; the new hold is revoked, and the next enters.
    let mut bob = Waiter::parked(&primary, "RLOCK.ACQUIRE door bob BLOCK 0");
    assert!(client.error("RLOCK.TAKE door other ACKS 1").starts_with("NOACKS "));
    bob.granted();
}

#[test]
fn in_its_grace_a_new_primary_lets_nobody_take() {
    let server = Server::with(&["rlock.grace-ms", "600000"]);
    let mut client = server.client();
    client.refused("RLOCK.TAKE door operator");
    client.ask("CONFIG SET rlock.grace-ms 0");
    client.granted("RLOCK.TAKE door operator");
}

#[test]
fn it_has_a_permission_of_its_own() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.ask("ACL SETUSER app on >secret ~* -@all +rlock.acquire +rlock.force");
    let mut app = server.client_of("app");
    assert!(app.error("RLOCK.TAKE door app").starts_with("NOPERM "));
    client.ask("ACL SETUSER operator on >secret ~* -@all +rlock.take");
    let mut operator = server.client_of("operator");
    operator.granted("RLOCK.TAKE door operator");
    assert_eq!(client.shows("door"), "write: operator write 1");
    assert_eq!(
        client.error("RLOCK.TAKE door ann READ"),
        "ERR syntax error at 'READ': the syntax is RLOCK.TAKE key owner [LEASE ms] [ACKS n] \
         [WITHTTL]"
    );
}
