//! The one road of a change: open the key, let the core decide, save, tell the world.

use std::ffi::CString;

use libc::c_int;
use rlock_core::grammar::Access;
use rlock_core::snapshot::{self, Effect, Start};
use rlock_core::{
    Change, ClientId, Effects, Event, Input, Lock, Memory, Moment, Refusal, Release, Reply, text,
};

use crate::ffi::{self, Content, Ctx, Key, Name, Slot};
use crate::memories::LockId;
use crate::{alarm, metrics, parking, publish, settings, state};

/// What stops a request before the core is asked.
pub enum Fault {
    /// The key is something else than a lock.
    WrongType,
    /// This server is a replica.
    ReadOnly,
    /// A client brought a token that no server with a right clock issued.
    Implausible,
}

/// While somebody waits, the key lives so many milliseconds longer than its holds, so that the
/// hand-over happens in place: a key that is deleted and added again has the server ask every
/// parked connection.
const GRACE_MS: u64 = 1000;

/// Lets the core decide `input` about the lock at `name`, and carries out what it says.
///
/// # Errors
/// [`Fault`]; nothing changed.
pub fn decide<'a>(ctx: &Ctx, name: &Name<'_>, input: Input<'a>) -> Result<Reply, Fault> {
    if !state::with(|state| state.is_primary) {
        return Err(Fault::ReadOnly);
    }
    let effects = carry_out(ctx, ctx.selected_db(), name, input)?;
    alarm::set();
    close_soon(effects.lost);
    Ok(effects.reply)
}

/// Whether commands are requests here; else they say what was decided elsewhere, or before.
pub fn is_decided_here(ctx: &Ctx) -> bool {
    // In a cluster a primary may be given a slot by another one, with its effects.
    state::with(|state| state.is_primary && !state.is_loading)
        && !(ffi::is_cluster() && ctx.is_from_primary())
}

/// Looks at a lock outside of any command: what came due is done, and whoever may enter does.
/// False while that may not be: the cluster is down.
pub fn look(ctx: &Ctx, lock: &LockId) -> bool {
    ctx.with_name(lock.db, &lock.key, |name| {
        match ctx.slot_of(name) {
            Slot::Nowhere => return false,
            Slot::Elsewhere => dismiss(lock, &Refusal::TryAgain),
            Slot::Here => match carry_out(ctx, lock.db, name, Input::Tick) {
                Ok(effects) => close_soon(effects.lost),
                Err(_) => dismiss(lock, &Refusal::WrongType),
            },
        }
        true
    })
}

/// The key of this lock changed, or a session could not be renewed: sessions whose hold is not
/// there any more are lost.
pub fn look_for_sessions(ctx: &Ctx, lock: &LockId) {
    ctx.with_name(lock.db, &lock.key, |name| {
        let mut key = ctx.open(name, Access::Reads);
        let (free, now) = (Lock::default(), state::now());
        let held = key.lock(&free).unwrap_or(&free);
        close_soon(state::with(|state| {
            state.memories.change(lock.db, &lock.key, |memory| {
                (held.lost_sessions(memory, now), held.next_alarm(memory))
            })
        }));
    });
}

/// Nothing may be written: only waits that are over are answered.
pub fn time_out(lock: &LockId) {
    let now = state::now();
    let wakes = state::with(|state| {
        state.memories.change(lock.db, &lock.key, |memory| {
            (memory.time_out_alone(now), memory.next_time_out())
        })
    });
    wakes.into_iter().for_each(parking::answer);
}

/// Nobody can be granted here any more.
fn dismiss(lock: &LockId, why: &Refusal) {
    let now = state::now();
    let dismissed = state::with(|state| {
        state.memories.change(lock.db, &lock.key, |memory| (memory.dismiss(why, now), None))
    });
    dismissed.wakes.into_iter().for_each(parking::answer);
    close_soon(dismissed.lost);
}

