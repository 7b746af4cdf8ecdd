//! Replies to blocked connections.

use rlock_core::{WaiterId, Wake};

use crate::ffi::{self, Ctx, Exclusive};
use crate::{metrics, state};

/// Connections to answer in a later loop iteration.
static LATE: Exclusive<Vec<WaiterId>> = Exclusive::empty();

/// Sends blocked connections the replies to their waits.
pub fn tell(ctx: &Ctx, wakes: Vec<Wake>) {
    if wakes.is_empty() {
        return;
    }
    // During a script a reply would leave before the script's writes are in the append-only file.
    let is_late = ffi::tells_at_once() && ctx.is_nested();
    for wake in wakes {
        if is_late {
            tell_later(&wake);
        } else if note(&wake) {
            unblock(wake.waiter);
        }
    }
}

/// Replies to a connection that this command blocked. This must not happen before the command has
/// ended (Redis 7.2 asserts that).
pub fn tell_later(wake: &Wake) {
    fn tell_late(_: &Ctx) {
        LATE.with(std::mem::take).into_iter().for_each(unblock);
    }
    if note(wake) {
        let is_first = LATE.with(|late| {
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
