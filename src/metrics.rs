//! Counters, and the section `rlock` of `INFO`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rlock_core::{Change, Effects, Event, Reply, Wake};

use crate::ffi::{self, Ctx};
use crate::state;

/// A total since the server started.
#[derive(Clone, Copy)]
pub enum Metric {
    /// New holds, handed off ones among them.
    Acquired,
    /// Holds entered once more, or asked for again.
    Reentered,
    /// Requests to hold that somebody was in the way of.
    Refused,
    /// Waits of parked connections whose time was over.
    TimedOut,
    /// Waits of parked connections that were granted.
    HandedOff,
    /// Holds that their owner let go of.
    Released,
    /// `RLOCK.RENEW` commands that found a hold.
    Renewed,
    /// Holds that their deadline ended.
    Expired,
    /// Holds that ended with their connection.
    Disconnected,
    /// Holds that an operator ended.
    Forced,
    /// Locks that the server evicted.
    Evicted,
    /// Waits refused because they would have closed a cycle.
    Deadlocks,
    /// Searches for a cycle that looked at too many holders and waiters.
    DeadlockSearchesGivenUp,
    /// Microseconds that granted connections waited.
    WaitUsSum,
    /// Connections that waited and were granted.
    WaitUsCount,
}

const NAMES: [&str; 15] = [
    "acquired",
    "reentered",
    "refused",
    "timed_out",
    "handed_off",
    "released",
    "renewed",
    "expired",
    "disconnected",
    "forced",
    "evicted",
    "deadlocks",
    "deadlock_searches_given_up",
    "wait_us_sum",
    "wait_us_count",
];

static TOTALS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Upper bounds of waits, in microseconds; each bucket counts what the smaller ones count too.
const BUCKETS: [(u64, &str); 7] = [
    (100, "wait_us_le_100"),
    (1_000, "wait_us_le_1000"),
    (10_000, "wait_us_le_10000"),
    (100_000, "wait_us_le_100000"),
    (1_000_000, "wait_us_le_1000000"),
    (10_000_000, "wait_us_le_10000000"),
    (u64::MAX, "wait_us_le_inf"),
];

static WAITS: [AtomicU64; BUCKETS.len()] = [const { AtomicU64::new(0) }; BUCKETS.len()];

/// Counts.
pub fn add(metric: Metric, count: usize) {
    if let Some(total) = TOTALS.get(metric as usize) {
        raise(total, u64::try_from(count).unwrap_or(u64::MAX));
    }
}

/// Only the server's main thread writes.
fn raise(total: &AtomicU64, by: u64) {
    total.store(total.load(Relaxed).wrapping_add(by), Relaxed);
}

/// Counts what a parked connection was told.
pub fn count_wake(wake: &Wake) {
    match wake.reply {
        Reply::Granted { .. } => {
            add(Metric::HandedOff, 1);
            add(Metric::WaitUsCount, 1);
            add(Metric::WaitUsSum, usize::try_from(wake.waited_us).unwrap_or(usize::MAX));
            for ((bound, _), bucket) in BUCKETS.iter().zip(&WAITS) {
                if wake.waited_us <= *bound {
                    raise(bucket, 1);
                }
            }
        }
        Reply::NotNow { .. } => add(Metric::TimedOut, 1),
        _ => {}
    }
}

/// Counts what a decision of this primary did.
pub fn count(effects: &Effects<'_>) {
    for event in &effects.events {
        match event {
            Event::Acquired | Event::Upgraded => add(Metric::Acquired, 1),
            Event::Released | Event::Downgraded => add(Metric::Released, 1),
            Event::Expired => add(Metric::Expired, 1),
            Event::Forced => add(Metric::Forced, 1),
            Event::Disconnected => add(Metric::Disconnected, 1),
            Event::Evicted | Event::Removed => {}
        }
    }
    if let Reply::Granted { token: held, .. } = effects.reply {
        let is_new =
            |change: &Change<'_>| matches!(change, Change::Granted { token, .. } if *token == held);
        if !effects.changes.iter().any(is_new) {
            add(Metric::Reentered, 1);
        }
    }
}

/// Registers the section of `INFO`.
pub fn register(ctx: &Ctx) {
    ctx.answer_info(fields);
}

fn fields(tell: &mut dyn FnMut(&str, u64)) {
    let totals = state::with(|state| state.manager.totals());
    for (name, now) in
        [("waiters", totals.waiters), ("tickets", totals.tickets), ("sessions", totals.sessions)]
    {
        tell(name, u64::try_from(now).unwrap_or(u64::MAX));
    }
    tell("locks", ffi::lock_count());
    for (name, total) in NAMES.iter().zip(&TOTALS) {
        tell(name, total.load(Relaxed));
    }
    for ((_, name), bucket) in BUCKETS.iter().zip(&WAITS) {
        tell(name, bucket.load(Relaxed));
    }
}
