//! What the server tells the module outside of commands.

use libc::{c_int, c_void};
use redis_module::{ContextFlags, raw};
use rlock_core::{Lock, snapshot};

use crate::ffi::{self, Ctx, Values};
use crate::{alarm, executor, parking, publish, settings, state};

/// The module's values, as the server asks for them.
pub struct Locks;

impl Values for Locks {
    fn decode(bytes: &[u8], is_restore: bool) -> Option<Lock> {
        let lock = snapshot::load(bytes).ok()?;
        let now = state::now();
        if is_restore && lock.holds().any(|(_, _, hold)| hold.token.is_implausible_at(now)) {
            return None;
        }
        state::with(|state| lock.holds().for_each(|(_, _, hold)| state.tokens.saw(hold.token)));
        Some(lock)
    }

    fn unlinked(db: c_int, key: &[u8], lock: &Lock) {
        publish::left(db, key, lock);
    }

    fn lost(db: c_int, key: &[u8], is_evicted: bool) {
        publish::lost(db, key, is_evicted);
    }
}

/// Subscribes to what the module must know, and learns what it is now.
pub fn register(ctx: &Ctx) {
    role_is(ctx.wrapped().get_flags().contains(ContextFlags::MASTER));
    ctx.watch_losses::<Locks>();
    ctx.watch_connections(parking::connection_ended);
    for (id, callback) in [
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, on_role as Callback),
        (raw::REDISMODULE_EVENT_CONFIG, on_config as Callback),
        (raw::REDISMODULE_EVENT_FLUSHDB, on_upheaval as Callback),
        (raw::REDISMODULE_EVENT_SWAPDB, on_upheaval as Callback),
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
    let is_primary = role == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
    role_is(is_primary);
    if !is_primary {
        // Sessions are this primary's own: their connections are closed where it is one no more.
        executor::close_soon(state::with(|state| state.memories.clear()));
    }
}

/// Whole databases were emptied, swapped or read anew: any lock may be another one now.
extern "C" fn on_upheaval(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    if state::with(|state| state.memories.mark_all()) {
        alarm::look_soon();
    }
}

extern "C" fn on_loading(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    stage: u64,
    data: *mut c_void,
) {
    let is_over = stage == raw::REDISMODULE_SUBEVENT_LOADING_ENDED
        || stage == raw::REDISMODULE_SUBEVENT_LOADING_FAILED;
    state::with(|state| state.is_loading = !is_over);
    on_upheaval(ctx, event, stage, data);
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

/// A new primary issues no token that the old one, with another clock, may have issued.
fn role_is(is_primary: bool) {
    let now = state::now();
    state::with(|state| {
        if is_primary && !state.is_primary {
            state.tokens.begin(now);
        }
        state.is_primary = is_primary;
    });
}
