//! The one clock of a run, and the one way to let time pass.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock: the same for all processes of a run.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Milliseconds as nanoseconds.
pub const fn ns(ms: u64) -> u64 {
    ms * 1_000_000
}

/// Nanoseconds as milliseconds, for people.
pub fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Whether the load has to end, and a wait that its end cuts short.
#[derive(Default)]
pub struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub fn set(&self) {
        *self.is_set.lock().unwrap() = true;
        self.changed.notify_all();
    }

    pub fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap()
    }

    /// Lets `ms_max` pass, or less if the load ends before.
    pub fn within(&self, ms_max: u64) {
        let guard = self.is_set.lock().unwrap();
        let patience = Duration::from_millis(ms_max);
        drop(self.changed.wait_timeout_while(guard, patience, |is_set| !*is_set).unwrap());
    }
}
