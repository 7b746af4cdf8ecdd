//! Locks inside `MULTI`, scripts and functions, and under `WATCH`.

use redis::Value;

use rlock_testkit::{Client, Server, integer, items, text, until};

#[test]
fn a_transaction_takes_and_gives_back_locks() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("MULTI");
    client.ask("RLOCK.ACQUIRE door ann");
    client.ask("RLOCK.ACQUIRE door bob");
    client.ask("RLOCK.ACQUIRE door ann");
    client.ask("RLOCK.RELEASE door ann");
    client.ask("RLOCK.HOLDS door ann");
    let replies = client.ask("EXEC");
    let replies = items(&replies);
    let token = integer(&replies[0]);
    assert_eq!(replies[1], Value::Nil);
    assert_eq!(integer(&replies[2]), token);
    assert_eq!(integer(&replies[3]), 1);
    assert_eq!(integer(&replies[4]), 1);
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn a_discarded_transaction_took_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("MULTI");
    client.ask("RLOCK.ACQUIRE door ann");
    client.ask("DISCARD");
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn a_refusal_in_a_transaction_undoes_nothing_before_it() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE gate bob");
    client.ask("MULTI");
    client.ask("RLOCK.ACQUIRE door ann");
    client.ask("RLOCK.RELEASE gate ann");
    client.ask("RLOCK.ACQUIRE door ann");
    let replies = client.attempt("EXEC");
    // redis-rs returns the only error among the replies as the whole result.
    assert!(!matches!(replies, Ok(Value::Nil)), "{replies:?}");
    assert_eq!(client.shows("door"), "write: ann write 2");
    assert_eq!(client.shows("gate"), "write: bob write 1");
}

#[test]
fn a_script_takes_and_gives_back_locks() {
    let server = Server::start();
    let mut client = server.client();
    let token = integer(&eval(&mut client, "return redis.call('RLOCK.ACQUIRE', KEYS[1], 'ann')"));
    assert_eq!(client.lock("door").hold("ann", "write").token, token);
    let refused = eval(&mut client, "return redis.call('RLOCK.ACQUIRE', KEYS[1], 'bob')");
    assert_eq!(refused, Value::Nil);
    let text_of_error = "return redis.pcall('RLOCK.RELEASE', KEYS[1], 'bob')['err']";
    assert!(text(&eval(&mut client, text_of_error)).starts_with("NOTHELD "));
    let left = eval(&mut client, "return redis.call('RLOCK.RELEASE', KEYS[1], 'ann')");
    assert_eq!(left, Value::Int(0));
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn a_read_only_script_may_look_but_not_take() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let look = b"return redis.call('RLOCK.HOLDS', KEYS[1], 'ann')";
    let words: [&[u8]; 4] = [b"EVAL_RO", look, b"1", b"door"];
    assert_eq!(client.ask_bytes(&words), Value::Int(1));
    for take in ["ACQUIRE", "RELEASE", "RENEW"] {
        let script = format!("return redis.call('RLOCK.{take}', KEYS[1], 'ann')");
        let words: [&[u8]; 4] = [b"EVAL_RO", script.as_bytes(), b"1", b"door"];
        client.error_bytes(&words);
    }
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn a_function_takes_a_lock() {
    let server = Server::start();
    let mut client = server.client();
    let library = b"#!lua name=doors\nredis.register_function('take', function(keys, args) \
        return redis.call('RLOCK.ACQUIRE', keys[1], args[1]) end)";
    client.ask_bytes(&[b"FUNCTION", b"LOAD", library]);
    let token = client.granted("FCALL take 1 door ann");
    assert_eq!(client.lock("door").hold("ann", "write").token, token);
}

#[test]
fn a_grant_a_re_entry_a_renewal_and_a_release_each_break_a_watch() {
    let server = Server::start();
    let mut client = server.client();
    let mut other = server.client();
    let changes = [
        "RLOCK.ACQUIRE door ann LEASE 10000",
        "RLOCK.ACQUIRE door ann LEASE 10000",
        "RLOCK.RENEW door ann LEASE 90000",
        "RLOCK.RELEASE door ann",
        "RLOCK.ACQUIRE door ann READ",
        "RLOCK.FORCE door READ",
        "RLOCK.FORCE door",
    ];
    for change in changes {
        client.ask("WATCH door");
        other.ask(change);
        client.ask("MULTI");
        client.ask("PING");
        assert_eq!(client.ask("EXEC"), Value::Nil, "{change}");
    }
}

#[test]
fn what_changes_nothing_breaks_no_watch() {
    let server = Server::start();
    let mut client = server.client();
    let mut other = server.client();
    client.granted("RLOCK.ACQUIRE door ann DEPTH 1 LEASE 90000");
    let refusals = [
        "RLOCK.ACQUIRE door bob",
        "RLOCK.ACQUIRE door bob READ",
        "RLOCK.ACQUIRE door ann LEASE nonsense",
        "RLOCK.RELEASE door bob",
        "RLOCK.RELEASE door bob DEPTH 0",
        "RLOCK.RENEW door bob",
        "RLOCK.FORCE door READ",
        "RLOCK.FORCE gate",
    ];
    for refusal in refusals {
        client.ask("WATCH door gate");
        other.attempt(refusal).ok();
        client.ask("MULTI");
        client.ask("PING");
        assert_ne!(client.ask("EXEC"), Value::Nil, "{refusal}");
    }
}

#[test]
fn a_script_sees_one_moment_even_when_a_lease_ends_meanwhile() {
    let server = Server::start();
    let mut client = server.client();
    // Whatever the script sees first, it must see until its end, or see a clean change: never an
    // error.
    let script = "redis.call('RLOCK.ACQUIRE', KEYS[1], 'ann', 'LEASE', '5') for i = 1, 50000 do \
                  redis.call('RLOCK.HOLDS', KEYS[1], 'ann') end return \
                  redis.call('RLOCK.ACQUIRE', KEYS[1], 'bob', 'LEASE', '60000')";
    let bob = eval(&mut client, script);
    until(5_000, || !client.shows("door").contains("ann"));
    match bob {
        Value::Nil => assert_eq!(client.shows("door"), "free:"),
        _ => assert_eq!(client.shows("door"), "write: bob write 1"),
    }
}

#[test]
fn a_paused_server_answers_questions_about_what_has_run_out_meanwhile() {
    let server = Server::primary(&["notify-keyspace-events", "KEd"]);
    let replica = Server::replica_of(&server, &[]);
    let mut client = server.client();
    client.all(&[
        "RLOCK.ACQUIRE door ann LEASE 300",
        "RLOCK.ACQUIRE gate ann READ LEASE 300",
        "RLOCK.ACQUIRE gate bob READ LEASE 60000",
        "RLOCK.ACQUIRE persisted ann LEASE 300",
        "PERSIST persisted",
        "CLIENT PAUSE 60000 WRITE",
    ]);
    for key in ["door", "persisted"] {
        until(5_000, || client.shows(key) == "free:");
        assert_eq!(client.number(&format!("RLOCK.HOLDS {key} ann")), 0);
    }
    until(5_000, || client.shows("gate") == "read: bob read 1");
    client.ask("CLIENT UNPAUSE");
    client.granted("RLOCK.ACQUIRE door bob LEASE 60000");
    replica.until_in_sync_with(&server);
    assert_eq!(replica.client().shows("door"), "write: bob write 1");
}

#[track_caller]
fn eval(client: &mut Client, script: &str) -> Value {
    client.ask_bytes(&[b"EVAL", script.as_bytes(), b"1", b"door"])
}
