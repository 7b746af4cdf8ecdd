//! Lock commands that another module calls: they act as without BLOCK, and never with a session.

use rlock_testkit::{Client, Compiled, Listener, Server, Waiter, say_not_seen};

/// A server that has loaded the other module, too; `None` if there is no C compiler.
fn with_caller() -> Option<Server> {
    let built = Compiled::of("caller")?;
    let server = Server::start();
    server.client().ask(&format!("MODULE LOAD {}", built.path()));
    Some(server)
}

#[test]
fn another_module_that_would_have_to_wait_is_told_so_at_once() {
    let Some(server) = with_caller() else { return };
    let mut client = server.client();
    let token = client.granted("CALLER.ACQUIRE door ann BLOCK 0");
    assert_eq!(client.granted("CALLER.ACQUIRE door ann"), token);
    client.refused("CALLER.ACQUIRE door bob BLOCK 0");
    client.refused("CALLER.ACQUIRE door bob READ BLOCK 100 LEASE 5");
    assert_eq!(client.gauges(), (0, 0, 0));
    client.refused("CALLER.ACQUIRE door bob QUEUE 60000");
    assert_eq!(client.gauges(), (0, 1, 0));
}

/// Redis 7.0 has no such calls.
#[test]
fn another_module_that_allows_its_calls_to_block_is_told_at_once_all_the_same() {
    let Some(server) = with_caller() else { return };
    if !server.version().is_since([7, 2], [7, 2]) {
        return say_not_seen("calls of other modules that may block");
    }
    let mut client = server.client();
    let token = client.granted("CALLER.PATIENT RLOCK.ACQUIRE door ann BLOCK 0");
    let ask = |client: &mut Client, line: &str| {
        let alone = client.attempt(&format!("CALLER.PATIENT {line}"));
        client.ask("MULTI");
        client.ask(&format!("CALLER.PATIENT {line}"));
        let inside = client.attempt("EXEC");
        let script = format!("return redis.call('CALLER.PATIENT','{}')", line.replace(' ', "','"));
        let scripted = client.attempt_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
        [format!("{alone:?}"), format!("{inside:?}"), format!("{scripted:?}")]
    };
    let watch = format!("RLOCK.AWAIT door {token} BLOCK 0");
    for (line, told) in [
        ("RLOCK.ACQUIRE door bob BLOCK 0", "nil"),
        ("RLOCK.MACQUIRE 2 door gate bob BLOCK 0", "nil"),
        (&watch, "nil"),
        ("RLOCK.ACQUIRE free bob ACKS 1", "ACKS"),
        ("RLOCK.MACQUIRE 1 free bob ACKS 1", "ACKS"),
        ("RLOCK.ACQUIRE free bob SESSION", "SESSION"),
    ] {
        let replies = ask(&mut client, line);
        assert!(replies.iter().all(|reply| reply.contains(told)), "{line}: {replies:?}");
    }
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn another_modules_thread_meets_the_same_locks() {
    let Some(server) = with_caller() else { return };
    let mut client = server.client();
    let mut bob = {
        client.granted("RLOCK.ACQUIRE door ann");
        Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0")
    };
    client.refused("CALLER.THREAD door cid QUEUE 60000");
    assert_eq!(client.gauges(), (1, 1, 0));
    client.ask("RLOCK.RELEASE door ann");
    let before = bob.granted();
    // In a thread of its own each time: a later token, and a lock that others wait for.
    let token = client.granted("CALLER.THREAD other dan LEASE 200");
    assert!(token > before, "{token} is not above {before}");
    Waiter::parked(&server, "RLOCK.ACQUIRE other eve BLOCK 0").granted();
}

#[test]
fn another_module_gets_no_session() {
    let Some(server) = with_caller() else { return };
    let mut client = server.client();
    let error = client.error("CALLER.ACQUIRE door ann SESSION");
    assert!(error.contains("SESSION"), "{error}");
    assert_eq!(client.number("EXISTS door"), 0);
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn another_module_gets_no_session_in_a_transaction_either() {
    let Some(server) = with_caller() else { return };
    let mut client = server.client();
    client.ask("MULTI");
    client.ask("CALLER.ACQUIRE door ann SESSION");
    let replies = format!("{:?}", client.attempt("EXEC"));
    assert!(replies.contains("SESSION"), "{replies}");
    assert_eq!(client.number("EXISTS door"), 0);
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn a_lock_that_another_module_deletes_while_one_begins_is_told_of_and_handed_on() {
    let Some(server) = with_caller() else { return };
    let mut client = server.client();
    client.ask("CONFIG SET notify-keyspace-events KEd");
    client.granted("RLOCK.ACQUIRE door ann");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let mut ears = Listener::to(&server);
    client.granted("RLOCK.ACQUIRE trap cid");
    bob.granted();
    let mut heard = ears.heard_after_a_turn(&mut client);
    heard.sort();
    assert_eq!(heard, ["rlock.acquired door", "rlock.acquired trap", "rlock.removed door"]);
}

/// Law: a replica has what its primary has. The deletion follows the grant of both locks.
#[test]
fn a_lock_that_another_module_deletes_while_the_next_of_several_begins_is_gone_on_the_replica() {
    let Some(built) = Compiled::of("caller") else { return };
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.ask(&format!("MODULE LOAD {}", built.path()));
    replica.until_in_sync_with(&primary);
    client.granted("RLOCK.MACQUIRE 2 door trap cid LEASE 600000");
    replica.until_in_sync_with(&primary);
    for mut client in [client, replica.client()] {
        assert_eq!((client.number("EXISTS door"), client.number("EXISTS trap")), (0, 1));
    }
}
