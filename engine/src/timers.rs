//! When the engine acts outside commands.

use std::time::Duration;

use rlock_core::manager::Next;

use crate::host::{Deferred, During, Host};

/// How long the engine works in one callback; the rest is done in the next loop iteration.
pub const PORTION: Duration = Duration::from_micros(500);

/// While the gate is shut, how often to check it, in milliseconds.
const RETRY_MS: u64 = 50;

/// Sets the timers for the manager's next task. Called after anything that may change it.
pub fn settle<H: Host>(host: &H) {
    set(host, host.state(|state| state.manager.next_call()));
}

/// Sets the timers after a command, and closes the connections that lost a session by it.
#[inline]
pub(crate) fn settle_command<H: Host>(host: &H) {
    let (next, is_watching) =
        host.state(|state| (state.manager.next_call(), state.manager.watches_commands()));
    set(host, next);
    if is_watching {
        host.watch_commands();
        host.close_lost(During::Command);
    }
}

fn set<H: Host>(host: &H, next: Next) {
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

/// Schedules a sweep in this loop iteration or the next, for a caller that may not write.
pub fn soon<H: Host>(host: &H) {
    if !host.state(|state| std::mem::replace(&mut state.is_coming, true)) {
        host.defer(0, Deferred::Sweep);
    }
}

/// The machine's clock was set. A server's timers follow it: if it was set back, pending timers
/// come late by as much, and the engine would set no others. So their work is done now.
pub fn clock_was_set<H: Host>(host: &H) {
    use Deferred::{Answer, Observers, Retry, Search, Sweep};
    // No caller waits for the rest. Each kind of work does nothing if nothing is due.
    for work in [Sweep, Retry, Observers, Answer, Search] {
        host.defer(0, work);
    }
}
