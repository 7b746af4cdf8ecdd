//! Requests for several locks. Every key is looked at before any is changed; all are changed and in
//! the replication stream before anybody hears of it.

use std::rc::Rc;

use rlock_core::grammar::{Arguments, Want};
use rlock_core::manager::{Group, GroupKey, LockId, Wait};
use rlock_core::waits_for::Stand;
use rlock_core::{Input, OwnPlace, Owner, Parking, Refusal, Renew, Reply, Token, WaiterId};

use crate::given_up::GivenUp;
use crate::happening::Happening;
use crate::held_back::{self, Patient};
use crate::host::{During, Host};
use crate::open_locks::{AcquireAll, Judged, OpenLocks, Several, Telling};
use crate::reports::{self, Report};
use crate::sink::{self, Block};
use crate::unit::RequestError;
use crate::{blocked, groups, timers};

/// `RLOCK.MACQUIRE`: all of the locks, or none. [`Reply::MustConfirm`] if replicas must acknowledge
/// it first, and nothing changed; [`Reply::Pending`] if they must, and it is done for a caller who
/// waits for that (`patient`).
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn acquire<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
    patient: Option<Patient>,
) -> Result<Several, RequestError> {
    let mut locks = OpenLocks::open(host, names, wants)?;
    // Where groups wait, what has expired at all of the locks is followed by whom it lets in.
    if host.state(|state| state.manager.group_totals()[0] > 0) && locks.catch_up()? {
        let mut before = locks.into_reports();
        before.extend(groups::moves(host));
        locks = match OpenLocks::open(host, names, wants) {
            Ok(locks) => locks,
            Err(why) => {
                tell(host, before, None);
                return Err(why);
            }
        };
        locks.tell_also(before);
    }
    let said = match locks.judge_all(ask)? {
        Ok(judged) => {
            let number = wants.first().map_or(0, |want| want.number);
            (enter(host, &mut locks, wants, ask, &judged, patient)?, number)
        }
        Err(said) => said,
    };
    locks.finish(groups::carry_on, |_| {});
    Ok(said)
}

/// The owner may enter all of the locks. It does, unless its caller must wait first.
fn enter<'a, H: Host>(
    host: &H,
    locks: &mut OpenLocks<'_, '_, '_, 'a, H>,
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
    judged: &Judged,
    patient: Option<Patient>,
) -> Result<Reply, RequestError> {
    if ask.acks.max(judged.pending_acks) > 0 {
        return match patient {
            Some(patient) => {
                // It is granted at once.
                let patient = Patient { since: locks.at(0).now, ..patient };
                let group = new_group(host, wants, ask);
                held_back::enter(host, locks, ask, judged, patient, group)
            }
            None => Ok(locks
                .may_tie(ask, judged)
                .map_or_else(|(refused, _)| refused, |()| Reply::MustConfirm)),
        };
    }
    let token = match locks.prepare(ask, judged) {
        Ok(token) => token,
        Err((refused, _)) => return Ok(refused),
    };
    let reply = locks.enter(ask, token, Telling { waiter: None, confirm: None })?;
    host.observe(Happening::GrantedSeveral);
    Ok(reply)
}

/// Blocks the caller until replicas have acknowledged what it asks for.
///
/// # Errors
/// Why it cannot be blocked.
fn block_for_acks<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'_>],
    said: &Arguments<'_>,
    has_place: bool,
) -> Result<Parking, Refusal> {
    match said.tell {
        Some(_) => blocked::may_begin(host, said, has_place)?,
        None if host.denies_blocking() => return Err(Refusal::CannotConfirm),
        None => {}
    }
    let key = wants.first().ok_or(Refusal::CannotConfirm)?.key.into();
    let waiter = blocked::number_of(host, None);
    let parked = sink::asker(host, LockId { db: host.db(), key }, said);
    let parking = sink::open(host, waiter, names, parked, said, Block::of(said, true));
    parking.ok_or(Refusal::CannotConfirm)
}

