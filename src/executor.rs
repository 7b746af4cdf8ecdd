//! The one road of a change: open the key, let the manager decide, save, tell the world.

use std::ffi::CString;

use libc::c_int;
use rlock_core::grammar::Access;
use rlock_core::manager::{At, Life, Ttl, Why};
use rlock_core::snapshot::{self, Effect, Start};
use rlock_core::{Change, Effects, Event, Input, Lock, Refusal, Release, Reply, text};

use crate::ffi::{self, Content, Ctx, Key, Name};
use crate::{answers, closing, metrics, publish, settings, state, timers};

/// What stops a request before the core is asked.
pub enum Fault {
    /// The key is something else than a lock.
    WrongType,
    /// This server is a replica.
    ReadOnly,
    /// A client brought a token that no server with a right clock issued.
    Implausible,
}

/// Lets the manager decide `input` about the lock at `name`, and carries out what it says.
///
/// # Errors
/// [`Fault`]; nothing changed.
pub fn decide<'a>(ctx: &Ctx, name: &Name<'_>, input: Input<'a>) -> Result<Reply, Fault> {
    if !state::with(|state| state.manager.is_primary()) {
        return Err(Fault::ReadOnly);
    }
    let effects = carry_out(ctx, ctx.selected_db(), name, input)?;
    let (next, is_closing) =
        state::with(|state| (state.manager.next_call(), state.manager.has_closing()));
    timers::set(next);
    if is_closing {
        closing::settle(closing::During::Command(ctx));
    }
    Ok(effects.reply)
}

/// Whether commands are requests here; else they say what was decided elsewhere, or before.
pub fn is_decided_here(ctx: &Ctx) -> bool {
    // In a cluster a primary may be given a slot by another one, with its effects.
    state::with(|state| state.manager.decides()) && !(ffi::is_cluster() && ctx.is_from_primary())
}

/// Opens a key for writing. What opening it expired is told first, with the key closed: a
/// subscriber may be another module that does something to it.
fn open<'c>(ctx: &'c Ctx, name: &Name<'_>) -> Key<'c> {
    let key = ctx.open(name, Access::Writes);
    if publish::is_quiet() {
        return key;
    }
    drop(key);
    publish::removed(ctx);
    ctx.open(name, Access::Writes)
}

/// Lets the manager decide about the lock at `name`, and carries out what it says, but for what it
/// wants to be asked next.
///
/// # Errors
/// The key is something else than a lock; nothing changed.
pub fn carry_out<'a>(
    ctx: &Ctx,
    db: c_int,
    name: &Name<'_>,
    input: Input<'a>,
) -> Result<Effects<'a>, Fault> {
    let mut key = open(ctx, name);
    let at = At { db, key: name.bytes(), now: state::now() };
    let mut effects = Effects::default();
    let start = match key.content() {
        Content::Other => return Err(Fault::WrongType),
        Content::Missing => {
            let mut lock = Lock::default();
            let (_, life) = apply(&mut lock, at, input, &mut effects);
            if !lock.is_free() {
                key.set(lock);
                set_ttl(&mut key, life.begin());
            }
            Start::Begins
        }
        Content::Lock(lock) => {
            let (before, after) = apply(lock, at, input, &mut effects);
            set_ttl(&mut key, after.after(before, Why::of(&input, &effects)));
            Start::GoesOn
        }
    };
    deny(ctx, at, name, &mut key, &mut effects);
    tell(ctx, name, key, start, &effects);
    for owner in &effects.turns {
        ctx.notify(&turn_event(owner.as_bytes()), name);
    }
    metrics::count(&effects, at.now);
    answers::tell(ctx, std::mem::take(&mut effects.wakes));
    Ok(effects)
}

