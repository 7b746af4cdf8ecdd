//! As many as there may be: what each of them takes, and that the lock still changes hands.

use std::time::Duration;

use redis::Value;

use crate::bench::{may_open, say, say_beside_goal, server, server_for, until_all_is_read};
use crate::queues::exchange;
use crate::support::{Client, Server, Waiter, say_not_seen};

const CONNECTIONS: usize = 10_000;
const TICKETS: usize = 100_000;
/// By then the server has cut the buffers of all who say nothing: it looks at each once a second,
/// and waits for 2 seconds of silence.
const IDLE: Duration = Duration::from_secs(5);

/// Prints the memory of each, after making sure that the crowd is served.
pub fn measure() {
    println!("At the limit (rlock.max-waiters 10 000, rlock.max-tickets 100 000):");
    if may_open(CONNECTIONS) {
        blocked_connections();
    } else {
        say_not_seen("10 000 connections: `ulimit -n` is too low");
    }
    tickets();
}

fn blocked_connections() {
    let bytes_beside = blocked_on_a_list();
    let server = server_for(CONNECTIONS);
    let mut admin = server.client();
    let mut holder = Waiter::connect(&server);
    holder.ask("RLOCK.ACQUIRE hot holder LEASE 600000");
    let (mut line, bytes) =
        block_all(&server, |number| format!("RLOCK.ACQUIRE hot {} BLOCK 0", owner(number)));
    assert_eq!(admin.info_number("rlock", "rlock_waiters"), CONNECTIONS as i64);
    expect_too_many(&mut admin, "RLOCK.ACQUIRE hot one-too-many BLOCK 0");

    assert_eq!(holder.number("RLOCK.RELEASE hot holder"), 0);
    for (number, waiter) in line.iter_mut().enumerate().take(100) {
        waiter.answer();
        waiter.ask(&format!("RLOCK.RELEASE hot {}", owner(number)));
    }
    let figure = format!(
        "{bytes} bytes with its connection, beside {bytes_beside} in BLPOP; served in order; \
         then -TOOMANY"
    );
    say("  each of 10 000 blocked connections", &figure);
}

/// The bytes of a connection that the server itself blocks.
fn blocked_on_a_list() -> i64 {
    block_all(&server_for(CONNECTIONS), |_| "BLPOP nothing 0".to_owned()).1
}

/// All of them blocked, and the bytes of each, once the server has cut the buffers of the idle.
fn block_all(server: &Server, asks: impl Fn(usize) -> String) -> (Vec<Waiter>, i64) {
    let mut admin = server.client();
    let mut watcher = Waiter::connect(server);
    let before = used_memory(&mut admin);
    let mut line: Vec<Waiter> = (0..CONNECTIONS).map(|_| Waiter::connect(server)).collect();
    for (number, waiter) in line.iter_mut().enumerate() {
        waiter.say(&asks(number));
        until_all_is_read(&mut watcher);
    }
    std::thread::sleep(IDLE);
    (line, (used_memory(&mut admin) - before) / CONNECTIONS as i64)
}

fn tickets() {
    let server = server(&["rlock.max-tickets", &TICKETS.to_string()]);
    let mut admin = server.client();
    let mut connection = Waiter::connect(&server);
    connection.ask("RLOCK.ACQUIRE hot holder LEASE 600000");
    let before = used_memory(&mut admin);
    for first in (0..TICKETS).step_by(100) {
        let asks = (first..first + 100).map(queues);
        exchange(&mut connection, &asks.collect::<Vec<_>>());
    }
    assert_eq!(admin.info_number("rlock", "rlock_tickets"), TICKETS as i64);
    let each = (used_memory(&mut admin) - before) / TICKETS as i64;
    expect_too_many(&mut admin, "RLOCK.ACQUIRE hot one-too-many QUEUE 60000");

    admin.ask("RLOCK.RELEASE hot holder");
    for number in 0..100 {
        assert_eq!(admin.ask(&queues(TICKETS - 1)), Value::Nil, "the last passed the others");
        admin.granted(&queues(number));
        admin.ask(&format!("RLOCK.RELEASE hot {}", owner(number)));
    }
    let figure = format!("{each} bytes (owner of 39); served in order; then -TOOMANY");
    say_beside_goal("  each of 100 000 tickets", &figure, "<= 300 bytes", each <= 300);
}

fn queues(number: usize) -> String {
    format!("RLOCK.ACQUIRE hot {} QUEUE 60000", owner(number))
}

/// As clients name theirs: a uuid and the number of a thread.
fn owner(number: usize) -> String {
    format!("0f9a7c3e-5d0b-4c57-9c51-{number:012x}:17")
}

fn used_memory(admin: &mut Client) -> i64 {
    admin.info_number("memory", "used_memory")
}

#[track_caller]
fn expect_too_many(admin: &mut Client, line: &str) {
    let error = admin.error(line);
    assert!(error.starts_with("TOOMANY "), "{line}: {error}");
}
