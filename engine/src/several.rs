//! Requests for several locks. Every key is looked at before any is changed; all are changed and in
//! the replication stream before anybody hears of it.

use std::rc::Rc;

use rlock_core::grammar::{Arguments, Want};
use rlock_core::manager::{Group, GroupKey, LockId, Parked, Wait};
use rlock_core::waits_for::Stand;
use rlock_core::{Claim, Input, OwnPlace, Owner, Renew, Reply, Token, WaiterId};

use crate::happening::Happening;
use crate::host::{During, Host};
use crate::open_locks::{AcquireAll, OpenLocks, Several};
use crate::reports::Report;
use crate::unit::RequestError;
use crate::{blocked, groups, reports, timers};

/// `RLOCK.MACQUIRE`: all of the locks, or none.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn acquire<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
) -> Result<Several, RequestError> {
    acquire_after(host, names, wants, ask, Vec::new())
}

/// The same in a command that did something `before`, which is not told yet.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn acquire_after<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
    before: Vec<Report>,
) -> Result<Several, RequestError> {
    let mut locks = match OpenLocks::open(host, names, wants) {
        Ok(locks) => locks,
        Err(why) => {
            tell(host, before, None);
            return Err(why);
        }
    };
    locks.tell_also(before);
    let said = match locks.judge_all(ask)? {
        Ok(standings) => match locks.prepare(ask, &standings) {
            Ok(token) => {
                if let OwnPlace::GroupTicket(waiter) = ask.place {
                    let now = host.now();
                    host.state(|state| state.manager.group_granted(waiter, now));
                }
                let reply = locks.enter(ask, token)?;
                host.observe(Happening::GrantedSeveral);
                Ok((reply, 0))
            }
            Err(said) => Ok(said),
        },
        Err(said) => Ok(said),
    };
    locks.finish(groups::carry_on);
    said
}

/// The caller of an `RLOCK.MACQUIRE` that may not enter now waits, blocked. Returns the reply to
/// send at once instead, if it cannot wait. `said` is its reply if it does not wait, and at which
/// lock it is going to stand.
pub(crate) fn park<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'_>],
    ask: AcquireAll<'_>,
    (asked, said, tickets): (&Arguments<'_>, Several, Vec<WaiterId>),
) -> Option<Several> {
    let bounds = host.settings().bounds;
    let (reply, number) = said;
    let Some(want) = wants.iter().find(|want| want.number == number) else {
        return Some((reply, number));
    };
    let (db, owner) = (host.db(), Owner::from(ask.owner));
    if is_full(host, wants, ask.owner, asked.max_queue) {
        let wait_ms = if let Reply::NotNow { wait_ms } = reply { wait_ms } else { None };
        return Some((Reply::NotNow { wait_ms }, number));
    }
    if let Err(refusal) = host.state(|state| state.manager.may_park(&bounds)) {
        return Some((Reply::Refused(refusal), number));
    }
    let lock = LockId { db, key: want.key.into() };
    let (client, user) = (host.client(), host.user());
    let claim = Claim { owner: ask.owner, mode: want.mode, upgrade: false, limit: want.limit };
    let wait = Wait { lock: &lock, owner: &owner, user: &user, stand: Stand::Asking(claim) };
    // In a cluster a command can open only keys of its own slot, so the search runs after it. Where
    // the owner's hold waits for acknowledgements, nobody else is in the way.
    let is_searched = !host.is_cluster() && matches!(reply, Reply::NotNow { .. });
    if is_searched && let Some(refusal) = blocked::deadlock(host, wait) {
        return Some((Reply::Refused(refusal), number));
    }
    let parked = Parked::new(client, lock.clone(), owner.clone(), user, asked.with_ttl);
    let ends_in = asked.block_ms.filter(|ms| *ms > 0);
    let net_ms = blocked::net_ms(ends_in);
    let Some(parking) = blocked::block(host, names, parked, ends_in, net_ms) else {
        return Some((reply, number));
    };
    let mut group = new_group(host, wants, ask);
    (group.client, group.session, group.ends_at) = (client, ask.session, parking.ends_at);
    let mut told = groups::withdraw_tickets(host, &group, tickets);
    // Without the tickets it may stand elsewhere.
    let is_searched = is_searched && told.is_empty();
    host.state(|state| state.manager.group_begins(parking.waiter, group));
    told.extend(groups::moves(host));
    // The search has been done for where it was going to stand.
    let stands_there = host.state(|state| {
        let place = state.manager.group(parking.waiter).and_then(Group::next_key);
        place.is_some_and(|key| key.key == lock.key)
    });
    groups::search_stood(host, Some(parking.waiter).filter(|_| stands_there && is_searched));
    tell(host, told, Some(parking.waiter));
    None
}

/// A group that waits for these locks.
pub(crate) fn new_group<H: Host>(host: &H, wants: &[Want<'_>], ask: AcquireAll<'_>) -> Group {
    let keys: Rc<[GroupKey]> = wants
        .iter()
        .map(|want| GroupKey { key: want.key.into(), mode: want.mode, limit: want.limit })
        .collect();
    Group::new(host.db(), keys, Owner::from(ask.owner), ask.lease, host.now())
}

/// Whether more wait at one of the locks than a newcomer accepts.
pub(crate) fn is_full<H: Host>(
    host: &H,
    wants: &[Want<'_>],
    owner: &[u8],
    most: Option<usize>,
) -> bool {
    let Some(most) = most else { return false };
    let db = host.db();
    host.state(|state| {
        wants.iter().any(|want| state.manager.others_in_line(db, want.key, owner) >= most)
    })
}

/// Tells what a command did at several locks.
pub(crate) fn tell<H: Host>(host: &H, told: Vec<Report>, parked: Option<WaiterId>) {
    reports::publish(host, &told);
    reports::answer(host, told, parked);
    timers::settle(host);
    if host.state(|state| state.manager.watches_commands()) {
        host.watch_commands();
        host.close_lost(During::Command);
    }
}

/// `RLOCK.MRELEASE`: every hold of the owner, or those with the token. Replies with their number.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn release<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    (owner, token): (&'a [u8], Option<Token>),
) -> Result<u64, RequestError> {
    let mut locks = OpenLocks::open(host, names, wants)?;
    let mut ended: u64 = 0;
    for place in 0..wants.len() {
        if let Reply::Count(count) = locks.decide(place, Input::ReleaseAll(owner, token))? {
            ended = ended.saturating_add(count);
        }
    }
    locks.finish(groups::carry_on);
    Ok(ended)
}

/// `RLOCK.MRENEW`: the owner's holds of all the locks, or none of them.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn renew<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: Renew<'a>,
) -> Result<Several, RequestError> {
    let mut locks = OpenLocks::open(host, names, wants)?;
    locks.catch_up()?;
    let said = locks.renew(ask);
    locks.finish(groups::carry_on);
    said
}