/// Closes connections whose session is lost. They are not granted what they wait for from now on;
/// they are closed two turns of the server's loop later, because a timer that is set by a command
/// may fire before the command's reply is written. Closed at once, the rest of a script would run
/// as another user.
pub fn close_soon(lost: Vec<ClientId>) {
    fn turn(_: &Ctx) {
        // At 0 ms it could still fire in this turn, if the clock stands.
        ffi::after(1, close);
    }
    fn close(ctx: &Ctx) {
        for client in state::with(|state| std::mem::take(&mut state.lost)) {
            ctx.close(client.get());
        }
    }
    if !lost.is_empty() {
        lost.iter().copied().for_each(parking::wait_ended);
        state::with(|state| state.lost.extend(lost));
        ffi::after(0, turn);
    }
}

/// Opens a key for writing. What opening it expired is told first, with the key closed: a
/// subscriber may be another module that does something to it.
fn open<'c>(ctx: &'c Ctx, name: &Name<'_>) -> Key<'c> {
    let key = ctx.open(name, Access::Writes);
    if publish::is_quiet() {
        return key;
    }
    drop(key);
    publish::gone(ctx);
    ctx.open(name, Access::Writes)
}

fn carry_out<'a>(
    ctx: &Ctx,
    db: c_int,
    name: &Name<'_>,
    input: Input<'a>,
) -> Result<Effects<'a>, Fault> {
    let mut key = open(ctx, name);
    let mut effects = Effects::default();
    match key.content() {
        Content::Other => return Err(Fault::WrongType),
        Content::Missing => {
            let mut lock = Lock::default();
            let (_, life) = apply(&mut lock, db, name.bytes(), input, &mut effects);
            if !lock.is_free() {
                begin(&mut key, lock, Some(life));
            }
            tell(ctx, name, key, Start::Begins, &effects);
        }
        Content::Lock(lock) => {
            let (before, after) = apply(lock, db, name.bytes(), input, &mut effects);
            settle(&mut key, before, after, matches!(input, Input::Tick));
            tell(ctx, name, key, Start::GoesOn, &effects);
        }
    }
    for owner in &effects.turns {
        ctx.notify(&turn_event(owner.as_bytes()), name);
    }
    metrics::count(&effects);
    std::mem::take(&mut effects.wakes).into_iter().for_each(parking::answer);
    Ok(effects)
}

/// Until when a key is to live.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Life {
    /// When the latest hold is over, in milliseconds since the Unix epoch; `None` without a hold.
    deadline_ms: Option<u64>,
    is_waited_for: bool,
}

impl Life {
    fn new(lock: &Lock, memory: Option<&Memory>) -> Self {
        let deadline_ms = lock.latest_deadline().map(|deadline| deadline.get());
        let is_waited_for = memory.is_some_and(|memory| !memory.queue.is_empty());
        Self { deadline_ms, is_waited_for }
    }

    fn of(lock: &Lock, db: c_int, name: &Name<'_>) -> Self {
        state::with(|state| Self::new(lock, state.memories.get(db, name.bytes())))
    }

    /// When the key expires, where nobody but the module says so. The server lets a key live
    /// through the millisecond that it expires at: the last one before the deadline.
    fn expires_at(deadline_ms: u64, is_waited_for: bool) -> u64 {
        deadline_ms.saturating_sub(1).saturating_add(if is_waited_for { GRACE_MS } else { 0 })
    }
}

