//! A lease ends while somebody waits: how long after the deadline that one is told.

use std::time::UNIX_EPOCH;

use crate::bench::{CpuClock, Sample, say_beside_goal, say_kept_off, server, until_all_is_read};
use crate::queues::exchange;
use crate::support::{Client, Server, Waiter};

const EXPIRIES: i64 = 1000;
const VOLATILE_KEYS: usize = 100_000;

/// Prints it for a server that has nothing else, and for one full of keys that expire.
pub fn measure() {
    println!("Lease end to grant, one lease after the other, each of 20 to 39 ms:");
    let quiet = server(&[]);
    lateness(&quiet, "  nothing else on the server");
    drop(quiet);
    let full = server(&[]);
    fill(&full);
    lateness(&full, "  beside 100 000 volatile keys");
}

/// Keys that expire evenly over ten minutes: some at any moment.
fn fill(server: &Server) {
    let mut connection = Waiter::connect(server);
    for first in (0..VOLATILE_KEYS).step_by(100) {
        let keys = first..first + 100;
        let sets = keys.map(|number| format!("SET volatile:{number} x PX {}", 1 + number * 6));
        exchange(&mut connection, &sets.collect::<Vec<_>>());
    }
}

fn lateness(server: &Server, what: &str) {
    let mut holder = server.client();
    let (mut waiter, mut watcher) = (Waiter::connect(server), Waiter::connect(server));
    let (mut late_ms, mut early) = (Sample::default(), 0);
    for number in 0..EXPIRIES {
        let ends_at_ms = hold(&mut holder, 20 + number % 20);
        waiter.say("RLOCK.ACQUIRE hot waiter BLOCK 10000");
        until_all_is_read(&mut watcher);
        waiter.answer();
        let late = now_ms() - ends_at_ms as f64;
        late_ms.add(late);
        early += usize::from(late < 0.0);
        assert_eq!(waiter.number("RLOCK.RELEASE hot waiter"), 0);
    }
    let (p50, p99) = (late_ms.median(), late_ms.percentile(99));
    let figure = format!(
        "p50 {p50:.2} p99 {p99:.2} max {:.2} ms, {early} of {EXPIRIES} early",
        late_ms.max()
    );
    let is_reached = p50 <= 1.0 && p99 <= 2.0;
    say_beside_goal(what, &figure, "p50 <= 1, p99 <= 2 ms, 0 early", is_reached && early == 0);
    say_kept_off(&CpuClock::of(&mut holder));
    assert_eq!(early, 0, "granted before the deadline");
}

/// Holds the lock; the deadline in unix milliseconds, which is the key's while nobody waits.
#[track_caller]
fn hold(holder: &mut Client, lease_ms: i64) -> i64 {
    holder.granted(&format!("RLOCK.ACQUIRE hot holder LEASE {lease_ms}"));
    let ends_at_ms = holder.key_ends_at("hot");
    assert!(ends_at_ms > 0, "the hold was over before it could be looked at");
    ends_at_ms
}

/// This machine's clock, which is the server's too, in unix milliseconds and parts of one.
fn now_ms() -> f64 {
    UNIX_EPOCH.elapsed().unwrap().as_secs_f64() * 1e3
}
