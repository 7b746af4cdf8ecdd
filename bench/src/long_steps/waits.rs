//! Long steps of requests that wait for messages: permits, groups, and readers of one lock.

use std::thread;
use std::time::Duration;

use super::{CORE, DEMOTE, RLOCK, Slowest, all, lease_until, slowest_ping};
use crate::crowd::exchange_all;
use crate::stage::{on_its_core, server};
use rlock_testkit::{Server, Waiter, now_ms, until};

const PERMITS: &str = "permits of one lock all end at once and go to waiters, vs keys that expire";
const GROUPS: &str = "locks for which groups wait all end at once, vs keys that expire";
const READERS: &str = "readers are granted at once, each by a message, vs SPUBLISH of as many";
const DEMOTION: &str = "the primary becomes a replica, with requests for messages";

/// Groups wait for pairs of this many locks.
const LOCKS: usize = 1000;
/// How long before the leases end the last request is accepted, at least.
const SPARE_MS: i64 = 500;

/// Measures all of these steps, each with this many requests that wait. There are fewer groups,
/// because the search for a deadlock makes them slow to ask.
pub fn measure(slowest: &mut Slowest, count: usize) {
    permits(slowest, count);
    groups(slowest, count / 10);
    readers(slowest, count);
}

/// A server on which this many requests may wait, and a connection that gets their messages.
fn listening(count: usize) -> (Server, Waiter) {
    let server = server(&["rlock.max-tells", &count.to_string()]);
    let mut connection = Waiter::connect(&server);
    connection.ask("HELLO 3");
    connection.ask("SSUBSCRIBE replies");
    (server, connection)
}

/// `n` is also the id of the message.
fn wait(command: &str, n: usize) -> String {
    format!("{command} LEASE 600000 BLOCK 600000 TELL replies {n}")
}

/// Each permit has a holder, and somebody who waits for it.
fn permits(slowest: &mut Slowest, count: usize) {
    let (server, mut connection) = listening(count);
    let ends_ms = ends_ms(count);
    let acquire = |owner, n| format!("RLOCK.ACQUIRE permits {owner}:{n} READ LIMIT {count}");
    exchange_all(&mut connection, count, |n| {
        format!("{} LEASE {}", acquire("holder", n), lease_until(ends_ms))
    });
    exchange_all(&mut connection, count, |n| wait(&acquire("next", n), n));
    until_just_before(ends_ms);
    let ms = slowest_ping(&server, || (0..count).for_each(|_| drop(connection.answer())));
    slowest.note(PERMITS, RLOCK, ms);
    slowest.note(PERMITS, CORE, expiring(count));
}

/// Each group waits for two of the locks, and each lock has as many groups.
fn groups(slowest: &mut Slowest, count: usize) {
    let (server, mut connection) = listening(count);
    let ends_ms = ends_ms(count);
    exchange_all(&mut connection, LOCKS, |n| {
        format!("RLOCK.ACQUIRE lock:{n} holder LEASE {}", lease_until(ends_ms))
    });
    exchange_all(&mut connection, count, |n| {
        let (one, other) = (n % LOCKS, (n * 7 + 1) % LOCKS);
        wait(&format!("RLOCK.MACQUIRE 2 lock:{one} lock:{other} group:{n}"), n)
    });
    until_just_before(ends_ms);
    let mut admin = server.client();
    let ms = slowest_ping(&server, || {
        until(600_000, || admin.counted("expired") == LOCKS as i64);
        thread::sleep(Duration::from_secs(1));
    });
    slowest.note(GROUPS, RLOCK, ms);
    slowest.note(GROUPS, CORE, expiring(LOCKS));
}

/// A writer releases a lock for which readers wait. Another time, the primary becomes a replica.
fn readers(slowest: &mut Slowest, count: usize) {
    for (step, line) in [(READERS, "RLOCK.RELEASE shared writer"), (DEMOTION, DEMOTE)] {
        let (server, mut connection) = listening(count);
        let mut admin = server.client();
        admin.granted("RLOCK.ACQUIRE shared writer LEASE 600000");
        exchange_all(&mut connection, count, |n| {
            wait(&format!("RLOCK.ACQUIRE shared reader:{n} READ"), n)
        });
        let ms = slowest_ping(&server, || {
            admin.ask(line);
            (0..count).for_each(|_| drop(connection.answer()));
        });
        slowest.note(step, RLOCK, ms);
    }
    let alone = on_its_core(Server::without_module());
    let mut listener = Waiter::connect(&alone);
    listener.ask("SSUBSCRIBE replies");
    let ms = slowest_ping(&alone, || {
        thread::scope(|scope| {
            scope.spawn(|| all(&alone, count, |n| format!("SPUBLISH replies {n}")));
            (0..count).for_each(|_| drop(listener.answer()));
        });
    });
    slowest.note(READERS, CORE, ms);
    let ms = slowest_ping(&alone, || {
        alone.client().ask(DEMOTE);
        thread::sleep(Duration::from_secs(1));
    });
    slowest.note(DEMOTION, CORE, ms);
}

/// The slowest PING while this many keys expire at once.
fn expiring(count: usize) -> f64 {
    let alone = on_its_core(Server::without_module());
    let ends_ms = ends_ms(count);
    all(&alone, count, |n| format!("SET lock:{n} holder PXAT {ends_ms}"));
    until_just_before(ends_ms);
    let mut admin = alone.client();
    slowest_ping(&alone, || until(600_000, || admin.number("DBSIZE") == 0))
}

/// When leases end that are granted now, with as many requests after them.
fn ends_ms(count: usize) -> i64 {
    now_ms() + 2000 + i64::try_from(count).unwrap() / 4
}

#[track_caller]
fn until_just_before(ends_ms: i64) {
    assert!(now_ms() < ends_ms - SPARE_MS, "the machine was too slow to ask before the leases end");
    until(600_000, || now_ms() > ends_ms - SPARE_MS);
}
