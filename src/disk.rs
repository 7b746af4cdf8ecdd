//! Whether the append-only file contains everything that this server has.
//!
//! After a full sync, and after `CONFIG SET appendonly yes`, the server first writes a new file in
//! the background. A restart before that is complete would lose changes that the server has already
//! reported and acknowledged, whatever `appendfsync` is set to.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::ffi::{self, Ctx};

/// How often to check whether the file is complete, in milliseconds.
const LOOK_MS: u64 = 100;

static IS_ENABLED: AtomicBool = AtomicBool::new(false);
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);
static IS_WARNED: AtomicBool = AtomicBool::new(false);

/// Whether a restart now could lose what was reported with `appendfsync always`.
pub fn is_incomplete() -> bool {
    IS_INCOMPLETE.load(Relaxed)
}

/// The settings may have changed, or are read for the first time: the file may have been turned on.
pub fn on_settings(ctx: &Ctx, is_first: bool) {
    let is_enabled = number(ctx, c"aof_enabled");
    if !IS_ENABLED.swap(is_enabled, Relaxed) && is_enabled && !is_first {
        begin();
    }
}

/// The server begins a new file, perhaps only after this event: the data of a primary have replaced
/// its own, or the file was turned on.
pub fn begin() {
    if !IS_INCOMPLETE.swap(true, Relaxed) {
        IS_WARNED.store(false, Relaxed);
        ffi::after(0, look);
    }
}

fn look(ctx: &Ctx) {
    IS_ENABLED.store(number(ctx, c"aof_enabled"), Relaxed);
    let is_due = number(ctx, c"aof_rewrite_in_progress") || number(ctx, c"aof_rewrite_scheduled");
    let has_failed = ctx.server_info(c"persistence", c"aof_last_bgrewrite_status");
    let has_failed = has_failed.is_some_and(|status| status != "ok");
    if !IS_ENABLED.load(Relaxed) || !is_due && !has_failed {
        IS_INCOMPLETE.store(false, Relaxed);
        if IS_WARNED.swap(false, Relaxed) {
            ctx.warn("the append-only file is complete again");
        }
        return;
    }
    if !IS_WARNED.swap(true, Relaxed) {
        ctx.warn(
            "the append-only file is not complete until the rewrite in progress has ended: if this \
             server crashes before, it loses locks that it has reported or acknowledged, even with \
             appendfsync always",
        );
    }
    ffi::after(LOOK_MS, look);
}

/// Whether this field of `INFO persistence` is not 0.
fn number(ctx: &Ctx, field: &std::ffi::CStr) -> bool {
    ctx.server_info(c"persistence", field).is_some_and(|number| number != "0")
}
