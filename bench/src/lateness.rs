//! A lease expires while a client waits, or while another hold continues: how long after the
//! deadline the client gets its reply, or a subscriber the event.

use std::time::UNIX_EPOCH;

use crate::Profile;
use crate::book::Book;
use crate::crowd::exchange_all;
use crate::sample::Sample;
use crate::stage::{self, server, until_all_is_read};
use rlock_testkit::{Server, Waiter, items, text};

/// From the deadline to the grant, in microseconds.
pub const SECTION: &str = "waiting: lease end to grant, µs";
pub const QUIET: &str = "nothing else on the server";
const FULL: &str = "with 100 000 volatile keys";

/// From the deadline to the event, in microseconds.
const NOTICED: &str = "waiting: lease end to rlock.expired, µs";
const BESIDE: &str = "a reader beside another one, nobody waits";

const VOLATILE_KEYS: usize = 100_000;

/// Measures the lateness on an otherwise empty server, and on one full of keys that expire.
pub fn measure(book: &mut Book, profile: Profile) {
    let expiries = if profile == Profile::Quick { 200 } else { 1000 };
    lateness(book, &server(&[]), QUIET, expiries);
    let full = server(&[]);
    fill(&full);
    lateness(book, &full, FULL, expiries);
    beside(book, expiries);
}

/// Only the module publishes the expiry of each reader: the server itself expires only a lock's
/// last hold.
fn beside(book: &mut Book, expiries: i64) {
    let server = server(&["notify-keyspace-events", "Kd"]);
    let (mut holder, mut ears) = (server.client(), Waiter::connect(&server));
    holder.granted("RLOCK.ACQUIRE hot stays READ LEASE 3600000");
    ears.ask("SUBSCRIBE __keyspace@0__:hot");
    let mut late_us = Sample::default();
    for number in 0..expiries {
        // The expiry of the other lock's key shows when both holds end.
        holder.granted(&format!("RLOCK.MACQUIRE 2 hot other goes READ LEASE {}", 20 + number % 20));
        let ends_at_ms = holder.deadline("other");
        assert!(ends_at_ms > 0, "the hold was over before it could be looked at");
        while text(&items(&ears.answer())[2]) != "rlock.expired" {}
        late_us.add((now_ms() - ends_at_ms as f64) * 1e3);
    }
    assert!(late_us.min() >= 0.0, "noticed {} µs before the deadline", -late_us.min());
    book.put_percentiles(NOTICED, BESIDE, &late_us);
}

/// Creates keys that expire evenly over ten minutes, so that some expire at any moment.
fn fill(server: &Server) {
    let mut connection = Waiter::connect(server);
    exchange_all(&mut connection, VOLATILE_KEYS, |number| {
        format!("SET volatile:{number} x PX {}", 1 + number * 6)
    });
}

/// Measures one lease after another, each of 20 to 39 ms.
fn lateness(book: &mut Book, server: &Server, row: &str, expiries: i64) {
    let mut holder = server.client();
    let (mut waiter, mut watcher) = (Waiter::connect(server), Waiter::connect(server));
    let mut late_us = Sample::default();
    for number in 0..expiries {
        holder.granted(&format!("RLOCK.ACQUIRE hot holder LEASE {}", 20 + number % 20));
        let ends_at_ms = holder.deadline("hot");
        assert!(ends_at_ms > 0, "the hold was over before it could be looked at");
        waiter.say("RLOCK.ACQUIRE hot waiter BLOCK 10000");
        until_all_is_read(&mut watcher);
        waiter.answer();
        late_us.add((now_ms() - ends_at_ms as f64) * 1e3);
        assert_eq!(waiter.number("RLOCK.RELEASE hot waiter"), 0);
    }
    assert!(late_us.min() >= 0.0, "granted {} µs before the deadline", -late_us.min());
    book.put_percentiles(SECTION, row, &late_us);
    stage::say_kept_off(&mut holder);
}

/// The current time in unix milliseconds with fractions, by this machine's clock, which is also the
/// server's.
fn now_ms() -> f64 {
    UNIX_EPOCH.elapsed().unwrap().as_secs_f64() * 1e3
}
