//! RLOCK: locks as native commands of Redis and Valkey. This crate is the hands: it carries out
//! what `rlock_core` decides, and tells replicas, subscribers and callers.

pub mod alarm;
pub mod commands;
pub mod describe;
pub mod events;
pub mod executor;
pub mod ffi;
pub mod memories;
pub mod metrics;
pub mod parking;
pub mod publish;
mod reply;
pub mod settings;
pub mod show;
pub mod state;

use ffi::Ctx;
use redis_module::raw::ModuleOptions;
use redis_module::{apierror, raw}; // `api!` looks for them here

/// Shown by `MODULE LIST`: major * 10000 + minor * 100 + patch.
const VERSION: libc::c_int = 100;

/// Everything that happens when the server loads the module.
fn load(ctx: &Ctx, arguments: &[&[u8]]) -> Result<(), String> {
    settings::read(arguments)?;
    // A damaged snapshot is an error and not the end of the server; a diskless replica may keep
    // serving while it loads; and only what changed counts as changed (WATCH, client-side
    // caches).
    ctx.wrapped().set_module_options(
        ModuleOptions::HANDLE_IO_ERRORS
            | ModuleOptions::HANDLE_REPL_ASYNC_LOAD
            | ModuleOptions::NO_IMPLICIT_SIGNAL_MODIFIED,
    );
    ctx.register_type::<events::Locks>()?;
    commands::register(ctx)?;
    settings::register(ctx)?;
    metrics::register(ctx);
    events::register(ctx);
    Ok(())
}
