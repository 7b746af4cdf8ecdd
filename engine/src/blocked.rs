//! Blocked connections: the server keeps them blocked for the module, asks for their reply, and
//! reports when they depart.

use std::slice;

use rlock_core::grammar::Arguments;
use rlock_core::manager::{LockId, OwnWait, Parked, Same, Wait, WaitEnd, World, search};
use rlock_core::slow::Outcome;
use rlock_core::waits_for::{Search, Stand};
use rlock_core::{Acquire, Input, Lock, Owner, Parking, Refusal, Reply, Volatile, WaiterId, Wake};

use crate::given_up::{GivenUp, LocksLeft};
use crate::happening::Happening;
use crate::host::{Deferred, Host, KeyName};
use crate::sink;
use crate::unit::RequestError;
use crate::{answers, carry_out, groups, reply, timers};

/// Blocks the caller after [`Reply::MustWait`]. If the caller cannot wait, returns the reply to
/// send at once instead.
pub(crate) fn park<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    ask: Acquire<'_>,
    said: &Arguments<'_>,
    wait_ms: Option<u64>,
) -> Option<Reply> {
    let parked = sink::asker(host, id_of(host, name), said);
    let same = told_wait(host, said, Same::One(&parked.lock, ask.mode));
    let own = same.filter(|own| !own.is_granted);
    if let Err(refusal) = may_begin(host, said, own.is_some()) {
        return Some(Reply::Refused(refusal));
    }
    let stand = own.map_or(Stand::Asking(ask), |own| Stand::Parked(own.waiter));
    let (lock, user) = (&parked.lock, &*parked.user);
    let wait = parked.owner.as_ref().map(|owner| Wait { lock, owner, user, stand });
    // In a Cluster, a command can open only keys of its own slot, so the search runs after it.
    if !host.is_cluster()
        && let Some(wait) = wait
        && let Some(refusal) = deadlock(host, wait, &GivenUp::nothing())
    {
        return Some(Reply::Refused(refusal));
    }
    let (waiter, names) = (number_of(host, own), slice::from_ref(name));
    let Some(parking) = sink::open(host, waiter, names, parked, said, false) else {
        return Some(Reply::NotNow { wait_ms });
    };
    let decided = carry_out::request(host, name, Input::Park(ask, parking));
    let reply = match waits_on(host, parking, said, same, decided) {
        Ok(reply) => reply,
        Err(instead) => return instead,
    };
    if matches!(reply, Reply::MustWait { .. })
        && host.is_cluster()
        && host.settings().detects_deadlocks
    {
        groups::search_soon(host, parking.waiter);
    }
    None
}

/// The waiting request with TELL of the same owner and user that this one replaces.
pub(crate) fn told_wait<H: Host>(
    host: &H,
    said: &Arguments<'_>,
    same: Same<'_>,
) -> Option<OwnWait> {
    // The first question costs nothing.
    if host.state(|state| state.manager.tell_count() == 0)
        || said.tell.is_none() && !sink::may_wait(host, said)
    {
        return None;
    }
    let (owner, user) = (Owner::from(said.owner), sink::user_of(host, said));
    host.state(|state| state.manager.told_request(&owner, &user, same))
}

/// The lock at this name.
pub(crate) fn id_of<H: Host>(host: &H, name: &H::Name<'_>) -> LockId {
    LockId { db: host.db(), key: name.bytes().into() }
}

/// The number with which the caller will wait.
pub(crate) fn number_of<H: Host>(host: &H, own: Option<OwnWait>) -> WaiterId {
    let next = || host.state(|state| state.manager.next_waiter());
    own.map_or_else(next, |own| own.waiter)
}

/// Checks that one more request may wait, or replace one that waits.
pub(crate) fn may_begin<H: Host>(
    host: &H,
    said: &Arguments<'_>,
    has_place: bool,
) -> Result<(), Refusal> {
    let bounds = host.settings().bounds;
    host.state(|state| match said.tell {
        Some(_) if has_place => Ok(()),
        Some(_) => state.manager.may_tell(&bounds),
        None => state.manager.may_park(&bounds),
    })
}

