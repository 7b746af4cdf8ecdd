//! Blocked connections: the server keeps them blocked for us, asks for their reply, and reports
//! when they depart.

use std::borrow::Cow;
use std::rc::Rc;
use std::slice;

use rlock_core::grammar::Arguments;
use rlock_core::manager::{LockId, Parked, Wait, WaitEnd, World, search};
use rlock_core::slow::Outcome;
use rlock_core::waits_for::{Search, Stand};
use rlock_core::{
    Acquire, Input, Lock, Owner, Parking, Refusal, Renew, Reply, Volatile, WaiterId, Wake,
};

use crate::given_up::{GivenUp, LocksLeft};
use crate::happening::Happening;
use crate::host::{Deferred, Host, KeyName};
use crate::{answers, carry_out, groups, reply, timers};

/// How many milliseconds after ours the server's own timeout fires, in case ours fails.
const NET_MS: u64 = 100;

/// The server's own timeout of a wait; 0 is never.
pub(crate) fn net_ms(ends_in: Option<u64>) -> u64 {
    ends_in.map_or(0, |ms| ms.saturating_add(NET_MS))
}

/// The same for one that waits for acknowledgments. If the lock changes hands in between, it may
/// wait for the lock after all, as long as its `BLOCK` says; `BLOCK 0` never ends.
pub(crate) fn acks_net_ms<H: Host>(host: &H, block_ms: Option<u64>) -> u64 {
    let acks_ms = host.settings().bounds.confirm_ms.saturating_add(NET_MS);
    match block_ms {
        Some(0) => 0,
        block_ms => acks_ms.max(net_ms(block_ms)),
    }
}

/// Blocks the caller after [`Reply::MustWait`]. Returns the reply to send at once instead, if it
/// cannot wait.
pub(crate) fn park<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    ask: Acquire<'_>,
    said: &Arguments<'_>,
    wait_ms: Option<u64>,
) -> Option<Reply> {
    let bounds = host.settings().bounds;
    if let Err(refusal) = host.state(|state| state.manager.may_park(&bounds)) {
        return Some(Reply::Refused(refusal));
    }
    let parked = parked(host, name, said);
    // In a cluster a command can open only keys of its own slot, so the search runs after it.
    if !host.is_cluster()
        && let Some(wait) = wait_of(&parked, (&ask).into())
        && let Some(refusal) = deadlock(host, wait)
    {
        return Some(Reply::Refused(refusal));
    }
    let ends_in = said.block_ms.filter(|ms| *ms > 0);
    let net_ms = net_ms(ends_in);
    let Some(parking) = block(host, slice::from_ref(name), parked, ends_in, net_ms) else {
        return Some(Reply::NotNow { wait_ms });
    };
    let stays = decide(host, name, Input::Park(ask, parking));
    if matches!(stays, Some(Reply::MustWait { .. }))
        && host.is_cluster()
        && host.settings().detects_deadlocks
    {
        groups::search_soon(host, parking.waiter);
    }
    None
}

/// A request whose reply waits for acknowledgments.
#[derive(Clone, Copy)]
pub(crate) enum Confirmable<'a> {
    /// `RLOCK.ACQUIRE`
    Acquire(Acquire<'a>),
    /// `RLOCK.RENEW`
    Renew(Renew<'a>),
}

/// Blocks the caller after [`Reply::MustConfirm`]. Returns the reply to send at once instead, if it
/// cannot be blocked.
pub(crate) fn park_to_confirm<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    asks: Confirmable<'_>,
    said: &Arguments<'_>,
) -> Option<Reply> {
    if host.denies_blocking() {
        return Some(Reply::Refused(Refusal::CannotConfirm));
    }
    let net_ms = acks_net_ms(host, said.block_ms);
    let ends_in = said.block_ms.filter(|ms| *ms > 0);
    let (names, parked) = (slice::from_ref(name), parked(host, name, said));
    let Some(parking) = block(host, names, parked, ends_in, net_ms) else {
        return Some(Reply::Refused(Refusal::CannotConfirm));
    };
    let input = match asks {
        Confirmable::Acquire(ask) => Input::Park(ask, parking),
        Confirmable::Renew(ask) => Input::ParkRenew(ask, parking),
    };
    decide(host, name, input);
    None
}

