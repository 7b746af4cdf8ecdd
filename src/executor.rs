//! The only path of a change: open the key, let the manager decide, save, propagate, publish.

use std::slice;

use libc::c_int;
use rlock_core::grammar::Access;
use rlock_core::manager::{At, Life, Ttl, Why};
use rlock_core::snapshot::{self, Effect, Start};
use rlock_core::{
    Acquire, Change, Effects, Event, Input, Lock, Patience, Plain, Refusal, Release, Reply,
    WaiterId, Wake,
};

use crate::ffi::{self, Content, Ctx, Key, Name};
use crate::{acks, answers, closing, metrics, publish, settings, state, timers};

/// What refuses a request before the core decides.
pub enum Fault {
    /// The key is not a lock.
    WrongType,
    /// This server is a replica.
    ReadOnly,
    /// A client brought a token that no server with a correct clock issues.
    Implausible,
}

/// Lets the manager decide `input` for the lock at `name`, and carries out the effects.
///
/// # Errors
/// [`Fault`]; nothing changed.
pub fn decide<'a>(ctx: &Ctx, name: &Name<'_>, input: Input<'a>) -> Result<Reply, Fault> {
    if !state::with(|state| state.manager.is_primary()) {
        return Err(Fault::ReadOnly);
    }
    let mut key = open(ctx, name);
    let at = At { db: ctx.selected_db(), key: name.bytes(), now: state::now() };
    if let Some((start, plain)) = plainly(at, &mut key, &input) {
        let Plain { change, event, reply, is_request_enough } = plain;
        let changes = slice::from_ref(&change);
        tell(ctx, name, key, (start, changes, is_request_enough), event.as_slice());
        metrics::count(changes, event.as_slice(), &reply, None, at.now);
        return Ok(reply);
    }
    if let Some(reply) = must_wait(at, &mut key, &input) {
        return Ok(reply);
    }
    let mut effects = Effects::default();
    carry_out(ctx, at, name, key, input, &mut effects)?;
    let (next, is_watching) =
        state::with(|state| (state.manager.next_call(), state.manager.watches_commands()));
    timers::set(next);
    if is_watching {
        closing::watch();
        closing::settle(closing::During::Command(ctx));
    }
    Ok(effects.reply)
}

/// Whether commands are requests here; otherwise commands being loaded or replicated are replayed,
/// not decided.
pub fn is_decided_here(ctx: &Ctx) -> bool {
    // In a cluster another primary may hand over a slot, with its effects.
    state::with(|state| state.manager.decides()) && !(ffi::is_cluster() && ctx.is_from_primary())
}

/// Opens a key for writing. Publishes expiries caused by opening it first, after closing it: a
/// subscriber may be another module that changes the key.
fn open<'c>(ctx: &'c Ctx, name: &Name<'_>) -> Key<'c> {
    let key = ctx.open(name, Access::Writes);
    if publish::is_quiet() {
        return key;
    }
    drop(key);
    publish::removed(ctx);
    ctx.open(name, Access::Writes)
}

/// Lets the manager decide what the server does by itself to the lock at `name`, and carries out
/// the effects, but does not set the timers.
///
/// # Errors
/// The key is not a lock; nothing changed.
pub fn sweep(ctx: &Ctx, db: c_int, name: &Name<'_>, input: Input<'_>) -> Result<(), Fault> {
    let key = open(ctx, name);
    let at = At { db, key: name.bytes(), now: state::now() };
    carry_out(ctx, at, name, key, input, &mut Effects::default())
}

/// Does what a plain request asks for. The timers stay as they are: nothing is remembered of it.
fn plainly<'a>(at: At<'_>, key: &mut Key<'_>, input: &Input<'a>) -> Option<(Start, Plain<'a>)> {
    let bounds = settings::bounds();
    let decide =
        |lock: &mut Lock| state::with(|state| state.manager.plainly(at, &bounds, lock, input));
    match key.content() {
        Content::Other => None,
        Content::Missing => {
            let mut lock = Lock::default();
            let plain = decide(&mut lock)?;
            let life = Life::of(&lock, None);
            key.set(lock);
            set_ttl(key, life.begin());
            Some((Start::Begins, plain))
        }
        Content::Lock(lock) => {
            let plain = decide(lock)?;
            remove(key);
            Some((Start::GoesOn, plain))
        }
    }
}

