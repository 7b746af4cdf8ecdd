//! When the engine acts outside commands.

use std::time::Duration;

use rlock_core::manager::Next;

use crate::host::{Deferred, Host};

/// How long the engine works in one callback; the rest is done in the next iteration of the loop.
pub const PORTION: Duration = Duration::from_micros(500);

/// While nothing may be written, how often to check the gate, in milliseconds.
const RETRY_MS: u64 = 50;

/// Sets the timers for the manager's next task. Follows anything that may change it.
pub fn settle<H: Host>(host: &H) {
    set(host, host.state(|state| state.manager.next_call()));
}

/// Sets the timers for the manager's next task.
pub(crate) fn set<H: Host>(host: &H, next: Next) {
    if next == Next::default() {
        return;
    }
    if let Some(at) = next.at {
        host.set_alarm(at);
    }
    if let Some(ms) = next.observers_in_ms
        && !host.state(|state| std::mem::replace(&mut state.is_telling, true))
    {
        host.defer(ms, Deferred::Observers);
    }
    if next.soon {
        soon(host);
    } else if next.when_open && !host.state(|state| std::mem::replace(&mut state.is_retrying, true))
    {
        host.defer(RETRY_MS, Deferred::Retry);
    }
}

/// Schedules a sweep in this iteration of the loop or the next: the caller may not write.
pub fn soon<H: Host>(host: &H) {
    if !host.state(|state| std::mem::replace(&mut state.is_coming, true)) {
        host.defer(0, Deferred::Sweep);
    }
}

/// The machine's clock was set. A server's timers follow it: if it went back, those that are
/// pending come late by as much, and no others would be asked for. So their work is done now.
pub fn clock_was_set<H: Host>(host: &H) {
    use Deferred::{Answer, Observers, Retry, Search, Sweep};
    // No caller waits for the rest. Each task does nothing if nothing is due.
    for work in [Sweep, Retry, Observers, Answer, Search] {
        host.defer(0, work);
    }
}
