//! Clients of which there are few, and then many.

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
