//! Requests for several locks. Every key is examined before any is changed; all are changed and
//! replicated before anything is reported.

use rlock_core::grammar::{Arguments, Want};
use rlock_core::manager::{Group, LockId, OwnWait, Parked, Same, Wait};
use rlock_core::unit::{acks_to_renew, catch_up, renew_all};
use rlock_core::waits_for::Stand;
use rlock_core::{Acquire, Judged, Owner, Parking, Renew, Reply, ReplyAbout, Unit, WaiterId};

use crate::given_up::GivenUp;
use crate::host::Host;
use crate::open_locks::OpenKeys;
use crate::reports::{self, Report};
use crate::unit::RequestError;
use crate::{blocked, groups, held_back, sink, timers};

/// `RLOCK.MACQUIRE`: all of the locks, or none. If replicas must acknowledge it first, the reply is
/// [`Reply::MustConfirm`], and nothing has changed; or [`Reply::Pending`] and the locks are
/// granted, if a `caller` waits for that.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn acquire<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    unit: &Unit<'_, 'a>,
    caller: Option<Parking>,
) -> Result<ReplyAbout, RequestError> {
    let mut locks = OpenKeys::open(host, names, unit.wants)?;
    // If expired holds end here, groups that wait for these locks get their turn first.
    let has_groups = host.state(|state| state.manager.group_totals()[0] > 0);
    if has_groups && catch_up(&mut locks, unit.wants.len())? {
        let mut before = locks.into_reports();
        before.extend(groups::moves(host, first_key(unit.wants)));
        locks = match OpenKeys::open(host, names, unit.wants) {
            Ok(locks) => locks,
            Err(why) => {
                tell(host, before, None);
                return Err(why);
            }
        };
        locks.tell_also(before);
    }
    let about = match unit.judge_all(&mut locks)? {
        Ok(judged) => unit.about_all(enter(host, &mut locks, unit, judged, caller)?),
        Err(about) => about,
    };
    locks.finish(groups::carry_on, |_| {});
    Ok(about)
}

/// The owner may enter all of the locks, and does so unless its caller must wait first.
fn enter<'a, H: Host>(
    host: &H,
    locks: &mut OpenKeys<'_, '_, '_, 'a, H>,
    unit: &Unit<'_, 'a>,
    judged: Judged,
    caller: Option<Parking>,
) -> Result<Reply, RequestError> {
    let ready = match unit.prepare(locks, judged, caller.is_some()) {
        Ok(ready) => ready,
        Err(reply) => return Ok(reply),
    };
    // It is granted at once, and gets its reply at once unless replicas must acknowledge it.
    let since = locks.at(0).now;
    let caller = caller.filter(|_| judged.acks > 0);
    let caller = caller.map(|caller| Parking { since, ..caller });
    held_back::enter(host, locks, unit, ready, caller)
}

/// Blocks the caller after [`Reply::MustConfirm`], as [`blocked::confirm`].
pub(crate) fn park_to_confirm<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    unit: &Unit<'_, 'a>,
    said: &Arguments<'_>,
) -> Option<Reply> {
    let own = told_wait(host, unit.wants, false, said);
    let decide = |parking| match acquire(host, names, unit, Some(parking))?.reply {
        Reply::NotNow { wait_ms } if said.block_ms.is_some() => {
            stand(host, unit, said, parking, None);
            Ok(Reply::MustWait { wait_ms })
        }
        reply => Ok(reply),
    };
    blocked::confirm(host, names, asker(host, unit.wants, said), said, own, true, decide)
}

/// The waiting request with TELL of the same owner and user for the same locks that this one
/// replaces.
pub(crate) fn told_wait<H: Host>(
    host: &H,
    wants: &[Want<&[u8]>],
    is_renewal: bool,
    said: &Arguments<'_>,
) -> Option<OwnWait> {
    blocked::told_wait(host, said, Same::Several { db: host.db(), wants, is_renewal })
}

/// Who asks for several locks.
fn asker<H: Host>(host: &H, wants: &[Want<&[u8]>], said: &Arguments<'_>) -> Parked {
    sink::asker(host, LockId { db: host.db(), key: first_key(wants).into() }, said)
}

/// A request names at least one key.
fn first_key<'k>(wants: &[Want<&'k [u8]>]) -> &'k [u8] {
    wants.first().map_or(&[], |want| want.key)
}

