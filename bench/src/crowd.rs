//! Groups of clients, which are measured first with few members and then with many.

use crate::stage::until_all_is_read;
use rlock_testkit::{Server, Waiter};

/// How many commands clients that do not block have under way at once.
pub const PIPELINED: usize = 100;

/// A constant number of clients that contend with each other.
pub trait Crowd: Sized {
    /// Steps in one measurement. All passes together take at least a second of the server's time.
    const STEPS: usize;
    /// The greatest number of clients.
    const SIZE_MAX: usize;
    /// Whether each client has its own connection.
    const IS_CONNECTED_EACH: bool = false;

    /// Connects the clients, and has each do one step, so that the server's caches hold all of
    /// them.
    fn gather(server: &Server, size: usize) -> Self;
    /// Does this many steps. Afterwards the state is the same as before.
    fn go(&mut self, steps: usize);
}

/// Sends all lines at once, and returns their replies. No reply may be an error.
#[track_caller]
pub fn exchange(connection: &mut Waiter, lines: &[String]) -> Vec<redis::Value> {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    connection.say_all(&lines);
    lines.iter().map(|_| connection.answer()).collect()
}

/// Sends the line that `make` returns for each number below `count`, [`PIPELINED`] lines at a time.
#[track_caller]
pub fn exchange_all(connection: &mut Waiter, count: usize, make: impl Fn(usize) -> String) {
    for first in (0..count).step_by(PIPELINED) {
        let lines = (first..count.min(first + PIPELINED)).map(&make);
        exchange(connection, &lines.collect::<Vec<_>>());
    }
}

/// Opens this many connections.
pub fn connected(server: &Server, count: usize) -> Vec<Waiter> {
    (0..count).map(|_| Waiter::connect(server)).collect()
}

/// Opens this many connections. Each sends the line that `asks` returns for its number. The server
/// has read one line before the next is sent.
pub fn blocked(server: &Server, count: usize, asks: impl Fn(usize) -> String) -> Vec<Waiter> {
    let mut watcher = Waiter::connect(server);
    let mut line = connected(server, count);
    for (number, waiter) in line.iter_mut().enumerate() {
        waiter.say(&asks(number));
        until_all_is_read(&mut watcher);
    }
    line
}
