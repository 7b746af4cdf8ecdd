//! The only path of a change: open the key, let the manager decide, save, replicate, publish,
//! answer.

use std::rc::Rc;
use std::slice;

use rlock_core::grammar::Access;
use rlock_core::manager::{At, Cause, Decided, ExpiryAction, KeyExpiry};
use rlock_core::snapshot::{self, Start};
use rlock_core::{
    Change, Effects, End, Event, FastStep, Input, Lock, Owner, Refusal, Reply, Rights, Token,
    WaiterId,
};
use smallvec::SmallVec;

use crate::happening::Happening;
use crate::host::{Content, During, Host, KeyName, OpenKey};
use crate::planted::PlantedFault;
use crate::{acks, answers, publish, timers};

/// What refuses a request before the core decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The key is not a lock.
    WrongType,
    /// This server is a replica.
    ReadOnly,
    /// A client brought a token that no server with a correct clock issues.
    Implausible,
}

impl RequestError {
    /// The error line, which begins with its code.
    pub fn line(self) -> String {
        match self {
            Self::Implausible => {
                "ERR malformed payload: its token is more than a minute ahead of the clock"
            }
            Self::ReadOnly => "READONLY You can't write against a read only replica.",
            Self::WrongType => return Refusal::WrongType.line(&[], &[]),
        }
        .into()
    }
}

/// Decides a client's request about the lock at `name`, and carries out the effects.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub fn request<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
) -> Result<Reply, RequestError> {
    if !host.state(|state| state.manager.is_primary()) {
        return Err(RequestError::ReadOnly);
    }
    let (reply, remembers) = carry_out(host, name, input)?;
    // Where nothing is remembered, the timers stay as they are.
    if remembers {
        let (next, is_watching) =
            host.state(|state| (state.manager.next_call(), state.manager.watches_commands()));
        timers::set(host, next);
        if is_watching {
            host.watch_commands();
            host.close_lost(During::Command);
        }
    }
    Ok(reply)
}

/// Decides what the server does by itself to the lock at `name`, and carries out the effects. Does
/// not set the timers.
///
/// # Errors
/// The key is not a lock; nothing changed.
pub(crate) fn by_itself<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
) -> Result<(), RequestError> {
    carry_out(host, name, input).map(|_| ())
}

/// Whether commands are requests here; otherwise commands being loaded or replicated are replayed,
/// not decided.
pub fn is_decided_here<H: Host>(host: &H) -> bool {
    // In a cluster another primary may hand over a slot, with its effects.
    host.state(|state| state.manager.decides()) && !(host.is_cluster() && host.is_from_primary())
}

/// Opens a key for writing. Publishes expiries caused by opening it first, after closing it: a
/// subscriber may be another module that changes the key.
pub(crate) fn open<'h, H: Host>(host: &'h H, name: &H::Name<'_>) -> H::Key<'h> {
    let key = host.open(name, Access::Writes);
    if publish::is_quiet(host) {
        return key;
    }
    drop(key);
    publish::removed(host);
    host.open(name, Access::Writes)
}

/// Decides, and carries out the effects. Returns the reply to the caller, and whether something may
/// be remembered of the lock.
fn carry_out<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
) -> Result<(Reply, bool), RequestError> {
    let mut key = open(host, name);
    let at = At { db: host.db(), key: name.bytes(), now: host.now() };
    let asks = match &input {
        Input::Acquire(ask) | Input::Park(ask, _) => Some(ask.owner),
        _ => None,
    };
    let (start, decided) = decide(host, at, name, &mut key, input)?;
    let mut effects = match decided {
        Decided::Fast(FastStep { change, event, reply, is_request_enough }, _) => {
            let (changes, events) = (slice::from_ref(&change), event.as_slice());
            let done = Done { changes, events, reply: &reply, gated: &[], replaced: &[] };
            tell(host, at, name, key, (start, is_request_enough, None), done);
            return Ok((reply, false));
        }
        Decided::MustWait(reply) => {
            let done = Done { changes: &[], events: &[], reply: &reply, gated: &[], replaced: &[] };
            tell(host, at, name, key, (start, false, asks), done);
            return Ok((reply, false));
        }
        Decided::Step(effects, _) => effects,
    };
    if host.state(|state| state.manager.expects_keys()) {
        host.watch_new_keys();
    }
    let Effects { reply, changes, events, gated, replaced, .. } = &effects;
    let done = Done { changes, events, reply, gated, replaced };
    tell(host, at, name, key, (start, effects.is_request_enough, asks), done);
    answer(host, name, &mut effects);
    Ok((effects.reply, true))
}

/// Lets the manager decide about the lock at the open key, saves it, and sets the key's expiry.
/// Nobody is granted whose right to the lock is not checked.
fn decide<'a, H: Host>(
    host: &H,
    at: At<'_>,
    name: &H::Name<'_>,
    key: &mut H::Key<'_>,
    input: Input<'a>,
) -> Result<(Start, Decided<'a>), RequestError> {
    let bounds = host.settings().bounds;
    let mut rights = Checked::new();
    let expected = host.state(|state| state.manager.expected_grant(at, &input));
    check(host, name, expected.as_slice(), &mut rights);
    let (start, mut decided) = at_lock(key, |lock| {
        let saved = host.has_fault(PlantedFault::RevocationForgotten).then(|| lock.clone());
        let rights = Rights::Checked(&rights);
        let mut decided =
            host.state(|state| state.manager.decide(at, &bounds, lock, input, rights));
        if let (Some(saved), Decided::Step(effects, [before, after])) = (saved, &mut decided)
            && revokes_only(effects)
        {
            *lock = saved;
            *after = *before;
            effects.changes.clear();
        }
        decided
    })?;
    while let Decided::Step(effects, [_, after]) = &mut decided
        && let Some(unchecked) = &effects.unchecked
    {
        check(host, name, &unchecked.waiters, &mut rights);
        let step = |lock: &mut Lock| {
            let rights = Rights::Checked(&rights);
            host.state(|state| state.manager.step(at, &bounds, lock, input, rights, effects))
        };
        (_, [_, *after]) = at_lock(key, step)?;
    }
    match &decided {
        Decided::Fast(_, expiry) => set_ttl(key, *expiry),
        Decided::MustWait(_) => {}
        Decided::Step(effects, [before, after]) => {
            set_ttl(key, after.after(*before, Cause::of(&input, effects)));
        }
    }
    Ok((start, decided))
}

