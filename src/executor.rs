//! The one road of a change: open the key, let the core decide, save, tell the world.

use rlock_core::grammar::Access;
use rlock_core::snapshot::{self, Effect};
use rlock_core::{Change, Effects, Event, Input, Lock, Moment, Reply};

use crate::ffi::{Content, Ctx, Key, Name};
use crate::{metrics, publish, settings, state};

/// What stops a request before the core is asked.
pub enum Fault {
    /// The key is something else than a lock.
    WrongType,
    /// This server is a replica.
    ReadOnly,
}

/// Lets the core decide `input` about the lock at `name`, and carries out what it says.
///
/// # Errors
/// [`Fault`]; nothing changed.
pub fn decide<'a>(ctx: &Ctx, name: &Name<'_>, input: Input<'a>) -> Result<Reply, Fault> {
    if !state::with(|state| state.is_primary) {
        return Err(Fault::ReadOnly);
    }
    let mut key = ctx.open(name, Access::Writes);
    // Opening deletes an expired key: that is told before what follows it.
    publish::gone(ctx);
    let effects = match key.content() {
        Content::Other => return Err(Fault::WrongType),
        Content::Missing => {
            let mut lock = Lock::default();
            let effects = apply(&mut lock, input);
            if !lock.is_free() {
                begin(&mut key, lock);
            }
            tell(ctx, name, key, true, &effects);
            effects
        }
        Content::Lock(lock) => {
            let before = lock.latest_deadline();
            let effects = apply(lock, input);
            let after = lock.latest_deadline();
            if before != after {
                settle(&mut key, after.map(|deadline| deadline.get()));
            }
            tell(ctx, name, key, false, &effects);
            effects
        }
    };
    metrics::count(&effects);
    Ok(effects.reply)
}

/// Makes the changes of an effect: the same on a replica, from the append-only file, and by hand.
///
/// # Errors
/// [`Fault`]; nothing changed.
pub fn replay(ctx: &Ctx, name: &Name<'_>, effect: &Effect<Vec<Change<'_>>>) -> Result<(), Fault> {
    if !state::with(|state| state.is_primary) && !ctx.is_from_primary() {
        return Err(Fault::ReadOnly);
    }
    let mut key = ctx.open(name, Access::Writes);
    let mut events = Vec::new();
    match key.content() {
        Content::Other if !effect.begins => return Err(Fault::WrongType),
        Content::Lock(lock) if !effect.begins => {
            let before = lock.latest_deadline();
            make(lock, &effect.changes, &mut events);
            let after = lock.latest_deadline();
            if before != after {
                settle(&mut key, after.map(|deadline| deadline.get()));
            }
        }
        _ => {
            let mut lock = Lock::default();
            make(&mut lock, &effect.changes, &mut events);
            if lock.is_free() {
                settle(&mut key, None);
            } else {
                begin(&mut key, lock);
            }
        }
    }
    drop(key);
    ctx.replicate_as_it_came();
    announce(ctx, name, &events);
    Ok(())
}

fn apply<'a>(lock: &mut Lock, input: Input<'a>) -> Effects<'a> {
    let (now, max_depth) = (state::now(), settings::limits().max_depth);
    state::with(|state| {
        lock.apply(&mut Moment { now, tokens: &mut state.tokens, max_depth }, input)
    })
}

fn make(lock: &mut Lock, changes: &[Change<'_>], events: &mut Vec<Event>) {
    for change in changes {
        if let Change::Granted { token, .. } = change {
            state::with(|state| state.tokens.saw(*token));
        }
        events.extend(lock.replay(change));
    }
}

/// A lock begins at a key.
fn begin(key: &mut Key<'_>, lock: Lock) {
    let deadline = lock.latest_deadline();
    removing(|| key.set(lock));
    if let Some(deadline) = deadline {
        key.expire_at(deadline.get());
    }
}

/// The key lives as long as the latest hold in it.
fn settle(key: &mut Key<'_>, latest_deadline_ms: Option<u64>) {
    match latest_deadline_ms {
        Some(at_ms) => key.expire_at(at_ms),
        None => removing(|| key.delete()),
    }
}

/// Whatever leaves its name meanwhile is the module's own doing, and was told already.
fn removing(work: impl FnOnce()) {
    state::with(|state| state.is_removing = true);
    work();
    state::with(|state| state.is_removing = false);
}

/// Hands the changes to replicas and the append-only file, then to subscribers. The key is closed before,
/// because a subscriber may be another module that does something to it.
fn tell(ctx: &Ctx, name: &Name<'_>, key: Key<'_>, begins: bool, effects: &Effects<'_>) {
    drop(key);
    if effects.changes.is_empty() {
        return;
    }
    let mut bytes = state::with(|state| std::mem::take(&mut state.effect));
    bytes.clear();
    snapshot::save_effect(begins, &effects.changes, &mut bytes);
    ctx.replicate(name, &bytes);
    state::with(|state| state.effect = bytes);
    announce(ctx, name, &effects.events);
}

fn announce(ctx: &Ctx, name: &Name<'_>, events: &[Event]) {
    ctx.signal_modified(name);
    for event in events {
        ctx.notify(event.name(), name);
    }
}
