//! Grants whose reply waits for acknowledgements: while there are any, the module checks the
//! replicas before each sleep of the server's event loop.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use rlock_core::Refusal;
use rlock_core::manager::Manager;

use crate::ffi::{self, Ctx, Replication};
use crate::metrics::{self, Metric};
use crate::{answers, publish, state, timers};

/// The server calls us before each sleep of its event loop.
static IS_WATCHING: AtomicBool = AtomicBool::new(false);
/// Ask replicas for their offset as soon as anything may be written.
static IS_ASKING: AtomicBool = AtomicBool::new(false);

/// At least this many replicas are connected and have acknowledged anything: valid since the server
/// was last asked, until one disconnects.
static ONLINE: AtomicUsize = AtomicUsize::new(0);

/// How long the subscription outlives the last acknowledgement that somebody waited for, in
/// milliseconds.
const LINGER_MS: u64 = 1000;

/// Checks that the caller can wait until this many replicas have acknowledged its request.
///
/// # Errors
/// The caller cannot be blocked, or there are too few replicas.
pub fn may_confirm(ctx: &Ctx, acks: u8) -> Result<(), Refusal> {
    if acks == 0 {
        return Ok(());
    }
    if ctx.denies_blocking() {
        return Err(Refusal::CannotConfirm);
    }
    if Manager::may_confirm(acks, ONLINE.load(Relaxed)).is_ok() {
        return Ok(());
    }
    let answer = Manager::may_confirm(acks, see(ctx).acknowledged.len());
    if answer.is_err() {
        metrics::add(Metric::NoReplicas, 1);
    }
    answer
}

/// The current state of the replication stream.
fn see(ctx: &Ctx) -> Replication {
    let replication = ctx.replication();
    ONLINE.store(replication.acknowledged.len(), Relaxed);
    replication
}

/// A replica disconnected.
pub fn one_left() {
    ONLINE.store(0, Relaxed);
}

/// Asks a newly connected replica for its offset: it counts from its first acknowledgement on, and
/// acknowledges nothing while nothing is written.
pub fn greet(ctx: &Ctx) {
    if state::with(|state| state.manager.is_primary()) && !ctx.is_paused() {
        ctx.ask_replicas();
    }
}

/// Subscribes to the sleeps of the server's loop. Call this when a decision must wait for
/// acknowledgements.
pub fn watch() {
    if !IS_WATCHING.swap(true, Relaxed) {
        ffi::before_sleep(Some(look));
        ffi::after(LINGER_MS, rest);
    }
}

/// Must not run within that callback: the server would go on using what this frees.
fn rest(_: &Ctx) {
    if state::with(|state| state.manager.awaits_acks()) {
        ffi::after(LINGER_MS, rest);
    } else {
        IS_WATCHING.store(false, Relaxed);
        ffi::before_sleep(None);
    }
}

fn look(ctx: &Ctx) {
    if !state::with(|state| state.manager.awaits_acks()) {
        return;
    }
    let mut replication = see(ctx);
    if state::with(|state| state.manager.stream_is(replication.offset)) {
        IS_ASKING.store(true, Relaxed);
    }
    // The server asserts that nothing is written while it is paused.
    if IS_ASKING.load(Relaxed) && !ctx.is_paused() {
        IS_ASKING.store(false, Relaxed);
        ctx.ask_replicas();
    }
    let now = state::now();
    let (turns, told) = state::with(|state| {
        let turns = state.manager.acked(&mut replication.acknowledged, now);
        (turns, state.manager.take_answers())
    });
    let is_news = !turns.is_empty() || !told.is_empty();
    answers::tell(ctx, told);
    for (id, owner) in turns {
        ctx.with_name(id.db, &id.key, |name| publish::turn(ctx, name, owner.as_bytes()));
    }
    if is_news {
        timers::settle();
    }
}
