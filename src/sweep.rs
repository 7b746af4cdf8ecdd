//! The module's work outside commands, in portions. The manager chooses the next task.

use std::time::{Duration, Instant};

use rlock_core::grammar::Access;
use rlock_core::manager::{At, Mark, Task};
use rlock_core::{Input, Lock, Refusal};

use crate::ffi::{Ctx, Gate, is_cluster};
use crate::timers::PORTION;
use crate::{answers, closing, executor, gate, publish, state};

/// How long the module works on tasks at least: there may be much to publish every time.
const FOR_TASKS: Duration = Duration::from_micros(125);

/// Does what is due, earliest deadline first.
pub fn sweep(ctx: &Ctx) {
    let began_at = Instant::now();
    publish::removed(ctx);
    let published_at = Instant::now();
    let now = state::now();
    state::with(|state| state.manager.sweep_begins(now));
    let mut is_asked = false;
    loop {
        let now = state::now();
        let Some(task) = state::with(|state| {
            if !is_asked {
                state.manager.presume_open();
            }
            state.manager.next_task(now)
        }) else {
            break;
        };
        is_asked |= carry_out(ctx, task, is_asked);
        answers::tell(ctx, state::with(|state| state.manager.take_answers()));
        if began_at.elapsed() > PORTION && published_at.elapsed() > FOR_TASKS {
            break;
        }
    }
    answers::tell(ctx, state::with(|state| state.manager.take_answers()));
    if state::with(|state| state.manager.watches_commands()) {
        closing::watch();
    }
    closing::settle(closing::During::Sweep);
}

/// Whether the gate need not be checked again in this portion: there is one gate for all keys,
/// except in a cluster, where each key has its own.
fn carry_out(ctx: &Ctx, task: Task, is_open: bool) -> bool {
    match task {
        Task::Sweep(id, due_at, why) => ctx.with_name(id.db, &id.key, |name| {
            let gate = if is_open { Gate::Open } else { gate::of(ctx, name) };
            let at = At { db: id.db, key: &id.key, now: state::now() };
            state::with(|state| state.manager.gate_is(gate != Gate::Shut, at.now));
            match gate {
                Gate::Open => {
                    let input = if why == Mark::Changed { Input::Changed } else { Input::Tick };
                    if executor::sweep(ctx, id.db, name, input).is_err() {
                        state::with(|state| state.manager.dismiss(at, &Refusal::WrongType));
                    }
                }
                Gate::Elsewhere => {
                    state::with(|state| state.manager.dismiss(at, &Refusal::TryAgain));
                }
                Gate::Shut => {
                    state::with(|state| state.manager.postpone(id.clone(), due_at, why));
                }
            }
            gate != Gate::Elsewhere && !is_cluster() || gate == Gate::Shut
        }),
        Task::See(id, why) => ctx.with_name(id.db, &id.key, |name| {
            let mut key = ctx.open(name, Access::Reads);
            let free = Lock::default();
            let lock = key.lock(&free).unwrap_or(&free);
            let now = state::now();
            state::with(|state| state.manager.see(&id, why, lock, now));
            true
        }),
    }
}