/// Changes the lock at the open key; a free one if there is no key, which is put there unless it is
/// still free.
fn at_lock<T>(
    key: &mut impl OpenKey,
    work: impl FnOnce(&mut Lock) -> T,
) -> Result<(Start, T), RequestError> {
    match key.content() {
        Content::Other => Err(RequestError::WrongType),
        Content::Lock(lock) => Ok((Start::Existing, work(lock))),
        Content::Missing => {
            let mut lock = Lock::default();
            let done = work(&mut lock);
            if !lock.is_free() {
                key.set(lock);
            }
            Ok((Start::Begins, done))
        }
    }
}

/// Which blocked connections may be granted.
type Checked = SmallVec<[(WaiterId, bool); 1]>;

/// Asks whether the users of these blocked connections still have the right to the lock.
fn check<H: Host>(host: &H, name: &H::Name<'_>, waiters: &[WaiterId], rights: &mut Checked) {
    for waiter in waiters {
        let parked = host.state(|state| {
            let parked = state.manager.parked(*waiter)?;
            Some((parked.user.clone(), parked.owner.clone()))
        });
        let may = |(user, owner): (Rc<str>, Owner)| host.may_acquire(&user, name, owner.as_bytes());
        rights.push((*waiter, parked.is_none_or(may)));
    }
}

/// Whether nothing happened but that holds ended which replicas did not acknowledge.
fn revokes_only(effects: &Effects<'_>) -> bool {
    let is_it = |change: &Change<'_>| matches!(change, Change::Ended { by: End::Unconfirmed, .. });
    !effects.changes.is_empty() && effects.changes.iter().all(is_it)
}

/// Sets the key's expiry, or deletes it, as decided.
pub(crate) fn set_ttl(key: &mut impl OpenKey, ttl: ExpiryAction) {
    if ttl == ExpiryAction::Delete {
        return remove(key);
    }
    if let Some(at_ms) = ttl.expiry(|| key.expires_at()) {
        key.expire_at(at_ms);
    }
}

/// Deletes the key. A lock that the engine itself removes leaves its name free: that was published,
/// or will be with this step.
pub(crate) fn remove(key: &mut impl OpenKey) {
    match key.content() {
        Content::Missing => return,
        Content::Lock(lock) => *lock = Lock::default(),
        Content::Other => {}
    }
    key.delete();
}

/// Returns how long the key of a lock must live.
pub(crate) fn life_of<H: Host>(host: &H, lock: &Lock, name: &H::Name<'_>) -> KeyExpiry {
    let db = host.db();
    host.state(|state| state.manager.life(lock, db, name.bytes()))
}

/// What a decision did, to be carried out.
#[derive(Clone, Copy)]
struct Done<'e> {
    changes: &'e [Change<'e>],
    events: &'e [Event],
    reply: &'e Reply,
    gated: &'e [WaiterId],
    replaced: &'e [Token],
}

/// Replicates the changes, then publishes the events. The key is closed first, because a subscriber
/// may be another module that changes it.
fn tell<H: Host>(
    host: &H,
    at: At<'_>,
    name: &H::Name<'_>,
    key: H::Key<'_>,
    (start, is_request_enough, asks): (Start, bool, Option<&[u8]>),
    done: Done<'_>,
) {
    drop(key);
    let Done { changes, events, reply, gated, replaced } = done;
    if !changes.is_empty() {
        replicate(host, name, start, changes, is_request_enough);
    }
    let At { db, key, now } = at;
    host.observe(Happening::Decided {
        db,
        key,
        changes,
        events,
        reply,
        asks,
        gated,
        replaced,
        now,
    });
    if changes.is_empty() {
        // Of holds that a writer's grant replaced: that was the change.
        events.iter().for_each(|event| host.notify(event.name(), name));
    } else {
        announce(host, name, events);
    }
}

fn replicate<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    start: Start,
    changes: &[Change<'_>],
    is_request_enough: bool,
) {
    if is_request_enough {
        return host.replicate_as_it_came();
    }
    let mut bytes = host.state(|state| std::mem::take(&mut state.effect));
    snapshot::save_effect(start, changes, &mut bytes);
    host.replicate(name, &bytes);
    host.state(|state| state.keep_effect(bytes));
}

pub(crate) fn announce<H: Host>(host: &H, name: &H::Name<'_>, events: &[Event]) {
    host.signal_modified(name);
    for event in events {
        host.notify(event.name(), name);
    }
}

/// Publishes turns, and answers blocked connections.
fn answer<H: Host>(host: &H, name: &H::Name<'_>, effects: &mut Effects<'_>) {
    for owner in &effects.turns {
        publish::turn(host, name, owner.as_bytes());
    }
    if effects.awaits_acks {
        acks::watch(host);
    }
    answers::send(host, std::mem::take(&mut effects.wakes));
}
