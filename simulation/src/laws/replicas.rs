//! Law: a replica that has everything its primary had is equal to it: values, and when they expire.

use rlock_core::EpochMs;

use super::{Broken, must};
use crate::keyspace::Slot;
use crate::machines::Machine;

/// While somebody waits, a primary lets a key live this many milliseconds longer. Replicas know of
/// no waiters.
const GRACE_MS: u64 = 1000;

/// Whether it has everything.
pub fn is_in_sync(node: usize, machines: &[Machine]) -> bool {
    let Some(link) = &machines[node].link else { return false };
    let primary = &machines[link.primary];
    let is_whole = link.sync.is_none() && link.queue.is_empty();
    is_whole
        && primary.is_up
        && primary.server.is_primary
        && primary.server.history == machines[node].server.history
}

/// Whether both have the same data.
pub fn same(node: usize, machines: &[Machine]) -> Result<(), Broken> {
    let Some(link) = &machines[node].link else { return Ok(()) };
    let (here, there) = (&machines[node].server, &machines[link.primary].server);
    let law = "a replica that has every effect is the same";
    let expires = |slot: &Slot| slot.expires_at.unwrap_or(u64::MAX);
    let mut theirs = there.keys.iter();
    for (db, key, slot) in here.keys.iter() {
        let other = theirs.next();
        let is_same = other.is_some_and(|(other_db, other_key, other)| {
            let (one, two) = (expires(slot), expires(other));
            let last = slot.lock().and_then(|lock| lock.latest_deadline()).map(EpochMs::get);
            let is_whole = last.is_some_and(|last| one.min(two).saturating_add(1) >= last);
            let is_alike = (db, key, &slot.value) == (other_db, other_key, &other.value);
            let is_near = one.abs_diff(two) <= GRACE_MS;
            is_alike && (one == two || is_whole && is_near)
        });
        must(is_same, law, || {
            format!("replica {node} has {key:?}: {slot:?}, its primary {other:?}")
        })?;
    }
    let rest = theirs.next();
    must(rest.is_none(), law, || format!("replica {node} lacks {rest:?}"))?;
    must(here.effect_events == there.effect_events, "a replica tells what its primary told", || {
        format!("replica {node} told {}, its primary {}", here.effect_events, there.effect_events)
    })
}