/// [`confirm`] for a request for this lock alone, after [`Reply::MustConfirm`]. With `TELL`, it may
/// replace the owner's waiting request that wants the `same`.
pub(crate) fn park_to_confirm<'a, H: Host>(
    host: &H,
    name: &H::Name<'_>,
    said: &Arguments<'_>,
    same: impl FnOnce(&LockId) -> Same<'_>,
    input: impl FnOnce(Parking) -> Input<'a>,
) -> Option<Reply> {
    let parked = sink::asker(host, id_of(host, name), said);
    let own = told_wait(host, said, same(&parked.lock));
    let decide = |parking| carry_out::request(host, name, input(parking));
    confirm(host, slice::from_ref(name), parked, said, own, false, decide)
}

/// Blocks the caller and decides its request, whose reply waits until replicas have acknowledged
/// the outcome. Returns the reply to send at once instead, if the caller cannot be blocked.
pub(crate) fn confirm<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    parked: Parked,
    said: &Arguments<'_>,
    own: Option<OwnWait>,
    is_of_several: bool,
    decide: impl FnOnce(Parking) -> Result<Reply, RequestError>,
) -> Option<Reply> {
    if said.tell.is_none() && host.denies_blocking() {
        return Some(Reply::Refused(Refusal::CannotConfirm));
    }
    if said.tell.is_some()
        && let Err(refusal) = may_begin(host, said, own.is_some())
    {
        return Some(Reply::Refused(refusal));
    }
    let waiter = number_of(host, own.filter(|own| !own.is_granted));
    let Some(parking) = sink::open(host, waiter, names, parked, said, is_of_several) else {
        return Some(Reply::Refused(Refusal::CannotConfirm));
    };
    waits_on(host, parking, said, own, decide(parking)).err()?
}

/// The caller replaces a request that waited for acknowledgments. It was decided anew: it may ask
/// for another lease, depth, session or number of acknowledgments.
pub(crate) fn replaces<H: Host>(host: &H, own: Option<OwnWait>) {
    if let Some(own) = own.filter(|own| own.is_granted) {
        sink::leave(host, own.waiter, Outcome::Disconnected);
    }
}

/// The decision about a caller that was going to wait. `Err` is the reply to send at once if it
/// does not wait, because the locks changed meanwhile; `None` if its connection is blocked already
/// and gets the reply later.
fn waits_on<H: Host>(
    host: &H,
    parking: Parking,
    said: &Arguments<'_>,
    own: Option<OwnWait>,
    decided: Result<Reply, RequestError>,
) -> Result<Reply, Option<Reply>> {
    let reply = match decided {
        Ok(reply @ (Reply::MustWait { .. } | Reply::Pending)) => {
            replaces(host, own);
            return Ok(reply);
        }
        Ok(reply) => reply,
        Err(_) => Reply::Refused(Refusal::WrongType),
    };
    let waiter = parking.waiter;
    match &reply {
        _ if said.tell.is_none() => {
            answers::send_later(host, &Wake::of(waiter, reply));
            return Err(None);
        }
        Reply::Granted { .. } | Reply::Renewed => sink::ended(host, waiter),
        _ => sink::leave(host, waiter, Outcome::Refused),
    }
    Err(Some(reply))
}

/// A value may have appeared at the key of this blocked connection. The server reports that for
/// every connection that is blocked there. A connection that waits for several locks is blocked at
/// none of their keys.
pub fn key_came<H: Host>(host: &H, waiter: WaiterId) {
    let is_awaited = host.state(|state| {
        let lock = state.manager.parked(waiter).map(|parked| parked.lock.clone());
        lock.is_some_and(|id| state.manager.key_came(id.db, &id.key))
    });
    if is_awaited {
        timers::settle(host);
    }
}

/// The reply to a blocked connection is due: it was granted, or its wait timed out.
pub fn reply<H: Host>(host: &H, waiter: WaiterId) {
    let granted = host.state(|state| {
        let parked = state.manager.parked(waiter)?;
        let WaitEnd::Replied(reply @ Reply::Granted { .. }) = &parked.end else { return None };
        Some((reply.clone(), parked.with_ttl))
    });
    if let Some((reply, with_ttl)) = granted {
        return reply::to_acquire(host, &reply, with_ttl, &[], &[]);
    }
    let Some(parked) = host.state(|state| state.manager.parked(waiter).cloned()) else {
        return host.reply_null();
    };
    let reply = match &parked.end {
        WaitEnd::Saw(held) => return reply::to_await(host, held.as_deref()),
        WaitEnd::Replied(reply) => reply.clone(),
        WaitEnd::Waits | WaitEnd::Departed => unblocked(host, waiter, &parked),
    };
    let (key, owner) = (&parked.lock.key, parked.owner.as_ref().map_or(&[][..], Owner::as_bytes));
    reply::to_acquire(host, &reply, parked.with_ttl, key, owner);
}

