//! The parts of a step at one key: open, decide, save, replicate, publish, reply. A step changes
//! one key, or several.

use rlock_core::grammar::Access;
use rlock_core::manager::{At, Cause, Decided, ExpiryAction, KeyExpiry, LockId};
use rlock_core::snapshot::{self, Start};
use rlock_core::{Change, Effects, End, Event, Input, Lock, Refusal, Right, Rights, WaiterId};
use smallvec::SmallVec;

use crate::happening::{Done, Happening};
use crate::host::{Content, Host, KeyName, OpenKey};
use crate::planted::PlantedFault;
use crate::sink::{self, Audience};
use crate::state::State;
use crate::{acks, answers, publish};

/// A refusal before the core decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The key is not a lock.
    WrongType,
    /// This server is a replica.
    ReadOnly,
    /// A client sent a token that no server with a correct clock issues.
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

/// Opens one key for writing, or several. If opening them caused expiries, closes them, publishes
/// these, and opens the keys again: a subscriber may be another module that changes a key.
pub(crate) fn open<H: Host, K>(host: &H, open: impl Fn() -> K) -> K {
    let keys = open();
    if publish::is_quiet(host) {
        return keys;
    }
    drop(keys);
    publish::removed(host);
    open()
}

/// Lets the manager decide about the lock at the open key, saves it, and sets the key's expiry. No
/// waiter is granted whose permission for the lock was not checked.
#[inline(always)]
pub(crate) fn decide<'a, H: Host>(
    host: &H,
    at: At<'_>,
    name: &H::Name<'_>,
    key: &mut impl OpenKey,
    input: &Input<'a>,
    effects: &mut Option<Effects<'a>>,
) -> Result<(Start, Decided<'a>), RequestError> {
    let bounds = host.settings().bounds;
    let mut rights = Checked::new();
    let expected = host.state(|state| state.manager.expected_grant(at, input));
    if let Some(waiter) = expected {
        check(host, name, &[waiter], &mut rights);
    }
    let mut new = Lock::default();
    let (start, lock) = lock_at(key, &mut new)?;
    let saved = host.has_fault(PlantedFault::RevocationForgotten).then(|| lock.clone());
    let mut decided = host.state(|state| {
        state.manager.decide(at, &bounds, lock, input, Rights::Checked(&rights), effects)
    });
    if let (Some(saved), Some(effects), Decided::Step([before, after])) =
        (saved, effects.as_mut(), &mut decided)
        && revokes_only(effects)
    {
        *lock = saved;
        *after = *before;
        effects.changes.clear();
    }
    while let (Decided::Step([_, after]), Some(effects)) = (&mut decided, effects.as_mut())
        && let Some(unchecked) = &effects.unchecked
    {
        check(host, name, &unchecked.waiters, &mut rights);
        let (_, lock) = lock_at(key, &mut new)?;
        [_, *after] = host.state(|state| {
            state.manager.step(at, &bounds, lock, input, Rights::Checked(&rights), effects)
        });
    }
    if start == Start::Begins && !new.is_free() {
        key.set(new);
    }
    if let Some(effects) = effects.as_mut() {
        effects.unheard.drain(..).for_each(|waiter| host.observe(Happening::Untold(waiter)));
    }
    match &decided {
        Decided::Fast(_, expiry) => set_ttl(key, *expiry),
        Decided::MustWait(_) => {}
        Decided::Step([before, after]) => {
            let why = effects.as_ref().map_or(Cause::Other, |effects| Cause::of(input, effects));
            set_ttl(key, after.after(*before, why));
        }
    }
    Ok((start, decided))
}

/// Looks at the lock at a key, as it is now; a free one if there is none.
pub(crate) fn look<H: Host, T>(
    host: &H,
    id: &LockId,
    look: impl FnOnce(&Lock, &mut State<H::Blocked>) -> T,
) -> T {
    host.with_name(id, |name| {
        let (mut key, free) = (host.open(name, Access::Reads), Lock::default());
        let lock = key.lock(&free).unwrap_or(&free);
        host.state(|state| look(lock, state))
    })
}

/// The lock at the open key; `new`, a free one, if there is no key.
fn lock_at<'k>(
    key: &'k mut impl OpenKey,
    new: &'k mut Lock,
) -> Result<(Start, &'k mut Lock), RequestError> {
    match key.content() {
        Content::Other => Err(RequestError::WrongType),
        Content::Lock(lock) => Ok((Start::Existing, lock)),
        Content::Missing => Ok((Start::Begins, new)),
    }
}

/// Which blocked connections may be granted.
type Checked = SmallVec<[(WaiterId, Right); 1]>;

/// Checks whether the users of these blocked connections still have permission for the lock.
fn check<H: Host>(host: &H, name: &H::Name<'_>, waiters: &[WaiterId], rights: &mut Checked) {
    let audience = Audience::of(host, waiters.iter().copied());
    for waiter in waiters {
        let may = |user: &[u8]| host.may_acquire(user, name);
        rights.push((*waiter, sink::right_of(host, *waiter, &audience, may)));
    }
}

/// Whether the only change was the end of holds that replicas did not acknowledge.
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

/// Deletes the key. The end of a lock that the engine itself removes is published with its change,
/// in this step or before.
pub(crate) fn remove(key: &mut impl OpenKey) {
    match key.content() {
        Content::Missing => return,
        Content::Lock(lock) => *lock = Lock::default(),
        Content::Other => {}
    }
    key.delete();
}

/// Returns when the key of a lock must expire.
pub(crate) fn life_of<H: Host>(host: &H, lock: &Lock, name: &H::Name<'_>) -> KeyExpiry {
    let db = host.db();
    host.state(|state| state.manager.life(lock, db, name.bytes()))
}

/// Replicates the changes, and reports them. Later parts may call other modules, which may change
/// keys: so every key must be closed before them.
#[inline(always)]
pub(crate) fn pass_on<H: Host>(
    host: &H,
    at: At<'_>,
    name: &H::Name<'_>,
    start: Start,
    asks: Option<&[u8]>,
    done: Done<'_>,
) {
    if !done.changes.is_empty() {
        replicate(host, name, start, done);
    }
    host.observe(Happening::Decided { at, asks, done });
}

/// Publishes the events of a step at one key, which it may have changed.
pub(crate) fn publish_events<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    has_changed: bool,
    events: &[Event],
) {
    if has_changed {
        announce(host, name, events);
    } else {
        // These holds ended because a writer's grant replaced them: the grant was the change.
        events.iter().for_each(|event| host.notify(event.name(), name));
    }
}

fn replicate<H: Host>(host: &H, name: &H::Name<'_>, start: Start, done: Done<'_>) {
    if done.is_request_enough {
        return host.replicate_as_it_came();
    }
    let mut bytes = host.state(State::take_effect);
    snapshot::save_effect(start, done.changes, &mut bytes);
    host.replicate(&[name], &bytes);
    host.state(|state| state.keep_effect(bytes));
}

pub(crate) fn announce<H: Host>(host: &H, name: &H::Name<'_>, events: &[Event]) {
    host.signal_modified(name);
    for event in events {
        host.notify(event.name(), name);
    }
}

/// Publishes turns, and replies to blocked connections; to the one that this command blocked, when
/// the command has ended.
pub(crate) fn answer<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    effects: &mut Effects<'_>,
    parked: Option<WaiterId>,
) {
    for owner in &effects.turns {
        publish::turn(host, name, owner.as_bytes());
    }
    if effects.awaits_acks {
        acks::watch(host);
    }
    answers::send_of_step(host, std::mem::take(&mut effects.wakes), parked);
}