/// Takes the grant back from whoever lost the right to it while it waited, before anybody is told
/// of it: the next in line has the lock.
fn deny(ctx: &Ctx, at: At<'_>, name: &Name<'_>, key: &mut Key<'_>, effects: &mut Effects<'_>) {
    let mut checked = 0;
    while let Some(wake) = effects.wakes.get(checked) {
        let place = checked;
        checked = checked.saturating_add(1);
        let waiter = wake.waiter;
        let parked = state::with(|state| {
            let parked = state.manager.parked(waiter)?;
            Some((parked.user.clone(), parked.owner.clone()))
        });
        let is_granted = matches!(wake.reply, Reply::Granted { .. });
        let Some((user, owner)) = parked.filter(|_| is_granted) else { continue };
        if ctx.may(&user, c"rlock.acquire", name, owner.as_bytes()) {
            continue;
        }
        if let Content::Lock(lock) = key.content() {
            let reply = effects.reply.clone();
            let (before, after) = apply(lock, at, Input::Deny(waiter), effects);
            effects.reply = reply;
            effects.is_request_enough = false;
            set_ttl(key, after.after(before, Why::Other));
        }
        if let Some(wake) = effects.wakes.get_mut(place) {
            wake.reply = Reply::Refused(Refusal::NotPermitted);
        }
    }
}

/// Lets the manager decide. Until when the key was to live, and is now.
fn apply<'a>(
    lock: &mut Lock,
    at: At<'_>,
    input: Input<'a>,
    effects: &mut Effects<'a>,
) -> (Life, Life) {
    let bounds = settings::bounds();
    state::with(|state| state.manager.decide(at, &bounds, lock, input, effects))
}

/// The event of a ticket's turn names its owner, printable whatever it contains.
fn turn_event(owner: &[u8]) -> CString {
    CString::new(format!("rlock.turn:{}", text::escaped(owner))).unwrap_or_default()
}

/// Makes the changes of an effect: the same on a replica, from the append-only file, and by hand.
///
/// # Errors
/// [`Fault`]; nothing changed.
pub fn replay(ctx: &Ctx, name: &Name<'_>, effect: &Effect<Vec<Change<'_>>>) -> Result<(), Fault> {
    let is_primary = state::with(|state| state.manager.is_primary());
    if !is_primary && !ctx.is_from_primary() {
        return Err(Fault::ReadOnly);
    }
    let now = state::now();
    let is_implausible = |change: &Change<'_>| match change {
        Change::Granted { token, .. } => token.is_implausible_at(now),
        _ => false,
    };
    if effect.changes.iter().any(is_implausible) && !ctx.is_from_primary() {
        return Err(Fault::Implausible);
    }
    let db = ctx.selected_db();
    let mut key = open(ctx, name);
    let (mut events, mut life) = (Vec::new(), None);
    match key.content() {
        Content::Other if effect.start == Start::GoesOn => return Err(Fault::WrongType),
        Content::Lock(lock) if effect.start == Start::GoesOn => {
            let before = life_of(lock, db, name);
            make(lock, &effect.changes, &mut events);
            let after = life_of(lock, db, name);
            set_ttl(&mut key, after.after(before, Why::of_changes(&effect.changes)));
            life = Some(after);
        }
        _ => {
            let mut lock = Lock::default();
            make(&mut lock, &effect.changes, &mut events);
            remove(&mut key);
            if !lock.is_free() {
                life = Some(life_of(&lock, db, name)).filter(|_| effect.start != Start::Rewritten);
                key.set(lock);
                life.into_iter().for_each(|life| set_ttl(&mut key, life.begin()));
            }
        }
    }
    if life.is_some_and(|life| life.has_ended(now.ms().get())) && is_decided_here(ctx) {
        key.expire_at(now.ms().get().saturating_add(BY_HAND_MS));
    }
    replayed(ctx, name, key, &events);
    Ok(())
}

/// Where a client sends an append-only file line by line, the line that renews a hold may still be
/// to come: a key whose deadline is past is left alone so long, in milliseconds.
const BY_HAND_MS: u64 = 60_000;

