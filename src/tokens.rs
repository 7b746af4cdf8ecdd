//! Keeps the highest token across a rewrite of the append-only file.
//!
//! A file that begins with an RDB file has that token beside the keys, except on Redis 7.0. A file
//! of commands only has keys, of which perhaps none is a lock.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rlock_core::grammar::Access;
use rlock_core::manager::LockId;
use rlock_core::snapshot::{self, Start};
use rlock_engine::{Caller, Content, Keys, OpenKey};

use crate::ffi::{self, Ctx};
use crate::state;

/// While the server is paused or loads, how often to try again, in milliseconds.
const RETRY_MS: u64 = 50;
/// Whether a later attempt is scheduled.
static IS_RETRYING: AtomicBool = AtomicBool::new(false);

/// Subscribes to the children that rewrite the file.
pub fn register(ctx: &Ctx) {
    // In a timer: at once, the command that forked (`PSYNC`, for example) would count as a write
    // and be replicated. It is early enough: the server uses the rewritten file only when the child
    // has ended and its own timers have run.
    ctx.watch_forks(|_| ffi::after(0, save));
}

/// Appends the highest token, if it is ahead of the clock, to the file that continues the rewritten
/// one.
fn save(ctx: &Ctx) {
    let now = state::now();
    let Some(token) = state::with(|state| state.manager.token_ahead(now)) else { return };
    // While the server is paused, it asserts that nothing is written, not even to its own file.
    if ctx.is_paused() || ctx.is_loading() {
        if !IS_RETRYING.swap(true, Relaxed) {
            ffi::after(RETRY_MS, retry);
        }
        return;
    }
    let mut payload = Vec::new();
    snapshot::save_effect(Start::Existing, &snapshot::as_token(token), &mut payload);
    // The first of ten names, which nobody would guess, at which no value is stored.
    for number in 0..10 {
        let key = format!("rlock.token:{}:{number}", token.get());
        let id = LockId { db: 0, key: key.as_bytes().into() };
        let is_done = ctx.with_name(&id, |name| {
            let is_free = matches!(ctx.open(name, Access::Reads).content(), Content::Missing);
            if is_free {
                ctx.append(name, &payload);
            }
            is_free
        });
        if is_done {
            return;
        }
    }
}

fn retry(ctx: &Ctx) {
    IS_RETRYING.store(false, Relaxed);
    save(ctx);
}
