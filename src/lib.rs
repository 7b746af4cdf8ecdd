//! RLOCK: locks as native commands of Redis and Valkey. This crate is the hands: it carries out
//! what `rlock_core` decides, and tells replicas, subscribers and callers.

pub mod answers;
pub mod call;
pub mod closing;
pub mod commands;
pub mod events;
pub mod executor;
pub mod ffi;
pub mod gate;
pub mod metrics;
pub mod parking;
pub mod publish;
mod reply;
pub mod settings;
pub mod show;
pub mod state;
pub mod sweep;
pub mod timers;

use ffi::Ctx;
use redis_module::raw::ModuleOptions;
use redis_module::{apierror, raw}; // `api!` looks for them here

/// Shown by `MODULE LIST`: major * 10000 + minor * 100 + patch.
const VERSION: libc::c_int = 100;

/// Valkey 9 moves slots with their locks by `CLUSTER MIGRATESLOTS`: a lock is one key, its effects
/// name no other, and what the target plays back it plays back as a replica does.
const HANDLE_ATOMIC_SLOT_MIGRATION: libc::c_int = 1 << 5;

/// Everything that happens when the server loads the module.
fn load(ctx: &Ctx, arguments: &[&[u8]]) -> Result<(), String> {
    settings::read(arguments)?;
    // A damaged snapshot is an error and not the end of the server; a diskless replica may keep
    // serving while it loads; and only what changed counts as changed (WATCH, client-side
    // caches).
    let mut options = ModuleOptions::HANDLE_IO_ERRORS
        | ModuleOptions::HANDLE_REPL_ASYNC_LOAD
        | ModuleOptions::NO_IMPLICIT_SIGNAL_MODIFIED;
    // The bit is Valkey's: elsewhere it may come to mean something else.
    if ffi::is_valkey() {
        options |= ModuleOptions::from_bits_retain(HANDLE_ATOMIC_SLOT_MIGRATION);
    }
    ctx.wrapped().set_module_options(options);
    ctx.register_type::<events::Locks>()?;
    commands::register(ctx)?;
    settings::register(ctx)?;
    metrics::register(ctx);
    timers::begin(sweep::sweep)?;
    events::register(ctx);
    settings::warn_of_unknown_server(ctx);
    Ok(())
}