/// Propagates what was replayed, and has those swept who wait for the lock.
fn replayed(ctx: &Ctx, name: &Name<'_>, key: Key<'_>, events: &[Event]) {
    drop(key);
    ctx.replicate_as_it_came();
    // A server tells what happens now: not what it reads from its own file, nor, as a primary, what
    // is given to it with a slot by another node, which tells its own subscribers until it is all
    // there.
    let (is_primary, decides) =
        state::with(|state| (state.manager.is_primary(), state.manager.decides()));
    let was_told = ctx.is_loading() || is_primary && (!decides || ctx.is_from_primary());
    announce(ctx, name, if was_told { &[] } else { events });
    state::with(|state| state.manager.was_replayed(ctx.selected_db(), name.bytes()));
    timers::settle();
}

/// Makes the change of a release that its primary sent as it was asked for, or that stands so in
/// the append-only file.
///
/// # Errors
/// [`Fault`]; nothing changed.
pub fn replay_release(ctx: &Ctx, name: &Name<'_>, ask: &Release<'_>) -> Result<(), Fault> {
    if !ctx.is_from_primary() {
        return Err(Fault::ReadOnly);
    }
    let mut key = open(ctx, name);
    let mut event = None;
    if let Content::Lock(lock) = key.content() {
        let db = ctx.selected_db();
        let before = life_of(lock, db, name);
        event = lock.replay_release(ask);
        let after = life_of(lock, db, name);
        set_ttl(&mut key, after.after(before, Why::Other));
    }
    replayed(ctx, name, key, event.as_slice());
    Ok(())
}

/// Until when the key of a lock is to live.
fn life_of(lock: &Lock, db: c_int, name: &Name<'_>) -> Life {
    state::with(|state| state.manager.life(lock, db, name.bytes()))
}

fn make(lock: &mut Lock, changes: &[Change<'_>], events: &mut Vec<Event>) {
    for change in changes {
        if let Change::Granted { token, .. } = change {
            state::with(|state| state.manager.saw(*token));
        }
        events.extend(lock.replay(change));
    }
}

/// Does with a key what was decided about its life.
fn set_ttl(key: &mut Key<'_>, ttl: Ttl) {
    let expires_at = |key: &Key<'_>| u64::try_from(key.expires_at()).ok();
    match ttl {
        Ttl::Keep => {}
        Ttl::Delete => remove(key),
        Ttl::Set(at_ms) => key.expire_at(at_ms),
        Ttl::Move { from, to } if expires_at(key) == Some(from) => key.expire_at(to),
        Ttl::AtLeast(at_ms) if expires_at(key).is_some_and(|now| now < at_ms) => {
            key.expire_at(at_ms);
        }
        Ttl::Move { .. } | Ttl::AtLeast(_) => {}
    }
}

/// Deletes the key. The lock that leaves its name by it is the module's own doing, and was told
/// already; another one that leaves meanwhile is somebody else's.
fn remove(key: &mut Key<'_>) {
    let address = key.address();
    state::with(|state| state.removing = address);
    key.delete();
    state::with(|state| state.removing = 0);
}

/// Hands the changes to replicas and the append-only file, then to subscribers. The key is closed
/// before, because a subscriber may be another module that does something to it.
fn tell(ctx: &Ctx, name: &Name<'_>, key: Key<'_>, start: Start, effects: &Effects<'_>) {
    drop(key);
    if effects.changes.is_empty() {
        return;
    }
    if effects.is_request_enough {
        ctx.replicate_as_it_came();
    } else {
        let mut bytes = state::with(|state| std::mem::take(&mut state.effect));
        bytes.clear();
        snapshot::save_effect(start, &effects.changes, &mut bytes);
        ctx.replicate(name, &bytes);
        state::with(|state| state.effect = bytes);
    }
    announce(ctx, name, &effects.events);
}

fn announce(ctx: &Ctx, name: &Name<'_>, events: &[Event]) {
    ctx.signal_modified(name);
    for event in events {
        ctx.notify(event.name(), name);
    }
}
