//! RLOCK: locks as native commands of Redis and Valkey. This crate is the server module: the host
//! on which `rlock_engine` carries out what `rlock_core` decides.

pub mod closing;
pub mod commands;
pub mod connection;
pub mod disk;
pub mod events;
pub mod ffi;
pub mod host;
pub mod invocation;
pub mod metrics;
pub mod servers;
pub mod settings;
pub mod show;
pub mod state;
pub mod timers;
pub mod tokens;

use ffi::Ctx;
use redis_module::raw::ModuleOptions;
use redis_module::{apierror, raw}; // `api!` looks for them here

/// Shown by `MODULE LIST`: major * 10000 + minor * 100 + patch.
const VERSION: libc::c_int = 300;

/// Supports `CLUSTER MIGRATESLOTS` of Valkey 9: a lock is one key, its effects name no other, and
/// the target replays them as a replica does.
const HANDLE_ATOMIC_SLOT_MIGRATION: libc::c_int = 1 << 5;

/// Loads the module into the server.
fn load(ctx: &Ctx, arguments: &[&[u8]]) -> Result<(), String> {
    settings::read(arguments)?;
    // A damaged snapshot is an error and does not end the server; a diskless replica may serve
    // while it loads; and only real changes of a lock affect WATCH and client-side caches.
    let mut options = ModuleOptions::HANDLE_IO_ERRORS
        | ModuleOptions::HANDLE_REPL_ASYNC_LOAD
        | ModuleOptions::NO_IMPLICIT_SIGNAL_MODIFIED;
    // Only Valkey defines this bit: on other servers, it may get another meaning.
    if ffi::is_valkey() {
        options |= ModuleOptions::from_bits_retain(HANDLE_ATOMIC_SLOT_MIGRATION);
    }
    ctx.wrapped().set_module_options(options);
    ctx.register_type::<events::LockValues>()?;
    commands::register(ctx)?;
    settings::register(ctx)?;
    ctx.answer_info(metrics::fields);
    timers::check()?;
    events::register(ctx);
    tokens::register(ctx);
    servers::warn(ctx);
    Ok(())
}
