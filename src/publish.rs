//! Unlock messages for what happens to a lock outside of RLOCK's own commands: something takes its
//! key from its name. Told in the next iteration of the server's loop, or before the next word
//! about any lock.

use rlock_core::Event;

use crate::ffi::{Ctx, Gate};
use crate::gate;
use crate::metrics::{self, Metric};
use crate::state;

/// Nothing is to be published.
pub fn is_quiet() -> bool {
    state::with(|state| state.manager.is_quiet())
}

/// Publishes what left its name; not where its slot moves, and the lock with it.
pub fn removed(ctx: &Ctx) {
    if is_quiet() {
        return;
    }
    let now = state::now();
    let (removed, is_primary) =
        state::with(|state| (state.manager.take_removed(now), state.manager.is_primary()));
    for lock in removed {
        ctx.with_name(lock.db, &lock.key, |name| {
            if !crate::ffi::is_cluster() || !is_primary || gate::of(ctx, name) != Gate::Elsewhere {
                ctx.notify(lock.event.name(), name);
            }
        });
        if is_primary {
            lock.held_us.iter().for_each(|us| metrics::count_hold(*us));
        }
        match lock.event {
            Event::Expired if is_primary => metrics::add(Metric::Expired, lock.holds),
            Event::Evicted => metrics::add(Metric::Evicted, 1),
            _ => {}
        }
    }
}
