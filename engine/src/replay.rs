//! Effects of a primary: on a replica, from the append-only file, and by hand.

use rlock_core::grammar::Access;
use rlock_core::manager::{Cause, KeyExpiry};
use rlock_core::snapshot::{Effect, Start};
use rlock_core::{Change, Event, Lock, Release};

use crate::carry_out::is_decided_here;
use crate::happening::Happening;
use crate::host::{Content, Host, KeyName, OpenKey};
use crate::planted::PlantedFault;
use crate::timers;
use crate::unit::{RequestError, announce, life_of, open, remove, set_ttl};

/// If a client sends an append-only file line by line, the line that renews a hold may still
/// follow: so a key is kept for this many milliseconds after its deadline.
const BY_HAND_MS: u64 = 60_000;

/// Makes the changes of an effect.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn effect<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    effect: &Effect<Vec<Change<'_>>>,
) -> Result<(), RequestError> {
    let is_primary = host.state(|state| state.manager.is_primary());
    let is_from_primary = host.is_from_primary();
    if !is_primary && !is_from_primary {
        return Err(RequestError::ReadOnly);
    }
    let now = host.now();
    let is_implausible = |change: &Change<'_>| match change {
        Change::Granted { token, .. } => token.is_implausible_at(now),
        _ => false,
    };
    if effect.changes.iter().any(is_implausible) && !is_from_primary {
        return Err(RequestError::Implausible);
    }
    let mut key = open(host, || host.open(name, Access::Writes));
    let (mut events, mut life) = (Vec::new(), None);
    match key.content() {
        Content::Other if effect.start == Start::Existing => return Err(RequestError::WrongType),
        Content::Lock(lock) if effect.start == Start::Existing => {
            let before = life_of(host, lock, name);
            make(host, lock, &effect.changes, &mut events);
            let after = life_of(host, lock, name);
            set_ttl(&mut key, after.after(before, Cause::of_changes(&effect.changes)));
            life = Some(after);
        }
        _ => {
            let mut lock = Lock::default();
            make(host, &mut lock, &effect.changes, &mut events);
            remove(&mut key);
            if !lock.is_free() {
                let begun = life_of(host, &lock, name);
                life = Some(begun).filter(|_| effect.start != Start::Rewritten);
                key.set(lock);
                life.into_iter().for_each(|life| set_ttl(&mut key, life.begin()));
            }
        }
    }
    if life.is_some_and(|life: KeyExpiry| life.has_ended(now.ms().get())) && is_decided_here(host) {
        key.expire_at(now.ms().get().saturating_add(BY_HAND_MS));
    }
    finish(host, name, key, &events);
    Ok(())
}

/// Applies an `RLOCK.RELEASE` from the primary or from the append-only file.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn release<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    ask: &Release<'_>,
) -> Result<(), RequestError> {
    if !host.is_from_primary() {
        return Err(RequestError::ReadOnly);
    }
    let mut key = open(host, || host.open(name, Access::Writes));
    let mut event = None;
    if let Content::Lock(lock) = key.content() {
        let before = life_of(host, lock, name);
        event = lock.replay_release(ask);
        let after = life_of(host, lock, name);
        set_ttl(&mut key, after.after(before, Cause::Other));
    }
    finish(host, name, key, event.as_slice());
    Ok(())
}

/// Propagates the effect, and schedules a sweep of the lock's waiters.
fn finish<H: Host>(host: &H, name: &H::Name<'_>, key: H::Key<'_>, events: &[Event]) {
    drop(key);
    host.replicate_as_it_came();
    // A server publishes what happens now. It does not publish what it reads from its own file,
    // nor, as a primary, what another node sends with a slot: that node publishes until the slot
    // has moved.
    let (is_primary, decides) =
        host.state(|state| (state.manager.is_primary(), state.manager.decides()));
    let was_told = host.is_loading() || is_primary && (!decides || host.is_from_primary());
    announce(host, name, if was_told { &[] } else { events });
    host.observe(Happening::Replayed(events));
    let db = host.db();
    host.state(|state| state.manager.was_replayed(db, name.bytes()));
    timers::settle(host);
}

fn make<H: Host>(host: &H, lock: &mut Lock, changes: &[Change<'_>], events: &mut Vec<Event>) {
    for change in changes {
        if let Change::Granted { token, .. } = change
            && !host.has_fault(PlantedFault::TokensUnseen)
        {
            host.state(|state| state.manager.saw(*token));
        }
        events.extend(lock.replay(change));
    }
}
