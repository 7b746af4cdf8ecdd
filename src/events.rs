//! What the server reports to the module outside commands.

use libc::c_int;
use redis_module::ContextFlags;
use rlock_core::manager::At;
use rlock_core::{Lock, Token, snapshot};

use crate::ffi::{self, Change, Ctx, Upheaval, Values};
use crate::{acks, closing, parking, settings, state, timers};

/// The callbacks for values.
pub struct Locks;

impl Values for Locks {
    fn decode(bytes: &[u8], is_restore: bool) -> Option<Lock> {
        let lock = snapshot::load(bytes).ok()?;
        let now = state::now();
        if is_restore && lock.holds().any(|(_, _, hold)| hold.token.is_implausible_at(now)) {
            return None;
        }
        state::with(|state| lock.holds().for_each(|(_, _, hold)| state.manager.saw(hold.token)));
        Some(lock)
    }

    fn unlinked(db: c_int, key: &[u8], lock: &Lock) {
        // The module has already published its own removals: `executor::remove`.
        if lock.is_free() {
            return;
        }
        let at = At { db, key, now: state::now() };
        state::with(|state| state.manager.key_left(at, lock));
        timers::settle();
        closing::settle(closing::During::Callback);
    }

    fn lost(db: c_int, key: &[u8], is_evicted: bool) {
        state::with(|state| state.manager.key_lost(db, key, is_evicted));
    }

    fn save_aux() -> Option<Vec<u8>> {
        let now = state::now();
        let token = state::with(|state| state.manager.token_ahead(now))?;
        Some(token.get().to_be_bytes().to_vec())
    }

    fn load_aux(bytes: &[u8]) -> bool {
        let token = <[u8; 8]>::try_from(bytes).ok().and_then(|b| Token::new(u64::from_be_bytes(b)));
        token.is_some_and(|token| {
            state::with(|state| state.manager.saw(token));
            true
        })
    }
}

/// Subscribes to the server's events, and reads the current state.
pub fn register(ctx: &Ctx) {
    role_is(ctx.wrapped().get_flags().contains(ContextFlags::MASTER));
    ctx.watch_losses::<Locks>();
    ctx.watch_connections(parking::connection_ended);
    ctx.watch_databases(on_upheaval);
    ctx.watch_server(|change| match change {
        Change::Role { is_primary } => role_is(is_primary),
        // Later: the server is still executing CONFIG SET.
        Change::Settings => ffi::after(0, settings_are),
        // Later: the server is still adding the replica.
        Change::Replica { is_there: true } => ffi::after(0, acks::greet),
        Change::Replica { is_there: false } => acks::one_left(),
        Change::Loading { is_over } => loading_is(is_over),
    });
    settings_are(ctx);
}

fn settings_are(ctx: &Ctx) {
    settings::warn_of_server_settings(ctx);
    let (now, grace_ms) = (state::now(), settings::bounds().grace_ms);
    state::with(|state| state.manager.grace_is(grace_ms, now));
    timers::settle();
}

fn role_is(is_primary: bool) {
    let now = state::now();
    state::with(|state| state.manager.role_is(is_primary, now));
    timers::settle();
    closing::settle(closing::During::Callback);
}

/// Whole databases were emptied or swapped, so any lock may have changed.
fn on_upheaval(upheaval: Upheaval) {
    let now = state::now();
    state::with(|state| match upheaval {
        Upheaval::Flushed(db) => state.manager.flushed(db),
        Upheaval::Swapped(one, other) => state.manager.swapped(one, other, now),
    });
    timers::settle();
    closing::settle(closing::During::Callback);
}

fn loading_is(is_over: bool) {
    state::with(|state| {
        if is_over {
            state.manager.loading_ends();
        } else {
            state.manager.loading_begins();
        }
    });
    timers::settle();
}