fn parked<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Parked {
    let lock = LockId { db: host.db(), key: name.bytes().into() };
    let (owner, user): (Owner, Rc<[u8]>) = (said.owner.into(), host.user());
    Parked::new(host.client(), lock, owner, user, said.with_ttl)
}

/// Asks the server to block the caller at these keys.
pub(crate) fn block<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    parked: Parked,
    ends_in_ms: Option<u64>,
    net_ms: u64,
) -> Option<Parking> {
    let waiter = host.state(|state| state.manager.next_waiter());
    block_as(host, waiter, names, parked, (ends_in_ms, net_ms))
}

/// Asks the server to block the caller, who waits for several locks. It is blocked at none of their
/// keys: for each new key the server asks everybody who is blocked there, and a grant of many locks
/// makes many keys. The engine hears of values that come to free names otherwise
/// ([`crate::events::key_came`]).
pub(crate) fn block_for_several<H: Host>(
    host: &H,
    (names, waiter): (&[H::Name<'_>], WaiterId),
    parked: Parked,
    (ends_in_ms, net_ms): (Option<u64>, u64),
) -> Option<Parking> {
    host.watch_new_keys();
    let first = names.first().map_or(&[][..], KeyName::bytes);
    let at = LockId { db: host.db(), key: aside(first, host.is_cluster()).as_ref().into() };
    host.with_name(&at, |name| {
        block_as(host, waiter, slice::from_ref(name), parked, (ends_in_ms, net_ms))
    })
}

/// A name for no key, in the same hash slot; in a cluster a key without a hash tag is its own.
fn aside(key: &[u8], is_cluster: bool) -> Cow<'_, [u8]> {
    const ASIDE: &[u8] = b"\0rlock";
    if !is_cluster {
        return ASIDE.into();
    }
    let begin = key.iter().position(|byte| *byte == b'{');
    let from_tag = begin.and_then(|begin| key.get(begin..)).unwrap_or_default();
    let end = from_tag.iter().position(|byte| *byte == b'}').filter(|end| *end > 1);
    match end.and_then(|end| from_tag.get(..=end)) {
        Some(tag) => [tag, ASIDE].concat().into(),
        None => key.into(),
    }
}

/// The same for somebody who has waited with this number.
pub(crate) fn block_as<H: Host>(
    host: &H,
    waiter: WaiterId,
    names: &[H::Name<'_>],
    parked: Parked,
    (ends_in_ms, net_ms): (Option<u64>, u64),
) -> Option<Parking> {
    let blocked = host.block(names, waiter.get(), net_ms)?;
    let client = parked.client;
    host.state(|state| {
        state.manager.park_begins(waiter, parked);
        state.blocked.insert(waiter, blocked);
    });
    Some(Parking { waiter, client, ends_at: ends_in_ms.map(|ms| host.now().after_ms(ms)) })
}

/// Lets the manager decide for a caller that is now blocked. Returns `MustWait` or `Pending` if it
/// stays blocked; any other reply is sent later.
fn decide<H: Host>(host: &H, name: &H::Name<'_>, input: Input<'_>) -> Option<Reply> {
    let (Input::Park(_, parking) | Input::ParkRenew(_, parking)) = input else { return None };
    let reply = match carry_out::request(host, name, input) {
        Ok(reply @ (Reply::MustWait { .. } | Reply::Pending)) => return Some(reply),
        Ok(reply) => reply,
        Err(_) => Reply::Refused(Refusal::WrongType),
    };
    // The lock changed in between.
    let waiter = parking.waiter;
    answers::send_later(host, &Wake { waiter, reply, waited_us: 0, holds: 1, acks_us: None });
    None
}

/// A value may have come to the key of this blocked connection. The server reports it to everybody
/// who is blocked there. Who waits for several locks is blocked at none of them.
pub fn key_came<H: Host>(host: &H, waiter: WaiterId) {
    let is_awaited = host.state(|state| {
        let lock = state.manager.parked(waiter).map(|parked| parked.lock.clone());
        lock.is_some_and(|id| state.manager.key_came(id.db, &id.key))
    });
    if is_awaited {
        timers::settle(host);
    }
}

/// The reply to a blocked connection is due: it was granted, or its time has passed.
pub fn reply<H: Host>(host: &H, waiter: WaiterId) {
    let Some(parked) = host.state(|state| state.manager.parked(waiter).cloned()) else {
        return host.reply_null();
    };
    let reply = match &parked.end {
        WaitEnd::Saw(held) => return reply::to_await(host, held.as_deref()),
        WaitEnd::Replied(reply) => reply.clone(),
        WaitEnd::Waits | WaitEnd::Departed => unblocked(host, waiter, &parked),
    };
    let (key, owner) = (&parked.lock.key, parked.owner.as_ref().map_or(&[][..], Owner::as_bytes));
    host.reply_acquire(&reply, parked.with_ttl, key, owner);
}

/// The reply without one of ours: `CLIENT UNBLOCK`, or the server's own timeout.
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
    leave(host, waiter, Outcome::Unblocked);
    if !parked.is_observer() {
        host.observe(Happening::Unblocked(waiter, &reply));
    }
    reply
}

/// A blocked connection departed, or got an error instead of its reply.
pub fn gone<H: Host>(host: &H, waiter: WaiterId) {
    leave(host, waiter, Outcome::Disconnected);
}

/// A blocked connection may have read its reply by now, or `is_lost`: it never will. A grant in a
/// reply that may have been read stands, however soon the connection closes: its lease ends it.
///
/// The server calls this as soon as the reply is in the connection's output, and at the latest when
/// it forgets that the connection was blocked; then perhaps once more.
pub fn over<H: Host>(host: &H, waiter: WaiterId, is_lost: bool) {
    if is_lost {
        leave(host, waiter, Outcome::Disconnected);
    }
    let is_news = host.state(|state| {
        state.blocked.remove(&waiter);
        state.manager.heard_or_forgotten(waiter)
    });
    if is_news {
        timers::settle(host);
    }
}

/// The connection can no longer be granted the lock, or get the reply to its grant.
fn leave<H: Host>(host: &H, waiter: WaiterId, by: Outcome) {
    let now = host.now();
    host.state(|state| {
        state.blocked.remove(&waiter);
        state.manager.departed(waiter, by, now);
        // A command may not open the keys of another slot.
        state.has_late_groups |= state.manager.has_group_work();
    });
    timers::settle(host);
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
    let parked = host.state(|state| state.manager.parked(waiter).cloned());
    let Some(parked) = parked.filter(Parked::waits) else { return };
    if let Some(wait) = wait_of(&parked, Stand::Parked(waiter))
        && let Some(refusal) = deadlock(host, wait)
    {
        let now = host.now();
        host.state(|state| state.manager.refuse(waiter, now));
        let reply = Reply::Refused(refusal);
        answers::send(host, vec![Wake { waiter, reply, waited_us: 0, holds: 1, acks_us: None }]);
    }
}

/// The wait of a connection that is blocked, or about to be, for the search; observers have none.
fn wait_of<'a>(parked: &'a Parked, stand: Stand<'a>) -> Option<Wait<'a>> {
    let owner = parked.owner.as_ref()?;
    Some(Wait { lock: &parked.lock, owner, user: &parked.user, stand })
}

/// The refusal of a wait that closes a cycle, or would.
pub(crate) fn deadlock<H: Host>(host: &H, wait: Wait<'_>) -> Option<Refusal> {
    deadlock_without(host, wait, &GivenUp::nothing())
}

/// The same for a caller that gives this up.
pub(crate) fn deadlock_without<H: Host>(
    host: &H,
    wait: Wait<'_>,
    given_up: &GivenUp,
) -> Option<Refusal> {
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
