//! The engine's work outside commands, in portions. The manager chooses the next task.

use std::time::Duration;

use rlock_core::manager::{At, LockId, Mark, Task};
use rlock_core::{Input, Refusal};

use crate::host::{During, Gate, Host};
use crate::{answers, carry_out, gate, groups, observers, publish, reports, timers, unit};

/// How long a sweep works on tasks at least, even if there is much to publish every time.
const FOR_TASKS: Duration = Duration::from_micros(125);

/// [`crate::Deferred::Sweep`].
pub(crate) fn come<H: Host>(host: &H) {
    host.state(|state| state.is_coming = false);
    run(host);
}

/// [`crate::Deferred::Retry`].
pub(crate) fn retry<H: Host>(host: &H) {
    host.state(|state| state.is_retrying = false);
    run(host);
}

/// Does a portion of what is due, earliest deadline first, and sets the timers for the rest.
fn run<H: Host>(host: &H) {
    let began_at = host.monotonic();
    publish::removed(host);
    let published_at = host.monotonic();
    let now = host.now();
    host.state(|state| state.manager.sweep_begins(now));
    let mut is_asked = false;
    loop {
        let now = host.now();
        let Some(task) = host.state(|state| {
            if !is_asked {
                state.manager.presume_open();
            }
            state.manager.next_task(now)
        }) else {
            break;
        };
        is_asked |= carry_out_task(host, task, is_asked);
        answers::send_due(host);
        let at = host.monotonic();
        let is_over = |since: Duration, most| at.saturating_sub(since) > most;
        if is_over(began_at, timers::PORTION) && is_over(published_at, FOR_TASKS) {
            break;
        }
    }
    answers::send_due(host);
    observers::tell_some(host);
    if host.state(|state| state.manager.watches_commands()) {
        host.watch_commands();
    }
    host.close_lost(During::Sweep);
    timers::settle(host);
}

/// Whether the gate need not be checked again in this portion: all keys share one gate, except in a
/// Cluster, where each key has its own.
fn carry_out_task<H: Host>(host: &H, task: Task, is_open: bool) -> bool {
    match task {
        Task::Sweep(id, due_at, why) => {
            let gate = host.with_name(&id, |name| {
                let gate = if is_open { Gate::Open } else { gate::of(host, name) };
                let at = At { db: id.db, key: &id.key, now: host.now() };
                host.state(|state| state.manager.gate_is(gate != Gate::Shut, at.now));
                match gate {
                    Gate::Open => {
                        let input = if why == Mark::Changed { Input::Changed } else { Input::Tick };
                        if carry_out::by_itself(host, name, input).is_err() {
                            host.state(|state| state.manager.dismiss(at, &Refusal::WrongType));
                        }
                    }
                    Gate::Elsewhere => {
                        host.state(|state| state.manager.dismiss(at, &Refusal::TryAgain));
                    }
                    Gate::Shut => {
                        host.state(|state| state.manager.postpone(id.clone(), due_at, why));
                    }
                }
                gate
            });
            match gate {
                Gate::Open => {
                    let reports = groups::finish_revocations(host);
                    if !reports.is_empty() {
                        reports::deliver(host, reports, None);
                    }
                }
                Gate::Shut => see(host, &id, why),
                Gate::Elsewhere => {}
            }
            gate != Gate::Elsewhere && !host.is_cluster() || gate == Gate::Shut
        }
        Task::Groups(id) => {
            let gate = host.with_name(&id, |name| match is_open {
                true => Gate::Open,
                false => gate::of(host, name),
            });
            // In a Cluster, the gate of each key is checked before the key is changed.
            let is_shut = match gate {
                Gate::Shut => true,
                Gate::Open | Gate::Elsewhere => {
                    let (is_done, reports) = groups::carry_on_in_sweep(host);
                    reports::deliver(host, reports, None);
                    !is_done
                }
            };
            let now = host.now();
            host.state(|state| state.manager.gate_is(!is_shut, now));
            is_shut || !host.is_cluster()
        }
        Task::GroupOver(waiter) => {
            groups::time_out(host, waiter);
            is_open
        }
        Task::See(id, why) => {
            see(host, &id, why);
            true
        }
    }
}

/// Finds the sessions and grants that are lost at this lock, while nothing may be written.
fn see<H: Host>(host: &H, id: &LockId, why: Mark) {
    let now = host.now();
    unit::look(host, id, |lock, state| state.manager.see(id, why, lock, now));
}