/// Lets the core decide. Until when the key was to live, and is now.
fn apply<'a>(
    lock: &mut Lock,
    db: c_int,
    key: &[u8],
    input: Input<'a>,
    effects: &mut Effects<'a>,
) -> (Life, Life) {
    let (now, max_depth) = (state::now(), settings::limits().max_depth);
    let max_tickets = settings::max_tickets();
    state::with(|state| {
        let tickets_left = max_tickets.saturating_sub(state.memories.totals().tickets);
        let tokens = &mut state.tokens;
        state.memories.change(db, key, |memory| {
            let mut moment = Moment { now, tokens, max_depth, tickets_left };
            let before = Life::new(lock, Some(memory));
            lock.apply(memory, &mut moment, input, effects);
            let after = Life::new(lock, Some(memory));
            ((before, after), lock.next_alarm(memory))
        })
    })
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
    if !state::with(|state| state.is_primary) && !ctx.is_from_primary() {
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
            let before = Life::of(lock, db, name);
            make(lock, &effect.changes, &mut events);
            let after = Life::of(lock, db, name);
            settle(&mut key, before, after, false);
            life = Some(after);
        }
        _ => {
            let mut lock = Lock::default();
            make(&mut lock, &effect.changes, &mut events);
            remove(&mut key);
            if !lock.is_free() {
                life = Some(Life::of(&lock, db, name)).filter(|_| effect.start != Start::Rewritten);
                begin(&mut key, lock, life);
            }
        }
    }
    if let Some(Life { deadline_ms: Some(deadline_ms), .. }) = life
        && deadline_ms <= now.ms().get()
        && is_decided_here(ctx)
    {
        key.expire_at(now.ms().get().saturating_add(BY_HAND_MS));
    }
    replayed(ctx, name, key, &events);
    Ok(())
}

/// Where a client sends an append-only file line by line, the line that renews a hold may still be
/// to come: a key whose deadline is past is left alone so long, in milliseconds.
const BY_HAND_MS: u64 = 60_000;

/// Sends on what was replayed, and has those looked at who wait for the lock.
fn replayed(ctx: &Ctx, name: &Name<'_>, key: Key<'_>, events: &[Event]) {
    drop(key);
    ctx.replicate_as_it_came();
    // A primary reads it from its own file, or is given a slot by another node, which serves it
    // and tells its own subscribers until all of it has come.
    let was_told = state::with(|state| state.is_primary) && ctx.is_from_primary();
    announce(ctx, name, if was_told { &[] } else { events });
    if state::with(|state| state.memories.mark_changed(ctx.selected_db(), name.bytes())) {
        alarm::look_soon();
    }
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
        let before = Life::of(lock, db, name);
        event = lock.replay_release(ask);
        let after = Life::of(lock, db, name);
        settle(&mut key, before, after, false);
    }
    replayed(ctx, name, key, event.as_slice());
    Ok(())
}

fn make(lock: &mut Lock, changes: &[Change<'_>], events: &mut Vec<Event>) {
    for change in changes {
        if let Change::Granted { token, .. } = change {
            state::with(|state| state.tokens.saw(*token));
        }
        events.extend(lock.replay(change));
    }
}

/// A lock begins at a key where nothing stands. Another module that is told of it may remove other
/// locks meanwhile.
fn begin(key: &mut Key<'_>, lock: Lock, life: Option<Life>) {
    key.set(lock);
    if let Some(Life { deadline_ms: Some(deadline_ms), is_waited_for }) = life {
        key.expire_at(Life::expires_at(deadline_ms, is_waited_for));
    }
}

/// The key lives as long as the latest hold in it, or as its user said since: PERSIST and EXPIRE
/// stay while no deadline moves. `is_look`: who waited may have left since the key was settled
/// last.
fn settle(key: &mut Key<'_>, before: Life, after: Life, is_look: bool) {
    let Some(deadline_ms) = after.deadline_ms else { return remove(key) };
    let until_ms = Life::expires_at(deadline_ms, after.is_waited_for);
    if before.deadline_ms != after.deadline_ms {
        key.expire_at(until_ms);
    } else if before.is_waited_for != after.is_waited_for || is_look {
        let other_ms = Life::expires_at(deadline_ms, !after.is_waited_for);
        if u64::try_from(key.expires_at()) == Ok(other_ms) {
            key.expire_at(until_ms);
        }
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
