//! What the server reports to the module outside commands.

use libc::c_int;
use redis_module::ContextFlags;
use rlock_core::{ClientId, Lock, Token, snapshot};
use rlock_engine::{acks, events};

use crate::ffi::{self, Ctx, DatabaseChange, ServerChange, Values};
use crate::{disk, settings, state};

/// The callbacks for values.
pub struct LockValues;

impl Values for LockValues {
    fn decode(
        bytes: &[u8],
        at: Option<(c_int, &[u8])>,
        is_of_a_client: impl Fn() -> bool,
    ) -> Option<Lock> {
        let lock = snapshot::load(bytes).ok()?;
        let now = state::now();
        // A primary issued the token of a value that another node migrates: no clock is reason to
        // refuse it.
        let is_ahead = lock.holds().any(|(_, _, hold)| hold.token.is_implausible_at(now));
        if is_ahead && is_of_a_client() {
            return None;
        }
        events::lock_loaded(&Ctx::detached(), at, &lock);
        Some(lock)
    }

    fn unlinked(db: c_int, key: &[u8], lock: &Lock, is_served: bool) {
        events::key_left(&Ctx::detached(), db, key, lock);
        if !is_served {
            // The node that serves the slot has published the reason.
            state::with(|state| state.manager.key_is_not_ours(db, key));
        }
    }

    fn lost(db: c_int, key: &[u8], is_evicted: bool) {
        events::key_lost(&Ctx::detached(), db, key, is_evicted);
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
    let is_primary = ctx.wrapped().get_flags().contains(ContextFlags::MASTER);
    events::set_role(&Ctx::detached(), is_primary);
    ctx.watch_losses::<LockValues>();
    ctx.watch_connections(|client| {
        events::connection_ended(&Ctx::detached(), ClientId::from(client));
    });
    // Whole databases were emptied or swapped, so any lock may have changed.
    ctx.watch_databases(|upheaval| match upheaval {
        DatabaseChange::Flushed(db) => events::flushed(&Ctx::detached(), db),
        DatabaseChange::Swapped(one, other) => events::swapped(&Ctx::detached(), one, other),
    });
    ctx.watch_server(|change| match change {
        ServerChange::Role { is_primary } => events::set_role(&Ctx::detached(), is_primary),
        // Later: the server is still executing CONFIG SET.
        ServerChange::Settings => ffi::after(0, on_settings),
        ServerChange::Synced => disk::begin(),
        ServerChange::SlotsMoved => events::slots_moved(&Ctx::detached()),
        ServerChange::Replica { is_there: true } => acks::replica_came(&Ctx::detached()),
        ServerChange::Replica { is_there: false } => acks::replica_left(&Ctx::detached()),
        ServerChange::Loading { is_over } => events::loading_is(&Ctx::detached(), is_over),
    });
    disk::on_settings(ctx, true);
    on_settings(ctx);
}

fn on_settings(ctx: &Ctx) {
    disk::on_settings(ctx, false);
    settings::warn_of_server_settings(ctx);
    events::settings_are(ctx);
}