/// Blocks the caller after [`Reply::MustConfirm`]. Returns the reply to send at once instead, if it
/// cannot be blocked.
pub(crate) fn park_to_confirm<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
    said: &Arguments<'_>,
    number: usize,
) -> Option<Several> {
    let own = blocked::told_group_wait(host, wants, false, said);
    let parking = match block_for_acks(host, names, wants, said, own.is_some()) {
        Ok(parking) => parking,
        Err(refusal) => return Some((Reply::Refused(refusal), number)),
    };
    let Parking { waiter, ends_at, .. } = parking;
    let patient = Patient { number: waiter, since: host.now(), ends_at };
    // The locks may have changed in between.
    match acquire(host, names, wants, ask, Some(patient)) {
        Ok((Reply::Pending, _)) => blocked::replaces(host, own),
        Ok((Reply::NotNow { .. }, _)) if said.block_ms.is_some() => {
            let ask = AcquireAll { place: OwnPlace::None, ..ask };
            stand(host, wants, ask, said, parking, None);
            blocked::replaces(host, own);
        }
        Ok((reply, _)) => {
            let reply = blocked::reply_instead(host, waiter, reply, said)?;
            return Some((reply, number));
        }
        Err(_) => {
            let refused = Reply::Refused(Refusal::WrongType);
            return Some((blocked::reply_instead(host, waiter, refused, said)?, number));
        }
    }
    None
}

/// Lets the caller of an `RLOCK.MACQUIRE` wait. Returns the reply to send at once instead, if it
/// cannot wait. `decided` is its reply if it does not wait, and the lock at which it is going to
/// stand in line. If that reply is [`Reply::MustConfirm`], it need not wait once its tickets are
/// withdrawn, and `acks` replicas must acknowledge the grant.
pub(crate) fn park<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'_>],
    ask: AcquireAll<'_>,
    asked: &Arguments<'_>,
    decided: Several,
    acks: u8,
) -> Option<Several> {
    let (reply, number) = decided;
    let must_wait = reply != Reply::MustConfirm;
    let reply = if must_wait { reply } else { Reply::NotNow { wait_ms: None } };
    let Some(want) = wants.iter().find(|want| want.number == number) else {
        return Some((reply, number));
    };
    let (db, owner) = (host.db(), Owner::from(ask.owner));
    if must_wait && is_full(host, wants, ask.owner, asked.max_queue) {
        let wait_ms = if let Reply::NotNow { wait_ms } = reply { wait_ms } else { None };
        return Some((Reply::NotNow { wait_ms }, number));
    }
    let own = blocked::told_group_wait(host, wants, false, asked);
    let is_late = must_wait || asked.tell.is_some() && acks > 0;
    if is_late && let Err(refusal) = blocked::may_begin(host, asked, own.is_some()) {
        return Some((Reply::Refused(refusal), number));
    }
    let lock = LockId { db, key: want.key.into() };
    let parked = sink::asker(host, lock.clone(), asked);
    let user = parked.user.clone();
    let claim = ask.claim(want);
    let wait = Wait { lock: &lock, owner: &owner, user: &user, stand: Stand::Asking(claim) };
    // In a cluster a command can open only keys of its own slot, so the search runs after it.
    let is_searched = !host.is_cluster();
    let given_up = GivenUp::of(host, wants, ask.owner);
    if is_searched
        && must_wait
        && let Some(refusal) = blocked::deadlock_without(host, wait, &given_up)
    {
        return Some((Reply::Refused(refusal), number));
    }
    let (waiter, block) = (blocked::number_of(host, None), Block::of(asked, true));
    let Some(parking) = sink::open(host, waiter, names, parked, asked, block) else {
        return Some((reply, number));
    };
    stand(host, wants, ask, asked, parking, Some(&lock).filter(|_| is_searched));
    blocked::replaces(host, own);
    None
}