/// The reply to a request that changes nothing before it is parked.
fn must_wait(at: At<'_>, key: &mut Key<'_>, input: &Input<'_>) -> Option<Reply> {
    // Before the key is looked at, which the server charges for.
    let Input::Acquire(ask @ Acquire { patience: Patience::Block, .. }) = input else {
        return None;
    };
    let Content::Lock(lock) = key.content() else { return None };
    let bounds = settings::bounds();
    state::with(|state| state.manager.must_wait(at, &bounds, lock, ask))
}

fn carry_out<'a>(
    ctx: &Ctx,
    at: At<'_>,
    name: &Name<'_>,
    mut key: Key<'_>,
    input: Input<'a>,
    effects: &mut Effects<'a>,
) -> Result<(), Fault> {
    let asks = match &input {
        Input::Acquire(ask) | Input::Park(ask, _) => Some(ask.owner),
        _ => None,
    };
    let start = match key.content() {
        Content::Other => return Err(Fault::WrongType),
        Content::Missing => {
            let mut lock = Lock::default();
            let (_, life) = apply(&mut lock, at, input, effects);
            if !lock.is_free() {
                key.set(lock);
                set_ttl(&mut key, life.begin());
            }
            Start::Begins
        }
        Content::Lock(lock) => {
            let (before, after) = apply(lock, at, input, effects);
            set_ttl(&mut key, after.after(before, Why::of(&input, effects)));
            Start::GoesOn
        }
    };
    deny(ctx, at, name, &mut key, effects);
    if state::with(|state| state.manager.expects_keys()) {
        ctx.watch_new_keys(key_came);
    }
    let said = (start, effects.changes.as_slice(), effects.is_request_enough);
    tell(ctx, name, key, said, &effects.events);
    for owner in &effects.turns {
        publish::turn(ctx, name, owner.as_bytes());
    }
    metrics::count(&effects.changes, &effects.events, &effects.reply, asks, at.now);
    for token in &effects.replaced {
        metrics::count_hold(at.now.us().saturating_sub(token.get()));
    }
    if effects.awaits_acks {
        acks::watch();
    }
    answers::tell(ctx, std::mem::take(&mut effects.wakes));
    Ok(())
}

/// A new key: the connections that are blocked at its name may be granted or refused now.
fn key_came(db: c_int, key: &[u8]) {
    if state::with(|state| state.manager.key_came(db, key)) {
        timers::settle();
    }
}

/// Takes grants back from waiters that lost the right to them, before anybody is told. The next
/// waiter gets the lock.
fn deny(ctx: &Ctx, at: At<'_>, name: &Name<'_>, key: &mut Key<'_>, effects: &mut Effects<'_>) {
    let mut checked = 0;
    loop {
        while let Some(wake) = effects.wakes.get(checked) {
            let place = checked;
            checked = checked.saturating_add(1);
            let (waiter, is_granted) = (wake.waiter, matches!(wake.reply, Reply::Granted { .. }));
            if is_granted
                && take_back(ctx, at, name, key, waiter, effects)
                && let Some(wake) = effects.wakes.get_mut(place)
            {
                wake.reply = Reply::Refused(Refusal::NotPermitted);
            }
        }
        // Taking one of these back may grant to somebody whose right is yet to be checked.
        let Some(waiter) = effects.gated.pop() else { return };
        if take_back(ctx, at, name, key, waiter, effects) {
            let reply = Reply::Refused(Refusal::NotPermitted);
            effects.wakes.push(Wake { waiter, reply, waited_us: 0, acks_us: None });
        }
    }
}

