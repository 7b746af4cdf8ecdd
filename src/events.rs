//! What the server tells the module outside of commands.

use libc::{c_int, c_void};
use redis_module::{ContextFlags, raw};
use rlock_core::manager::At;
use rlock_core::{Lock, Token, snapshot};

use crate::ffi::{self, Ctx, Upheaval, Values};
use crate::{closing, parking, settings, state, timers};

/// The module's values, as the server asks for them.
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
        // The module's own doing was told already.
        if state::with(|state| state.removing == std::ptr::from_ref(lock).addr()) {
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

/// Subscribes to what the module must know, and learns what it is now.
pub fn register(ctx: &Ctx) {
    role_is(ctx.wrapped().get_flags().contains(ContextFlags::MASTER));
    ctx.watch_losses::<Locks>();
    ctx.watch_connections(parking::connection_ended);
    ctx.watch_databases(on_upheaval);
    for (id, callback) in [
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, on_role as Callback),
        (raw::REDISMODULE_EVENT_CONFIG, on_config as Callback),
        (raw::REDISMODULE_EVENT_LOADING, on_loading as Callback),
    ] {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        raw::subscribe_to_server_event(ctx.raw(), event, Some(callback));
    }
    settings::warn_of_server_settings(ctx);
}

type Callback =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

extern "C" fn on_role(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    role: u64,
    _: *mut c_void,
) {
    role_is(role == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER);
}

fn role_is(is_primary: bool) {
    let now = state::now();
    state::with(|state| state.manager.role_is(is_primary, now));
    timers::settle();
    closing::settle(closing::During::Callback);
}

/// Whole databases were emptied or swapped: any lock may be another one now.
fn on_upheaval(upheaval: Upheaval) {
    state::with(|state| match upheaval {
        Upheaval::Flushed(db) => state.manager.flushed(db),
        Upheaval::Swapped(one, other) => state.manager.swapped(one, other),
    });
    timers::settle();
    closing::settle(closing::During::Callback);
}

extern "C" fn on_loading(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    stage: u64,
    _: *mut c_void,
) {
    let is_over = stage == raw::REDISMODULE_SUBEVENT_LOADING_ENDED
        || stage == raw::REDISMODULE_SUBEVENT_LOADING_FAILED;
    state::with(|state| {
        if is_over {
            state.manager.loading_ends();
        } else {
            state.manager.loading_begins();
        }
    });
    timers::settle();
}

extern "C" fn on_config(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    // Not from here: the server is in the midst of CONFIG SET.
    ffi::after(0, settings::warn_of_server_settings);
}
