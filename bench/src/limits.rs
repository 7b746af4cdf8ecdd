//! As many waiters as the limits allow: how much memory each takes, and whether the lock still
//! changes hands.

use std::time::{Duration, Instant};

use redis::Value;

use crate::Profile;
use crate::book::Book;
use crate::crowd::{blocked, connected, exchange_all};
use crate::memory::{EACH, HELD, used_memory};
use crate::rivals::owner;
use crate::stage::{may_open, server, server_for};
use rlock_testkit::{Client, Server, Waiter, until};

pub const TICKET: &str = "a ticket, owner of 39 bytes";
pub const SECTION: &str = "memory: as many as there may be";
pub const SERVED: &str = "served in order, then -TOOMANY";
pub const KEPT: &str = "kept past their leases";
pub const BLOCKED: &str = "blocked connections";
pub const TICKETS: &str = "tickets of one lock";
pub const SESSIONS: &str = "sessions";

/// After this time the server has trimmed the buffers of idle clients: it checks each client once a
/// second, and trims after 2 idle seconds.
pub const IDLE: Duration = Duration::from_secs(5);

/// Measures the memory of each waiter, after checking that the server accepts all of them.
pub fn measure(book: &mut Book, profile: Profile) {
    let connections = if profile == Profile::Quick { 1000 } else { 10_000 };
    if may_open(connections) {
        blocked_connections(book, connections);
        sessions(book, connections);
    } else {
        book.miss(format!("{connections} connections: `ulimit -n` is too low"));
    }
    tickets(book, 100_000);
}

fn blocked_connections(book: &mut Book, connections: usize) {
    book.put_value(HELD, "a connection in BLPOP", EACH, blocked_on_a_list(connections));
    let server = server_for(connections);
    let mut admin = server.client();
    let mut holder = Waiter::connect(&server);
    holder.ask("RLOCK.ACQUIRE hot holder LEASE 600000");
    let (mut line, bytes) = block_all(&server, connections, |number| {
        format!("RLOCK.ACQUIRE hot {} BLOCK 0", owner(number))
    });
    assert_eq!(admin.info_number("rlock", "rlock_waiters"), connections as i64);
    expect_too_many(&mut admin, "RLOCK.ACQUIRE hot one-too-many BLOCK 0");

    assert_eq!(holder.number("RLOCK.RELEASE hot holder"), 0);
    for (number, waiter) in line.iter_mut().enumerate().take(100) {
        waiter.answer();
        waiter.ask(&format!("RLOCK.RELEASE hot {}", owner(number)));
    }
    book.put_value(HELD, "a connection in ACQUIRE BLOCK", EACH, bytes);
    book.put_value(SECTION, BLOCKED, SERVED, connections as f64);
}

/// The bytes of a connection that the server itself blocks, without the module.
fn blocked_on_a_list(connections: usize) -> f64 {
    block_all(&server_for(connections), connections, |_| "BLPOP nothing 0".to_owned()).1
}

/// Blocks this many connections. Returns them, and the bytes of each once the server has trimmed
/// the buffers of idle clients.
fn block_all(
    server: &Server,
    connections: usize,
    asks: impl Fn(usize) -> String,
) -> (Vec<Waiter>, f64) {
    let mut admin = server.client();
    let before = used_memory(&mut admin);
    let line = blocked(server, connections, asks);
    std::thread::sleep(IDLE);
    (line, (used_memory(&mut admin) - before) as f64 / connections as f64)
}

fn tickets(book: &mut Book, count: usize) {
    let server = server(&["rlock.max-tickets", &count.to_string()]);
    let mut admin = server.client();
    let mut connection = Waiter::connect(&server);
    connection.ask("RLOCK.ACQUIRE hot holder LEASE 600000");
    let before = used_memory(&mut admin);
    exchange_all(&mut connection, count, queues);
    assert_eq!(admin.info_number("rlock", "rlock_tickets"), count as i64);
    let bytes = used_memory(&mut admin) - before;
    expect_too_many(&mut admin, "RLOCK.ACQUIRE hot one-too-many QUEUE 60000");

    admin.ask("RLOCK.RELEASE hot holder");
    for number in 0..100 {
        assert_eq!(admin.ask(&queues(count - 1)), Value::Nil, "the last passed the others");
        admin.granted(&queues(number));
        admin.ask(&format!("RLOCK.RELEASE hot {}", owner(number)));
    }
    book.put_value(HELD, TICKET, EACH, bytes as f64 / count as f64);
    book.put_value(SECTION, TICKETS, SERVED, count as f64);
}

/// Keeps a session on each connection for longer than its lease; then all connections close at
/// once.
fn sessions(book: &mut Book, connections: usize) {
    let server = server_for(connections);
    let mut admin = server.client();
    let mut line = connected(&server, connections);
    let begin = Instant::now();
    for (number, holder) in line.iter_mut().enumerate() {
        let owner = owner(number);
        holder.ask(&format!("RLOCK.ACQUIRE lock:{number} {owner} LEASE 6000 SESSION"));
    }
    let count = |admin: &mut Client, field: &str| admin.info_number("rlock", field);
    until(60_000, || begin.elapsed() > Duration::from_secs(9));
    assert_eq!(count(&mut admin, "rlock_sessions"), connections as i64);
    assert_eq!(count(&mut admin, "rlock_locks"), connections as i64);
    let begin = Instant::now();
    drop(line);
    until(60_000, || count(&mut admin, "rlock_locks") == 0);
    let seconds = begin.elapsed().as_secs_f64();
    book.put_value(SECTION, SESSIONS, KEPT, connections as f64);
    book.put_value(SECTION, SESSIONS, "all ended at once, in s", seconds);
}

fn queues(number: usize) -> String {
    format!("RLOCK.ACQUIRE hot {} QUEUE 60000", owner(number))
}

#[track_caller]
fn expect_too_many(admin: &mut Client, line: &str) {
    let error = admin.error(line);
    assert!(error.starts_with("TOOMANY "), "{line}: {error}");
}
