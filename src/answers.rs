//! What blocked connections are told.

use std::cell::RefCell;

use rlock_core::{WaiterId, Wake};

use crate::ffi::{self, Ctx};
use crate::{metrics, state};

thread_local! {
    /// To be answered in a later iteration of the server's loop.
    static LATE: RefCell<Vec<WaiterId>> = const { RefCell::new(Vec::new()) };
}

/// Tells blocked connections what came of their waits.
pub fn tell(ctx: &Ctx, wakes: Vec<Wake>) {
    if wakes.is_empty() {
        return;
    }
    // A script is answered in the midst of it, and what it wrote is not in the append-only file
    // before it ends: then nobody may have heard of it.
    let is_late = ffi::tells_at_once() && ctx.is_nested();
    for wake in wakes {
        if is_late {
            tell_later(&wake);
        } else if note(&wake) {
            unblock(wake.waiter);
        }
    }
}

/// Tells a connection that was blocked in this very command: the server may not be asked to answer
/// it before the command is over (Redis 7.2 asserts it).
pub fn tell_later(wake: &Wake) {
    fn tell_late(_: &Ctx) {
        LATE.take().into_iter().for_each(unblock);
    }
    if note(wake) {
        let is_first = LATE.with_borrow_mut(|late| {
            late.push(wake.waiter);
            late.len() == 1
        });
        if is_first {
            ffi::after(0, tell_late);
        }
    }
}

fn note(wake: &Wake) -> bool {
    let is_told = state::with(|state| state.manager.answer(wake));
    if is_told {
        metrics::count_wake(wake);
    }
    is_told
}

fn unblock(waiter: WaiterId) {
    if let Some(blocked) = state::with(|state| state.blocked.remove(&waiter)) {
        blocked.answer();
    }
}