/// The reply if the server itself ended the wait: `CLIENT UNBLOCK`.
fn unblocked<H: Host>(host: &H, waiter: WaiterId, parked: &Parked) -> Reply {
    let now = host.now();
    let reply = if parked.is_observer() {
        Reply::NotNow { wait_ms: None }
    } else if let Some(refusal) = &parked.refusal {
        Reply::Refused(refusal.clone())
    } else {
        let see = |lock: &Lock, volatile: &Volatile| lock.estimated_wait_of(volatile, waiter, now);
        let is_group = host.state(|state| state.manager.group(waiter).is_some());
        let wait_ms = match is_group {
            true => groups::time_to_wait(host, waiter),
            false => LocksLeft::new(host, &GivenUp::nothing()).lock(&parked.lock, see),
        };
        Reply::NotNow { wait_ms }
    };
    sink::leave(host, waiter, Outcome::Unblocked);
    if !parked.is_observer() {
        host.observe(Happening::Unblocked(waiter, &reply));
    }
    reply
}

/// A blocked connection departed, or got an error instead of its reply.
pub fn gone<H: Host>(host: &H, waiter: WaiterId) {
    sink::leave(host, waiter, Outcome::Disconnected);
}

/// A blocked connection may have read its reply by now; with `is_lost`, it never will. A grant in a
/// reply that may have been read is final, however soon the connection closes: only its lease ends
/// it.
///
/// The server calls this as soon as the reply is in the connection's output, and at the latest when
/// it unblocks the connection; then perhaps a second time.
pub fn over<H: Host>(host: &H, waiter: WaiterId, is_lost: bool) {
    if is_lost {
        sink::leave(host, waiter, Outcome::Disconnected);
    }
    let is_news = host.state(|state| {
        state.blocked.remove(&waiter);
        state.manager.heard_or_forgotten(waiter)
    });
    if is_news {
        timers::settle(host);
    }
}

/// [`Deferred::Search`].
pub(crate) fn search_unsearched<H: Host>(host: &H) {
    let began_at = host.monotonic();
    while let Some(waiter) = host.state(|state| state.unsearched.pop_front()) {
        search_for(host, waiter);
        let is_over = host.monotonic().saturating_sub(began_at) > timers::PORTION;
        if is_over && host.state(|state| !state.unsearched.is_empty()) {
            host.defer(0, Deferred::Search);
            break;
        }
    }
    timers::settle(host);
}

/// Refuses a wait if it has closed a cycle.
fn search_for<H: Host>(host: &H, waiter: WaiterId) {
    let Some(waits) = host.state(|state| state.manager.waits(waiter)) else { return };
    let (lock, owner, user) = (&waits.lock, &waits.owner, &*waits.user);
    let wait = Wait { lock, owner, user, stand: Stand::Parked(waiter) };
    if let Some(refusal) = deadlock(host, wait, &GivenUp::nothing()) {
        let now = host.now();
        host.state(|state| state.manager.refuse(waiter, now));
        let reply = Reply::Refused(refusal);
        let owner = Some(Box::new(waits.owner));
        answers::send(host, vec![Wake { owner, ..Wake::of(waiter, reply) }], None);
    }
}

/// The refusal of a wait that closes a cycle, or would close one, if its owner gives up these
/// tickets.
pub(crate) fn deadlock<H: Host>(host: &H, wait: Wait<'_>, given_up: &GivenUp) -> Option<Refusal> {
    if !host.settings().detects_deadlocks {
        return None;
    }
    let now = host.now();
    match search(&mut LocksLeft::new(host, given_up), wait, now) {
        Search::NoCycle => None,
        Search::GaveUp => {
            host.observe(Happening::SearchGivenUp);
            None
        }
        Search::Cycle(cycle) => {
            host.observe(Happening::Deadlock);
            let line = host.state(|state| state.manager.deadlock(&wait, &cycle, now));
            line.into_iter().for_each(|line| host.warn(&line));
            Some(Refusal::Cycle(cycle.len()))
        }
    }
}
