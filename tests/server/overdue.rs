//! A session whose lease has expired by the time the server sees that: the process was stopped, and
//! another one may have granted its locks meanwhile.

use redis::Value;

use rlock_testkit::{Server, Waiter, now_ms, until};

const SESSIONS: usize = 40;

/// A primary, and a replica that has acknowledged.
fn pair(settings: &[&str]) -> (Server, Server) {
    let primary = Server::primary(settings);
    let replica = Server::replica_of(&primary, settings);
    let mut client = primary.client();
    until(10_000, || client.attempt("RLOCK.ACQUIRE probe p ACKS 1").is_ok());
    (primary, replica)
}

/// Forty sessions hold locks here and send commands; the process is stopped, its replica is
/// promoted, and others are granted the locks there. When the process continues, none of these
/// commands is executed.
#[track_caller]
fn nothing_runs_after_the_stop(words: &str, expires: bool, says: impl Fn(usize) -> String) {
    let (primary, replica) = pair(&[]);
    let mut client = primary.client();
    if !expires {
        client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    }
    let mut sessions: Vec<Waiter> = (0..SESSIONS)
        .map(|number| {
            let mut session = Waiter::connect(&primary);
            session.number(&format!("RLOCK.ACQUIRE door:{number} s{number} SESSION {words}"));
            session
        })
        .collect();
    replica.until_in_sync_with(&primary);
    primary.freeze();
    for (number, session) in sessions.iter_mut().enumerate() {
        session.say_all(&[&says(number), "PING"]);
    }
    let mut there = replica.client();
    there.ask("REPLICAOF NO ONE");
    for number in 0..SESSIONS {
        let ask = format!("RLOCK.ACQUIRE door:{number} other");
        until(10_000, || there.ask(&ask) != Value::Nil);
    }
    primary.thaw();
    for session in &mut sessions {
        let said = session.last_words();
        assert!(said.iter().all(Result::is_err), "{said:?}");
    }
    let marks = client.ask("KEYS mark:*");
    assert_eq!(marks, Value::Array(Vec::new()), "{words}, {expires}");
    until(5_000, || client.gauges() == (0, 0, 0));
}

#[test]
fn a_stopped_primary_runs_no_command_of_a_session_that_is_over() {
    for words in ["LEASE 1000", "LEASE 1000 ACKS 1"] {
        for expires in [false, true] {
            nothing_runs_after_the_stop(words, expires, |number| format!("SET mark:{number} 1"));
        }
    }
}

/// They differ in size, by which Redis 7.0 recognizes commands.
#[test]
fn a_stopped_primary_runs_no_script_and_no_transaction_of_a_session_that_is_over() {
    nothing_runs_after_the_stop("LEASE 1000", false, |number| {
        let size = "x".repeat(number);
        format!("EVAL redis.call('SET',KEYS[1],'{size}') 1 mark:{number}")
    });
}

/// The server is stopped until a session has ended whose connection is blocked at a list. When it
/// resumes, the first thing that it reads is an element of that list: the connection does not get
/// it.
#[test]
fn a_stopped_primary_serves_no_blocked_session_that_is_over() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    let mut ann = Waiter::connect(&server);
    ann.number("RLOCK.ACQUIRE door ann LEASE 1000 SESSION");
    ann.park(&server, "BLMOVE list out LEFT LEFT 0");
    let deadline_ms = client.deadline("door");
    let mut other = Waiter::connect(&server);
    server.freeze();
    until(10_000, || now_ms() > deadline_ms + 400);
    other.say("LPUSH list element");
    server.thaw();
    other.answer();
    ann.expect_close();
    assert_eq!(client.number("LLEN list"), 1);
    assert_eq!(client.number("EXISTS out"), 0);
}

/// A client that has a session of its own is not delayed by the sessions of others.
#[test]
fn a_session_that_is_over_takes_no_other_connection_along() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    ann.number("RLOCK.ACQUIRE door ann LEASE 1000 SESSION");
    let mut bob = Waiter::connect(&server);
    bob.number("RLOCK.ACQUIRE gate bob LEASE 600000 SESSION");
    let deadline_ms = client.deadline("door");
    server.freeze();
    until(10_000, || now_ms() > deadline_ms + 400);
    bob.say("SET mark:bob 1");
    ann.say("SET mark:anna 1");
    client.send(&["SET", "mark:cid", "1"]);
    server.thaw();
    assert_eq!(bob.answer(), Value::Okay);
    assert_eq!(client.receive(), Value::Okay);
    assert!(ann.last_words().iter().all(Result::is_err));
    assert_eq!(client.number("EXISTS mark:bob mark:anna mark:cid"), 2);
    assert_eq!(client.number("RLOCK.HOLDS gate bob"), 1);
}

#[test]
fn a_session_whose_first_acknowledgment_was_slow_lasts() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    replica.freeze();
    let mut ann = Waiter::connect(&primary);
    let began_ms = now_ms();
    ann.say("RLOCK.ACQUIRE door ann SESSION LEASE 9000 ACKS 1");
    // The rest of the lease leaves time for a busy replica.
    until(10_000, || now_ms() > began_ms + 6_900);
    replica.thaw();
    ann.granted();
    until(20_000, || now_ms() > began_ms + 11_000);
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 1);
    ann.expect_silence();
}
