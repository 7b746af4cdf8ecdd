//! Clients of which there are few, and then many.

use crate::stage::until_all_is_read;
use rlock_testkit::{Server, Waiter};

/// Commands under way at once, of clients that do not block.
pub const PIPELINED: usize = 100;

/// A constant number of clients that contend with each other.
pub trait Crowd: Sized {
    /// Steps in one measurement: all passes together take a second or more of the server's time.
    const STEPS: usize;
    /// The greatest number.
    const SIZE_MAX: usize;
    /// Whether each has its own connection.
    const IS_CONNECTED_EACH: bool = false;

    /// They arrive, and each has one turn, so that all are in the server's caches.
    fn gather(server: &Server, size: usize) -> Self;
    /// This many steps, after which everything is as before.
    fn go(&mut self, steps: usize);
}

/// Sends all of it at once; no reply may be an error.
#[track_caller]
pub fn exchange(connection: &mut Waiter, lines: &[String]) -> Vec<redis::Value> {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    connection.say_all(&lines);
    lines.iter().map(|_| connection.answer()).collect()
}

/// Sends what `make` says for each number below `count`, so many at once as [`PIPELINED`].
#[track_caller]
pub fn exchange_all(connection: &mut Waiter, count: usize, make: impl Fn(usize) -> String) {
    for first in (0..count).step_by(PIPELINED) {
        let lines = (first..count.min(first + PIPELINED)).map(&make);
        exchange(connection, &lines.collect::<Vec<_>>());
    }
}

/// So many connections.
pub fn connected(server: &Server, count: usize) -> Vec<Waiter> {
    (0..count).map(|_| Waiter::connect(server)).collect()
}

/// So many connections, of which each has sent what `asks` says for its number, in this order; the
/// server has read it.
pub fn blocked(server: &Server, count: usize, asks: impl Fn(usize) -> String) -> Vec<Waiter> {
    let mut watcher = Waiter::connect(server);
    let mut line = connected(server, count);
    for (number, waiter) in line.iter_mut().enumerate() {
        waiter.say(&asks(number));
        until_all_is_read(&mut watcher);
    }
    line
}
