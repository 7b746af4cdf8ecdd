//! Counters, and the section `rlock` of `INFO`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::c_int;
use redis_module::raw;
use rlock_core::{Effects, Event, Reply};

use crate::ffi::{self, Ctx};

/// A total since the server started.
#[derive(Clone, Copy)]
pub enum Metric {
    /// New holds.
    Acquired,
    /// Holds entered once more, or asked for again.
    Reentered,
    /// Requests to hold that somebody was in the way of.
    Refused,
    /// Holds that their owner let go of.
    Released,
    /// `RLOCK.RENEW` commands that found a hold.
    Renewed,
    /// Holds that their deadline ended.
    Expired,
    /// Holds that an operator ended.
    Forced,
    /// Locks that the server evicted.
    Evicted,
}

const NAMES: [&str; 8] =
    ["acquired", "reentered", "refused", "released", "renewed", "expired", "forced", "evicted"];

static TOTALS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Counts.
pub fn add(metric: Metric, count: usize) {
    if let Some(total) = TOTALS.get(metric as usize) {
        // Only the server's main thread writes.
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        total.store(total.load(Relaxed).wrapping_add(count), Relaxed);
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
            Event::Evicted | Event::Removed => {}
        }
    }
    let is_new = || matches!(effects.events.last(), Some(Event::Acquired | Event::Upgraded));
    match effects.reply {
        Reply::Granted { .. } if !is_new() => add(Metric::Reentered, 1),
        Reply::NotNow { .. } => add(Metric::Refused, 1),
        _ => {}
    }
}

/// Registers the section of `INFO`.
pub fn register(ctx: &Ctx) {
    raw::register_info_function(ctx.raw(), Some(info));
}

extern "C" fn info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    raw::add_info_section(ctx, None);
    raw::add_info_field_unsigned_long_long(ctx, "locks", ffi::lock_count());
    for (name, total) in NAMES.iter().zip(&TOTALS) {
        raw::add_info_field_unsigned_long_long(ctx, name, total.load(Relaxed));
    }
}
