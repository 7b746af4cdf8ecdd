//! Effects of a primary, which arrive on a replica, from the append-only file, or from a client.

use std::slice;

use rlock_core::grammar::Access;
use rlock_core::manager::{Cause, KeyExpiry};
use rlock_core::snapshot::{Effect, Start};
use rlock_core::{Change, Event, Lock, Now, Release};

use crate::carry_out::is_decided_here;
use crate::happening::Happening;
use crate::host::{Content, Host, KeyName, OpenKey};
use crate::planted::PlantedFault;
use crate::timers;
use crate::unit::{RequestError, announce, life_of, open, remove, set_ttl};
use crate::unsaved::{self, Unsaved};

/// If a client sends an append-only file line by line, the renewal of a hold may come in a later
/// line: so a key is kept for this many milliseconds after its deadline.
const BY_HAND_MS: u64 = 60_000;

/// Applies the changes of one step: one effect for each of these keys, in key order. All of them
/// are applied before the first is published.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn effects<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    effects: &[Effect<Vec<Change<'_>>>],
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
    let mut changes = effects.iter().flat_map(|effect| &effect.changes);
    if !is_from_primary && changes.any(is_implausible) {
        return Err(RequestError::Implausible);
    }
    let open_one = |name| Unsaved::from(host.open(name, Access::Writes));
    let mut keys: Vec<Unsaved<H::Key<'_>>> = open(host, || names.iter().map(open_one).collect());
    let has_other_type = |(key, effect): (&mut Unsaved<H::Key<'_>>, &Effect<_>)| {
        effect.start == Start::Existing && matches!(key.content(), Content::Other)
    };
    if keys.iter_mut().zip(effects).any(has_other_type) {
        return Err(RequestError::WrongType);
    }
    let each = names.iter().zip(&mut keys).zip(effects);
    let events: Vec<Vec<Event>> =
        each.map(|((name, key), effect)| at_one(host, name, key, effect, now)).collect();
    host.replicate_as_it_came();
    unsaved::save(keys);
    finish(host, names, &events);
    Ok(())
}

/// Applies the changes at one key, and returns the events. An effect that begins a new lock
/// replaces any value at the key.
fn at_one<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    key: &mut impl OpenKey,
    effect: &Effect<Vec<Change<'_>>>,
    now: Now,
) -> Vec<Event> {
    let (mut events, mut life) = (Vec::new(), None);
    match key.content() {
        Content::Lock(lock) if effect.start == Start::Existing => {
            let before = life_of(host, lock, name);
            make(host, lock, &effect.changes, &mut events);
            is_at(host, name, lock);
            let after = life_of(host, lock, name);
            set_ttl(key, after.after(before, Cause::of_changes(&effect.changes)));
            life = Some(after);
        }
        _ => {
            let mut lock = Lock::default();
            make(host, &mut lock, &effect.changes, &mut events);
            remove(key);
            is_at(host, name, &lock);
            if !lock.is_free() {
                let begun = life_of(host, &lock, name);
                life = Some(begun).filter(|_| effect.start != Start::Rewritten);
                key.set(lock);
                life.into_iter().for_each(|life| set_ttl(key, life.begin()));
            }
        }
    }
    if life.is_some_and(|life: KeyExpiry| life.has_ended(now.ms().get())) && is_decided_here(host) {
        key.expire_at(now.ms().get().saturating_add(BY_HAND_MS));
    }
    events
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
    let mut events = Vec::new();
    if let Content::Lock(lock) = key.content() {
        let before = life_of(host, lock, name);
        events.extend(lock.replay_release(ask));
        is_at(host, name, lock);
        let after = life_of(host, lock, name);
        set_ttl(&mut key, after.after(before, Cause::Other));
    }
    drop(key);
    host.replicate_as_it_came();
    finish(host, slice::from_ref(name), &[events]);
    Ok(())
}

/// Publishes the events of each lock, and schedules a sweep of its waiters. The command has been
/// propagated, and every key is closed.
fn finish<H: Host>(host: &H, names: &[H::Name<'_>], events: &[Vec<Event>]) {
    // A server publishes current events. It publishes neither what it reads from its own file nor,
    // as a primary, what another node sends while it migrates a slot: that node publishes until the
    // slot has moved.
    let (is_primary, decides) =
        host.state(|state| (state.manager.is_primary(), state.manager.decides()));
    let was_told = host.is_loading() || is_primary && (!decides || host.is_from_primary());
    let db = host.db();
    for (name, events) in names.iter().zip(events) {
        announce(host, name, if was_told { &[] } else { events });
        host.observe(Happening::Replayed(events));
        host.state(|state| state.manager.was_replayed(db, name.bytes()));
    }
    timers::settle(host);
}

fn is_at<H: Host>(host: &H, name: &H::Name<'_>, lock: &Lock) {
    let db = host.db();
    host.state(|state| state.manager.is_at(db, name.bytes(), lock));
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