/// Takes the grant of this blocked connection back, if it lost the right to it.
fn take_back(
    ctx: &Ctx,
    at: At<'_>,
    name: &Name<'_>,
    key: &mut Key<'_>,
    waiter: WaiterId,
    effects: &mut Effects<'_>,
) -> bool {
    let parked = state::with(|state| {
        let parked = state.manager.parked(waiter)?;
        Some((parked.user.clone(), parked.owner.clone()))
    });
    let Some((user, owner)) = parked else { return false };
    if ctx.may(&user, c"rlock.acquire", at.db, name, owner.as_bytes()) {
        return false;
    }
    if let Content::Lock(lock) = key.content() {
        let reply = effects.reply.clone();
        let (before, after) = apply(lock, at, Input::Deny(waiter), effects);
        effects.reply = reply;
        effects.is_request_enough = false;
        set_ttl(key, after.after(before, Why::Other));
    }
    true
}

/// Lets the manager decide. Returns how long the key had to live before, and has to live now.
fn apply<'a>(
    lock: &mut Lock,
    at: At<'_>,
    input: Input<'a>,
    effects: &mut Effects<'a>,
) -> (Life, Life) {
    let bounds = settings::bounds();
    state::with(|state| state.manager.decide_other(at, &bounds, lock, input, effects))
}

/// Applies an effect: the same on a replica, from the append-only file, and by hand.
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

/// If a client sends an append-only file line by line, the line that renews a hold may still
/// follow: so a key is kept for this many milliseconds after its deadline.
const BY_HAND_MS: u64 = 60_000;

/// Propagates the effect and schedules a sweep of the lock's waiters.
fn replayed(ctx: &Ctx, name: &Name<'_>, key: Key<'_>, events: &[Event]) {
    drop(key);
    ctx.replicate_as_it_came();
    // A server publishes what happens now. It does not publish what it reads from its own file,
    // nor, as a primary, what another node sends with a slot: that node publishes until the slot
    // has moved.
    let (is_primary, decides) =
        state::with(|state| (state.manager.is_primary(), state.manager.decides()));
    let was_told = ctx.is_loading() || is_primary && (!decides || ctx.is_from_primary());
    announce(ctx, name, if was_told { &[] } else { events });
    state::with(|state| state.manager.was_replayed(ctx.selected_db(), name.bytes()));
    timers::settle();
}

/// Applies an `RLOCK.RELEASE` from the primary or from the append-only file.
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

/// How long the key of a lock must live.
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

/// Sets the key's expiry, or deletes it, as decided.
fn set_ttl(key: &mut Key<'_>, ttl: Ttl) {
    if ttl == Ttl::Delete {
        return remove(key);
    }
    if let Some(at_ms) = ttl.expiry(|| u64::try_from(key.expires_at()).ok()) {
        key.expire_at(at_ms);
    }
}

/// Deletes the key. A lock that the module itself removes leaves its name free: that was told, or
/// is.
fn remove(key: &mut Key<'_>) {
    if let Content::Lock(lock) = key.content() {
        *lock = Lock::default();
    }
    key.delete();
}

/// Propagates the changes to replicas and the append-only file, then publishes the events. The key
/// must be closed, because a subscriber may be another module that changes it.
fn tell(
    ctx: &Ctx,
    name: &Name<'_>,
    key: Key<'_>,
    (start, changes, is_request_enough): (Start, &[Change<'_>], bool),
    events: &[Event],
) {
    drop(key);
    if changes.is_empty() {
        // Of holds that a writer's grant replaced: that was the change.
        return events.iter().for_each(|event| ctx.notify(event.name(), name));
    }
    if is_request_enough {
        ctx.replicate_as_it_came();
    } else {
        let mut bytes = state::with(|state| std::mem::take(&mut state.effect));
        snapshot::save_effect(start, changes, &mut bytes);
        ctx.replicate(name, &bytes);
        state::with(|state| state.keep_effect(bytes));
    }
    announce(ctx, name, events);
}

fn announce(ctx: &Ctx, name: &Name<'_>, events: &[Event]) {
    ctx.signal_modified(name);
    for event in events {
        ctx.notify(event.name(), name);
    }
}
