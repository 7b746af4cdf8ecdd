//! Counters, and the section `rlock` of `INFO`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rlock_core::manager::Removed;
use rlock_core::{Change, EpochMs, Event, Now, Refusal, Reply, Wake};
use rlock_engine::Happening;

use crate::ffi;
use crate::{disk, state};

/// Declares each total once, with the name of its field in `INFO rlock`.
macro_rules! metrics {
    ($($(#[$doc:meta])* $metric:ident = $name:literal,)*) => {
        /// A total since the server started.
        #[derive(Clone, Copy)]
        pub enum Metric {
            $($(#[$doc])* $metric,)*
        }

        const NAMES: &[&str] = &[$($name),*];
    };
}

metrics! {
    /// New holds, including those handed off.
    Acquired = "acquired",
    /// Re-entries, and requests for a depth that is held already.
    Reentered = "reentered",
    /// Requests that got nil at once.
    Refused = "refused",
    /// Waits of blocked connections that timed out.
    TimedOut = "timed_out",
    /// Waits of blocked connections that were granted.
    HandedOff = "handed_off",
    /// Holds that their owner released.
    Released = "released",
    /// `RLOCK.RENEW` commands that got 1.
    Renewed = "renewed",
    /// Holds that expired.
    Expired = "expired",
    /// Holds that ended with their connection.
    Disconnected = "disconnected",
    /// Holds that an operator ended.
    Forced = "forced",
    /// Locks that the server evicted.
    Evicted = "evicted",
    /// Waits refused because they would have closed a cycle.
    Deadlocks = "deadlocks",
    /// Searches for a cycle that gave up after too many holders and waiters.
    DeadlockSearchesGivenUp = "deadlock_searches_given_up",
    /// Microseconds that granted connections waited.
    WaitUsSum = "wait_us_sum",
    /// Connections that waited and were granted.
    WaitUsCount = "wait_us_count",
    /// Microseconds that ended holds lasted.
    HoldUsSum = "hold_us_sum",
    /// Ended holds whose duration is known.
    HoldUsCount = "hold_us_count",
    /// Callers that got `-NOACKS`.
    NoAcks = "noacks",
    /// Microseconds that grants waited for acknowledgments.
    AcksUsSum = "acks_us_sum",
    /// Grants that replicas acknowledged.
    AcksUsCount = "acks_us_count",
    /// Requests for a session that `rlock.max-sessions` refused.
    SessionsRefused = "sessions_refused",
    /// Requests that the module refused for lack of replicas.
    NoReplicas = "noreplicas",
    /// Messages that were sent, whatever their content.
    Told = "told",
    /// Results that no subscriber would have received.
    Untold = "untold",
    /// Requests for several locks that got a token.
    GroupsGranted = "groups_granted",
}

static TOTALS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Upper bounds of waits and holds, in microseconds. Each bucket counts those above the bound
/// before it; the reported numbers are cumulative.
const BOUNDS: [u64; 17] = [
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    u64::MAX,
];

type Buckets = [AtomicU64; BOUNDS.len()];

static WAITS: Buckets = [const { AtomicU64::new(0) }; BOUNDS.len()];
static HOLDS: Buckets = [const { AtomicU64::new(0) }; BOUNDS.len()];
static ACKS: Buckets = [const { AtomicU64::new(0) }; BOUNDS.len()];

/// Counts what happened: the only place that counts.
#[inline(always)]
pub fn observe(happening: Happening<'_>) {
    match happening {
        Happening::Decided { at, asks, done } => {
            count(done.changes, done.events, done.reply, asks, at.now);
            for token in done.replaced {
                count_hold(at.now.us().saturating_sub(token.get()));
            }
        }
        Happening::Acquired(Reply::NotNow { .. }) => add(Metric::Refused, 1),
        Happening::Acquired(Reply::Refused(Refusal::TooManySessions)) => {
            add(Metric::SessionsRefused, 1);
        }
        Happening::Renewed(Reply::Renewed) => add(Metric::Renewed, 1),
        Happening::Answered(wake) => count_wake(wake),
        Happening::Unblocked(_, Reply::NotNow { .. }) => add(Metric::TimedOut, 1),
        Happening::Unblocked(_, Reply::Refused(Refusal::NoAcks | Refusal::NoAcksMoved)) => {
            add(Metric::NoAcks, 1);
        }
        Happening::Unblocked(..) => {}
        Happening::TooFewReplicas => add(Metric::NoReplicas, 1),
        Happening::Told => add(Metric::Told, 1),
        Happening::Untold(_) => add(Metric::Untold, 1),
        Happening::Deadlock => add(Metric::Deadlocks, 1),
        Happening::GrantedSeveral => add(Metric::GroupsGranted, 1),
        Happening::SearchGivenUp => add(Metric::DeadlockSearchesGivenUp, 1),
        Happening::Removed(lock) => count_removed(lock),
        Happening::Acquired(_)
        | Happening::Renewed(_)
        | Happening::Replayed(_)
        | Happening::Waits(_)
        | Happening::Turn { .. } => {}
    }
}

fn count_removed(lock: &Removed) {
    lock.held_us.iter().for_each(|us| count_hold(*us));
    match lock.event {
        Event::Expired => add(Metric::Expired, lock.holds),
        Event::Evicted => add(Metric::Evicted, 1),
        _ => {}
    }
}

/// Adds to a counter.
#[inline]
fn add(metric: Metric, count: usize) {
    if let Some(total) = TOTALS.get(metric as usize) {
        raise(total, u64::try_from(count).unwrap_or(u64::MAX));
    }
}

/// Only the server's main thread writes.
fn raise(total: &AtomicU64, by: u64) {
    total.store(total.load(Relaxed).wrapping_add(by), Relaxed);
}

#[inline]
fn measure(buckets: &Buckets, [count, sum]: [Metric; 2], us: u64) {
    add(count, 1);
    add(sum, usize::try_from(us).unwrap_or(usize::MAX));
    let mut fitting = BOUNDS.iter().zip(buckets).filter(|(bound, _)| us <= **bound);
    if let Some((_, bucket)) = fitting.next() {
        raise(bucket, 1);
    }
}

/// Counts a hold that ended after this many microseconds.
fn count_hold(us: u64) {
    measure(&HOLDS, [Metric::HoldUsCount, Metric::HoldUsSum], us);
}

/// Counts the reply to a blocked connection.
fn count_wake(wake: &Wake) {
    if let Reply::Renewed = wake.reply {
        add(Metric::Renewed, 1);
    }
    if let Some(us) = wake.acks_us {
        measure(&ACKS, [Metric::AcksUsCount, Metric::AcksUsSum], us);
        // It was granted at once.
        if wake.waited_us <= us {
            return;
        }
    }
    match wake.reply {
        Reply::Granted { .. } => {
            add(Metric::HandedOff, wake.holds);
            measure(&WAITS, [Metric::WaitUsCount, Metric::WaitUsSum], wake.waited_us);
        }
        Reply::NotNow { .. } => add(Metric::TimedOut, 1),
        Reply::Refused(Refusal::NoAcks | Refusal::NoAcksMoved) => add(Metric::NoAcks, 1),
        Reply::Refused(Refusal::TooManySessions) => add(Metric::SessionsRefused, 1),
        _ => {}
    }
}

/// Counts what a decision of this primary did. `asks` is the owner that asked for the lock.
#[inline]
fn count(changes: &[Change<'_>], events: &[Event], reply: &Reply, asks: Option<&[u8]>, now: Now) {
    for event in events {
        match event {
            Event::Acquired | Event::Upgraded => add(Metric::Acquired, 1),
            Event::Released | Event::Downgraded => add(Metric::Released, 1),
            Event::Expired => add(Metric::Expired, 1),
            Event::Forced => add(Metric::Forced, 1),
            Event::Disconnected => add(Metric::Disconnected, 1),
            Event::Unconfirmed | Event::Evicted | Event::Removed => {}
        }
    }
    for change in changes {
        if let Change::Ended { token, .. } = change {
            count_hold(now.us().saturating_sub(token.get()));
        }
    }
    let is_new = |change: &Change<'_>| match (change, reply) {
        (Change::Granted { token, .. }, Reply::Granted { token: held, .. }) => token == held,
        (Change::Granted { owner, .. }, _) => Some(&**owner) == asks,
        _ => false,
    };
    let is_granted = match reply {
        Reply::Granted { .. } => true,
        // A grant that waits for acknowledgments; a renewal that waits for them does not count.
        Reply::Pending => asks.is_some(),
        _ => false,
    };
    if is_granted && !changes.iter().any(is_new) {
        add(Metric::Reentered, 1);
    }
}

/// The fields of the section of `INFO`.
pub fn fields(tell: &mut dyn FnMut(&str, u64)) {
    let (totals, observers, tells, [groups, group_turns]) = state::with(|state| {
        let manager = &state.manager;
        let tells = manager.tell_count();
        (manager.totals(), manager.observer_count(), tells, manager.group_totals())
    });
    for (name, now) in [
        ("waiters", totals.waiters),
        ("tells", tells),
        ("tickets", totals.tickets),
        ("sessions", totals.sessions),
        ("acks_pending", totals.pending),
        ("observers", observers),
        ("groups", groups),
        ("group_turns", group_turns),
    ] {
        tell(name, u64::try_from(now).unwrap_or(u64::MAX));
    }
    tell("locks", ffi::lock_count());
    for (name, total) in NAMES.iter().zip(&TOTALS) {
        tell(name, total.load(Relaxed));
    }
    for (what, buckets) in [("wait", &WAITS), ("hold", &HOLDS), ("acks", &ACKS)] {
        let mut sum: u64 = 0;
        for (bound, bucket) in BOUNDS.iter().zip(buckets) {
            let bound = if *bound == u64::MAX { "inf".into() } else { bound.to_string() };
            sum = sum.wrapping_add(bucket.load(Relaxed));
            tell(&format!("{what}_us_le_{bound}"), sum);
        }
    }
    let shut_since = state::with(|state| state.manager.shut_since());
    tell("gate_shut", shut_since.is_some().into());
    tell("gate_shut_since_ms", shut_since.map_or(0, EpochMs::get));
    let now = state::now();
    let ahead = state::with(|state| state.manager.token_ahead(now));
    let ahead_us = ahead.map_or(0, |token| token.get().saturating_sub(now.us()));
    // In whole seconds: during a server's first second, its tokens are ahead on purpose.
    tell("tokens_ahead_s", ahead_us / 1_000_000);
    tell("aof_incomplete", disk::is_incomplete().into());
    let queues: Vec<(i32, usize)> = state::with(|state| state.manager.queues().collect());
    for (db, queues) in queues {
        tell(&format!("queues_db{db}"), u64::try_from(queues).unwrap_or(u64::MAX));
    }
}
