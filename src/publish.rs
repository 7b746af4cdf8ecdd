//! Unlock messages for what happens to a lock outside of RLOCK's own commands: something takes its
//! key from its name. Told in the next turn of the server's loop, or before the next word about any
//! lock.

use libc::c_int;
use rlock_core::{Event, Lock, Now};

use crate::alarm;
use crate::ffi::{Ctx, Slot};
use crate::metrics::{self, Metric};
use crate::state;

/// How far a replica's clock may be behind its primary's, less the way of a deletion, to call a
/// lock expired that is: in microseconds.
const BEHIND_US: u64 = 1000;

/// A lock that left its name.
pub struct Gone {
    db: c_int,
    key: Box<[u8]>,
    event: Event,
    holds: usize,
}

/// A lock leaves its name; by what, the server says afterwards or not at all. On a replica the
/// primary's clock decided, and all that arrives is a deletion: a lock whose leases are over has
/// expired. Its own clock may be a little behind.
pub fn left(db: c_int, key: &[u8], lock: &Lock) {
    let now = Now::from_us(state::now().us().saturating_add(BEHIND_US));
    let is_told = state::with(|state| {
        if state.removing == std::ptr::from_ref(lock).addr() {
            return false;
        }
        let is_over = !state.is_primary && lock.mode_at(now).is_none();
        let event = if is_over { Event::Expired } else { Event::Removed };
        state.gone.push(Gone { db, key: key.into(), event, holds: lock.hold_count() });
        state.memories.mark_changed(db, key);
        true
    });
    if is_told {
        alarm::look_soon();
    }
}

/// The server says why a key, of whatever type, left its name just now.
pub fn lost(db: c_int, key: &[u8], is_evicted: bool) {
    state::with(|state| {
        let newest = state.gone.last_mut().filter(|gone| gone.db == db && *gone.key == *key);
        if let Some(gone) = newest {
            gone.event = if is_evicted { Event::Evicted } else { Event::Expired };
        }
    });
}

/// Nothing is to be published.
pub fn is_quiet() -> bool {
    state::with(|state| state.gone.is_empty())
}

/// Publishes what left its name; not where its slot moves, and the lock with it.
pub fn gone(ctx: &Ctx) {
    if is_quiet() {
        return;
    }
    let (gone, is_primary) =
        state::with(|state| (std::mem::take(&mut state.gone), state.is_primary));
    for lock in gone {
        ctx.with_name(lock.db, &lock.key, |name| {
            if !is_primary || ctx.slot_of(name) != Slot::Elsewhere {
                ctx.notify(lock.event.name(), name);
            }
        });
        match lock.event {
            Event::Expired if is_primary => metrics::add(Metric::Expired, lock.holds),
            Event::Evicted => metrics::add(Metric::Evicted, 1),
            _ => {}
        }
    }
}