/// A blocked caller begins to wait. A search for a cycle has been done for one that stands at
/// `searched`.
fn stand<H: Host>(
    host: &H,
    wants: &[Want<'_>],
    ask: AcquireAll<'_>,
    said: &Arguments<'_>,
    parking: Parking,
    searched: Option<&LockId>,
) {
    let mut group = new_group(host, wants, ask);
    (group.client, group.session) = (sink::client_of(host, said), ask.session);
    group.is_told = said.tell.is_some();
    group.ends_at = parking.ends_at;
    let mut told = groups::withdraw_tickets(host, &group);
    // Without the tickets it may stand elsewhere.
    let searched = searched.filter(|_| told.is_empty());
    host.state(|state| state.manager.group_begins(parking.waiter, group));
    told.extend(groups::moves(host));
    // The search has been done for the lock at which the request was going to stand in line.
    let stands_there = |lock: &&LockId| {
        host.state(|state| {
            let place = state.manager.group(parking.waiter).and_then(Group::next_key);
            place.is_some_and(|key| key.key == lock.key)
        })
    };
    groups::search_stood(host, searched.filter(stands_there).map(|_| parking.waiter));
    tell(host, told, Some(parking.waiter));
}

/// A group that waits for these locks.
pub(crate) fn new_group<H: Host>(host: &H, wants: &[Want<'_>], ask: AcquireAll<'_>) -> Group {
    let keys: Rc<[GroupKey]> = wants
        .iter()
        .map(|want| GroupKey { key: want.key.into(), mode: want.mode, limit: want.limit })
        .collect();
    let mut group = Group::new(host.db(), keys, Owner::from(ask.owner), ask.lease, host.now());
    group.acks = ask.acks;
    group
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
    reports::deliver(host, told, parked);
    timers::settle(host);
    if host.state(|state| state.manager.watches_commands()) {
        host.watch_commands();
        host.close_lost(During::Command);
    }
}

/// `RLOCK.MRELEASE`: every hold of the owner, or those with the token. Replies with their number,
/// before those who waited have their replies ([`crate::carry_out::request_count`]).
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn release<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    owner: &'a [u8],
    token: Option<Token>,
) -> Result<(), RequestError> {
    let mut locks = OpenLocks::open(host, names, wants)?;
    let mut ended: u64 = 0;
    for place in 0..wants.len() {
        if let Reply::Count(count) = locks.decide(place, Input::ReleaseAll(owner, token))? {
            ended = ended.saturating_add(count);
        }
    }
    locks.finish(groups::carry_on, |host| host.reply_integer(ended.cast_signed()));
    Ok(())
}

/// `RLOCK.MRENEW`: the owner's holds of all the locks, or none of them. [`Reply::MustConfirm`] if
/// replicas must acknowledge it before the reply, and nobody is blocked (`parking`).
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn renew<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: Renew<'a>,
    parking: Option<Parking>,
) -> Result<Several, RequestError> {
    let mut locks = OpenLocks::open(host, names, wants)?;
    locks.catch_up()?;
    let said = match (locks.acks_to_renew(ask)?, parking) {
        (Ok(0), _) => (locks.renew(ask, None)?, 0),
        (Ok(_), None) => (Reply::MustConfirm, 0),
        (Ok(acks), Some(parking)) => {
            let (owner, lease, session) = (ask.owner, ask.lease, None);
            let all = AcquireAll { owner, lease, session, acks, place: OwnPlace::None };
            let said = locks.renew(Renew { acks, ..ask }, Some(parking))?;
            held_back::hold_back(host, parking.waiter, acks, new_group(host, wants, all));
            (said, 0)
        }
        (Err(said), _) => said,
    };
    locks.finish(groups::carry_on, |_| {});
    Ok(said)
}

/// Blocks the caller of an `RLOCK.MRENEW` after [`Reply::MustConfirm`]. Returns the reply to send
/// at once instead, if it cannot be blocked.
pub(crate) fn park_renewal<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'_>],
    said: &Arguments<'_>,
) -> Option<Reply> {
    let own = blocked::told_group_wait(host, wants, true, said);
    let parking = match block_for_acks(host, names, wants, said, own.is_some()) {
        Ok(parking) => parking,
        Err(refusal) => return Some(Reply::Refused(refusal)),
    };
    // The locks may have changed in between.
    match renew(host, names, wants, said.renew(), Some(parking)) {
        Ok((Reply::Pending, _)) => blocked::replaces(host, own),
        Ok((reply, _)) => return blocked::reply_instead(host, parking.waiter, reply, said),
        Err(_) => {
            let refused = Reply::Refused(Refusal::WrongType);
            return blocked::reply_instead(host, parking.waiter, refused, said);
        }
    }
    None
}