/// Lets the caller of an `RLOCK.MACQUIRE` wait. If it cannot wait, returns the reply to send at
/// once instead. `decided` has the reply that it gets if it does not wait, and the lock at which it
/// will stand in line. If that reply is [`Reply::MustConfirm`], it need not wait once its tickets
/// are withdrawn, but `acks` replicas must acknowledge the grant.
pub(crate) fn park<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    unit: &Unit<'_, '_>,
    asked: &Arguments<'_>,
    decided: ReplyAbout,
    acks: u8,
) -> Option<ReplyAbout> {
    let ReplyAbout { reply, number } = decided;
    let must_wait = reply != Reply::MustConfirm;
    let reply = if must_wait { reply } else { Reply::NotNow { wait_ms: None } };
    let about = |reply| Some(ReplyAbout { reply, number });
    let Some(want) = unit.wants.iter().find(|want| want.number == number) else {
        return about(reply);
    };
    let (db, owner) = (host.db(), Owner::from(unit.ask.owner));
    if must_wait && host.state(|state| state.manager.is_line_too_long(db, unit)) {
        return about(reply);
    }
    let own = told_wait(host, unit.wants, false, asked);
    let is_late = must_wait || asked.tell.is_some() && acks > 0;
    if is_late && let Err(refusal) = blocked::may_begin(host, asked, own.is_some()) {
        return about(Reply::Refused(refusal));
    }
    let lock = LockId { db, key: want.key.into() };
    let parked = sink::asker(host, lock.clone(), asked);
    let user = parked.user.clone();
    let claim = unit.claim(want);
    let wait = Wait { lock: &lock, owner: &owner, user: &user, stand: Stand::Asking(claim) };
    // In a Cluster, a command can open only keys of its own slot, so the search runs after it.
    let is_searched = !host.is_cluster();
    let given_up = GivenUp::of(host, unit.wants, unit.ask.owner);
    if is_searched
        && must_wait
        && let Some(refusal) = blocked::deadlock(host, wait, &given_up)
    {
        return about(Reply::Refused(refusal));
    }
    let waiter = blocked::number_of(host, None);
    let Some(parking) = sink::open(host, waiter, names, parked, asked, true) else {
        return about(reply);
    };
    stand(host, unit, asked, parking, Some(&lock).filter(|_| is_searched));
    blocked::replaces(host, own);
    None
}

/// A blocked caller begins to wait. If it stands at `searched`, the search for a cycle is done
/// already.
fn stand<H: Host>(
    host: &H,
    unit: &Unit<'_, '_>,
    said: &Arguments<'_>,
    parking: Parking,
    searched: Option<&LockId>,
) {
    let mut group = Group::new(host.db(), unit.wants, &unit.ask, &parking);
    group.is_told = said.tell.is_some();
    let mut told = groups::withdraw_tickets(host, &group);
    // Without the tickets, it may stand elsewhere.
    let searched = searched.filter(|_| told.is_empty());
    host.state(|state| state.manager.group_begins(parking.waiter, group));
    told.extend(groups::moves(host, first_key(unit.wants)));
    // The search was done for the lock at which the request was going to stand in line.
    let stands_there = |lock: &&LockId| {
        host.state(|state| {
            let place = state.manager.group(parking.waiter).and_then(Group::next_key);
            place.is_some_and(|key| key.key == lock.key)
        })
    };
    groups::search_stood(host, searched.filter(stands_there).map(|_| parking.waiter));
    tell(host, told, Some(parking.waiter));
}

/// Publishes and sends what a command did at several locks.
pub(crate) fn tell<H: Host>(host: &H, told: Vec<Report>, parked: Option<WaiterId>) {
    reports::deliver(host, told, parked);
    timers::settle_command(host);
}

/// `RLOCK.MRENEW`: the owner's holds of all the locks, or none of them. The reply is
/// [`Reply::MustConfirm`] if replicas must acknowledge the renewals first, and no connection is
/// blocked yet (`parking`).
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn renew<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<&'a [u8]>],
    said: &Arguments<'a>,
    parking: Option<Parking>,
) -> Result<ReplyAbout, RequestError> {
    let (mut locks, count) = (OpenKeys::open(host, names, wants)?, wants.len());
    let ask = said.renew();
    catch_up(&mut locks, count)?;
    let about = match acks_to_renew(&mut locks, wants, ask)? {
        Ok(acks) => {
            let reply = match parking {
                _ if acks == 0 => renew_all(&mut locks, count, ask, None)?,
                None => Reply::MustConfirm,
                Some(parking) => {
                    let asked = Acquire { acks, ..said.acquire(None) };
                    let group = Group::new(host.db(), wants, &asked, &parking);
                    let ask = Renew { acks, ..ask };
                    let reply = renew_all(&mut locks, count, ask, Some(parking))?;
                    host.state(|state| state.manager.group_is_pending(parking.waiter, group, 0));
                    reply
                }
            };
            ReplyAbout { reply, number: 0 }
        }
        Err(about) => about,
    };
    locks.finish(groups::carry_on, |_| {});
    Ok(about)
}

/// Blocks the caller of an `RLOCK.MRENEW` after [`Reply::MustConfirm`], as [`blocked::confirm`].
pub(crate) fn park_renewal<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<&[u8]>],
    said: &Arguments<'_>,
) -> Option<Reply> {
    let own = told_wait(host, wants, true, said);
    let decide = |parking| renew(host, names, wants, said, Some(parking)).map(|about| about.reply);
    blocked::confirm(host, names, asker(host, wants, said), said, own, true, decide)
}
