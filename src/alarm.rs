//! One server timer for the whole module, at the next moment that anyone waits for. Nobody waits,
//! no timer.

use crate::ffi::{self, Ctx};
use crate::memories::Mark;
use crate::{executor, publish, state};

/// While nothing may be written (a pause, a cluster that is down), marked locks wait so long for
/// the next try, in milliseconds.
const RETRY_MS: u64 = 50;

/// Sets the timer to the next alarm, if it is not there already.
pub fn set() {
    let stale = state::with(|state| {
        let next = state.memories.next_alarm();
        let set = state.timer.as_ref().map(|(at, _)| *at);
        if next == set { None } else { Some((state.timer.take(), next)) }
    });
    let Some((old, next)) = stale else { return };
    if let Some((_, timer)) = old {
        ffi::stop(timer);
    }
    if let Some(at) = next {
        // The server's timers are up to a millisecond late by themselves. One that fires before the
        // deadline does no more than to set the next.
        let left_us = at.get().saturating_mul(1000).saturating_sub(state::now().us());
        let timer = ffi::after(left_us / 1000, fire);
        state::with(|state| state.timer = Some((at, timer)));
    }
}

/// Looks once at every lock whose alarm came due: a clock that steps back may not keep the server
/// here.
fn fire(ctx: &Ctx) {
    let now = state::now();
    let due = state::with(|state| {
        // It is gone by firing: to stop it would free it twice.
        state.timer = None;
        state.memories.due(now)
    });
    let mut may_look = true;
    for lock in due {
        may_look = may_look && may_write(ctx) && executor::look(ctx, &lock);
        if !may_look {
            executor::time_out(&lock);
            state::with(|state| state.memories.mark(lock, Mark::Left));
            look_soon();
        }
    }
    set();
}

/// Locks were marked: they are looked at soon, because where that is done nothing may be written.
pub fn look_soon() {
    look_after(0);
}

fn look_after(ms: u64) {
    if !state::with(|state| std::mem::replace(&mut state.is_look_due, true)) {
        ffi::after(ms, look_at_marked);
    }
}

fn look_at_marked(ctx: &Ctx) {
    state::with(|state| state.is_look_due = false);
    publish::gone(ctx);
    if may_write(ctx) {
        // A cluster that is down is down for every lock.
        let mut is_up = true;
        for (lock, why) in state::with(|state| state.memories.take_marked()) {
            let is_done = is_up && executor::look(ctx, &lock);
            is_up = is_done;
            if why == Mark::Changed || !is_done {
                executor::look_for_sessions(ctx, &lock);
            }
            if !is_done {
                state::with(|state| state.memories.mark(lock, why));
            }
        }
    }
    if state::with(|state| state.is_primary && state.memories.has_marked()) {
        look_after(RETRY_MS);
    }
    set();
}

/// The server asserts that nothing is written while it is paused.
fn may_write(ctx: &Ctx) -> bool {
    state::with(|state| state.is_primary) && !ctx.is_paused()
}
