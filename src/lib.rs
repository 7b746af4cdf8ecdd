//! RLOCK: locks as native commands of Redis and Valkey. This crate is the hands: it carries out what
//! `rlock_core` decides, and tells replicas, subscribers and callers.

pub mod commands;
pub mod describe;
pub mod events;
pub mod executor;
pub mod ffi;
pub mod metrics;
pub mod publish;
mod reply;
pub mod settings;
pub mod state;

use ffi::Ctx;
use redis_module::{apierror, raw}; // `api!` looks for them here

/// Shown by `MODULE LIST`: major * 10000 + minor * 100 + patch.
const VERSION: libc::c_int = 100;

/// Everything that happens when the server loads the module.
fn load(ctx: &Ctx, arguments: &[&[u8]]) -> Result<(), String> {
    settings::read(arguments)?;
    ctx.register_type::<events::Locks>()?;
    commands::register(ctx)?;
    settings::register(ctx)?;
    metrics::register(ctx);
    events::register(ctx);
    Ok(())
}
