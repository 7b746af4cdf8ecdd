//! Events for keys that something other than RLOCK's own commands removed. They are published in
//! the next loop iteration, or before the next event of any lock.

use std::ffi::CString;

use rlock_core::{Event, text};

use crate::ffi::{Ctx, Gate, Name};
use crate::gate;
use crate::metrics::{self, Metric};
use crate::state;

/// Nothing is to be published.
pub fn is_quiet() -> bool {
    state::with(|state| state.manager.is_quiet())
}

/// Publishes removed locks, except those that move with their slot.
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

/// Publishes that a ticket has its turn: the event has its owner's name, escaped.
pub fn turn(ctx: &Ctx, name: &Name<'_>, owner: &[u8]) {
    let event = format!("rlock.turn:{}", text::escaped(owner));
    ctx.notify(&CString::new(event).unwrap_or_default(), name);
}
