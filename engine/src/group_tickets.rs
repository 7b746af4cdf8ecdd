//! Tickets for several locks: places and turns that are kept for an owner who asks again.

use rlock_core::grammar::{Access, Arguments, SeveralKeys, Want};
use rlock_core::manager::{At, LockId, Wait};
use rlock_core::waits_for::Stand;
use rlock_core::{
    Acquire, Claim, LeaseMs, Lock, OwnPlace, Owner, Patience, Refusal, Reply, Standing, WaiterId,
};

use crate::blocked::OwnWait;
use crate::given_up::GivenUp;
use crate::held_back::{self, Asker};
use crate::host::{Host, KeyName, OpenKey};
use crate::open_locks::{AcquireAll, OpenLocks, Several};
use crate::several::{self, is_full, tell};
use crate::sink::{self, Block};
use crate::unit::RequestError;
use crate::{blocked, groups, timers};

/// What the owner of a request for several locks has already.
pub(crate) struct Own {
    /// The ticket for the same request.
    same: Option<WaiterId>,
    /// Tickets that it withdraws if it waits, or has a place.
    others: Vec<WaiterId>,
}

impl Own {
    fn of<H: Host>(host: &H, wants: &[Want<'_>], owner: &[u8]) -> Self {
        let (db, now) = (host.db(), host.now());
        host.state(|state| {
            let mut others = state.manager.group_tickets_of(db, owner, wants);
            let is_same = |waiter: &WaiterId| {
                let group = state.manager.group(*waiter);
                // A sweep is about to end a ticket whose window has passed.
                let lives = |at: rlock_core::EpochMs| !at.is_over_at(now);
                group.is_some_and(|group| group.wants(wants) && group.ends_at.is_none_or(lives))
            };
            let same = others.iter().position(is_same).map(|place| others.remove(place));
            Self { same, others }
        })
    }
}

/// Decides a request for several locks. `None`: the caller is blocked.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn request<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    keys: &SeveralKeys<'a>,
    said: &Arguments<'a>,
    mut ask: AcquireAll<'a>,
) -> Result<Option<Several>, RequestError> {
    let wants = keys.wants(said);
    let may_block = sink::may_wait(host, said);
    if let Some(own) = blocked::told_group_wait(host, &wants, (ask.owner, false), said)
        && !own.is_granted
    {
        return Ok(takes_place(host, names, &wants, ask, (said, own)));
    }
    let own = Own::of(host, &wants, ask.owner);
    ask.place = match own.same {
        Some(waiter) => OwnPlace::GroupTicket(waiter),
        None if may_block || said.queue.is_some() => OwnPlace::Ticket,
        None => OwnPlace::None,
    };
    if !may_block && said.queue.is_none() {
        let decided = several::acquire(host, names, &wants, ask, Asker::Caller)?;
        return Ok(confirmed(host, names, &wants, ask, (said, decided)));
    }
    // An error changes nothing: its tickets stay.
    if own.same.is_none() && lacks_sessions(host, names, &wants, ask, &own.others) {
        let number = wants.first().map_or(0, |want| want.number);
        return Ok(Some((Reply::Refused(Refusal::TooManySessions), number)));
    }
    // Those behind a ticket that is withdrawn are served before the request is judged.
    let mut is_left = !own.others.is_empty();
    let mut decided = match is_left {
        true => would_be(host, names, &wants, ask, &own.others)?,
        false => {
            let by = said.queue.map_or(Asker::Caller, Asker::Ticket);
            several::acquire(host, names, &wants, ask, by)?
        }
    };
    let waits = matches!(decided.0, Reply::NotNow { .. });
    if waits && !is_left && own.same.is_none() {
        is_left = !GivenUp::of(host, &wants, ask.owner, &[]).is_nothing();
        if is_left {
            decided = would_be(host, names, &wants, ask, &[])?;
        }
    }
    let is_patient = said.queue.is_some() || is_left;
    match decided.0 {
        Reply::NotNow { .. } => {}
        Reply::MustConfirm | Reply::Pending if is_patient => {}
        _ => return Ok(confirmed(host, names, &wants, ask, (said, decided))),
    }
    match (own.same, said.queue) {
        (Some(waiter), Some(window)) => {
            keep(host, waiter, (ask, window), &decided.0);
            Ok(Some(not_now(decided)))
        }
        (None, Some(window)) => {
            take(host, names, &wants, ask, (said, window, decided, own.others)).map(Some)
        }
        (Some(waiter), None) => Ok(park_ticket(host, names, ask, (said, decided, waiter))),
        (None, None) => Ok(several::park(host, names, &wants, ask, (said, decided, own.others))),
    }
}

/// A request takes the place of one with TELL. Returns the reply to send at once instead.
fn takes_place<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'_>],
    ask: AcquireAll<'_>,
    (said, own): (&Arguments<'_>, OwnWait),
) -> Option<Several> {
    let (waiter, number) = (own.waiter, wants.first().map_or(0, |want| want.number));
    let is_blocked = said.tell.is_none();
    if let Err(refusal) = blocked::may_begin(host, said, !is_blocked) {
        return Some((Reply::Refused(refusal), number));
    }
    let stands_at = host.state(|state| state.manager.stands_at(waiter));
    let first = wants.first().map(|want| LockId { db: host.db(), key: want.key.into() });
    let lock = stands_at.or(first)?;
    let parked = sink::asker(host, lock, said);
    let (client, session) = (parked.client, ask.session);
    let block = several::acks_block(host, said);
    let Some(parking) = sink::open(host, waiter, names, parked, said, block) else {
        return Some((Reply::NotNow { wait_ms: None }, number));
    };
    host.state(|state| {
        state.manager.group_is_told(waiter, !is_blocked);
        state.manager.group_needs(waiter, ask.acks);
        let wait = (ask.lease, parking.ends_at);
        state.manager.group_waits_for(waiter, (client, session), wait);
    });
    timers::settle(host);
    None
}

/// The reply to a caller that is not blocked, unless it is to be blocked for acknowledgments.
fn confirmed<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
    (said, (reply, number)): (&Arguments<'a>, Several),
) -> Option<Several> {
    match reply {
        Reply::MustConfirm => several::park_to_confirm(host, names, wants, ask, (said, number)),
        reply => Some((reply, number)),
    }
}

/// The owner of a ticket asked again, and is not told of a grant now.
fn keep<H: Host>(
    host: &H,
    ticket: WaiterId,
    (ask, window): (AcquireAll<'_>, LeaseMs),
    reply: &Reply,
) {
    let ends_at = host.now().after(window);
    host.state(|state| state.manager.keep_ticket(ticket, ask.lease, ends_at));
    if *reply == Reply::MustConfirm {
        match host.state(|state| state.manager.taken_by(ticket).is_some()) {
            true => held_back::asks_again(host, ticket, ask.acks),
            false => host.state(|state| state.manager.hold_back(ticket)),
        }
    }
    timers::settle(host);
}

/// The reply to an owner that has a ticket.
fn not_now((reply, number): Several) -> Several {
    match reply {
        Reply::MustConfirm | Reply::Pending => (Reply::NotNow { wait_ms: None }, number),
        reply => (reply, number),
    }
}

/// The reply to a request once these tickets of its owner are withdrawn: an error, or that it has
/// to wait. [`Reply::MustConfirm`] if it need not. Nothing changes.
fn would_be<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
    tickets: &[WaiterId],
) -> Result<Several, RequestError> {
    let mut locks = OpenLocks::open(host, names, wants)?;
    let judged = match locks.judge_all(ask)? {
        Ok(_) => Ok(()),
        Err(_) => locks.judge_without(ask, tickets),
    };
    locks.finish(groups::carry_on);
    let number = wants.first().map_or(0, |want| want.number);
    Ok(judged.map_or_else(|said| said, |()| (Reply::MustConfirm, number)))
}

/// The owner gets a ticket. If it reaches all locks now, it is granted.
fn take<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
    (said, window, decided, tickets): (&Arguments<'a>, LeaseMs, Several, Vec<WaiterId>),
) -> Result<Several, RequestError> {
    let (bounds, now) = (host.settings().bounds, host.now());
    let must_wait = matches!(decided.0, Reply::NotNow { .. });
    if must_wait && is_full(host, wants, ask.owner, said.max_queue) {
        return Ok(decided);
    }
    let mut group = several::new_group(host, wants, ask);
    (group.is_ticket, group.ends_at) = (true, Some(now.after(window)));
    let may = host.state(|state| {
        let manager = &state.manager;
        let of_groups = tickets.iter().filter_map(|waiter| manager.group(*waiter));
        let single = |want: &&Want<'_>| {
            manager.has_ticket(&LockId { db: group.db, key: want.key.into() }, ask.owner)
        };
        let fewer = of_groups.map(|group| group.keys.len()).sum::<usize>();
        let fewer = fewer.saturating_add(wants.iter().filter(single).count());
        manager.may_take_tickets(&bounds, (wants.len(), fewer))
    });
    if must_wait && let Err(refusal) = may {
        return Ok((Reply::Refused(refusal), decided.1));
    }
    let mut told = groups::withdraw_tickets(host, &group, tickets);
    let waiter = host.state(|state| {
        let waiter = state.manager.next_waiter();
        state.manager.group_begins(waiter, group);
        state.manager.ticket_asks(waiter, true);
        waiter
    });
    told.extend(groups::moves(host));
    groups::search_stood(host, None);
    let is_ready = host.state(|state| {
        state.manager.ticket_asks(waiter, false);
        state.manager.is_ready(waiter)
    });
    if !is_ready {
        tell(host, told, None);
        return Ok(not_now(decided));
    }
    let place = OwnPlace::GroupTicket(waiter);
    let ask = AcquireAll { place, ..ask };
    let by = Asker::Ticket(window);
    let said = several::acquire_after(host, names, wants, ask, (by, told))?;
    match said.0 {
        Reply::MustConfirm => host.state(|state| state.manager.hold_back(waiter)),
        // Nothing stays reserved for a request that was refused.
        Reply::Refused(_) => {
            let now = host.now();
            host.state(|state| state.manager.withdraw_group(waiter, now));
            tell(host, groups::carry_on(host), None);
        }
        _ => {}
    }
    timers::settle(host);
    Ok(not_now(said))
}

/// A blocked wait takes the places of the ticket over. Returns the reply to send at once instead.
fn park_ticket<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    ask: AcquireAll<'_>,
    (said, decided, waiter): (&Arguments<'_>, Several, WaiterId),
) -> Option<Several> {
    let number = decided.1;
    if let Err(refusal) = blocked::may_begin(host, said, false) {
        return Some((Reply::Refused(refusal), number));
    }
    let Some(lock) = host.state(|state| state.manager.stands_at(waiter)) else {
        return Some(not_now(decided));
    };
    let parked = sink::asker(host, lock.clone(), said);
    let (owner, user, client) = (Owner::from(ask.owner), parked.user.clone(), parked.client);
    host.state(|state| state.manager.ticket_is(waiter, false));
    let wait = Wait { lock: &lock, owner: &owner, user: &user, stand: Stand::Parked(waiter) };
    if !host.is_cluster()
        && let Some(refusal) = blocked::deadlock(host, wait)
    {
        host.state(|state| state.manager.ticket_is(waiter, true));
        return Some((Reply::Refused(refusal), number));
    }
    let ends_in_ms = said.block_ms.filter(|ms| *ms > 0);
    let block = Block { ends_in_ms, net_ms: blocked::net_ms(ends_in_ms), is_for_several: true };
    let Some(parking) = sink::open(host, waiter, names, parked, said, block) else {
        host.state(|state| state.manager.ticket_is(waiter, true));
        return Some(not_now(decided));
    };
    host.state(|state| {
        let wait = (ask.lease, parking.ends_at);
        state.manager.group_is_told(waiter, said.tell.is_some());
        state.manager.group_needs(waiter, ask.acks);
        state.manager.ticket_is_parked(waiter, (client, ask.session), wait);
    });
    let told = groups::moves(host);
    let searched = Some(waiter).filter(|_| !host.is_cluster());
    groups::search_stood(host, searched);
    if host.is_cluster() && host.settings().detects_deadlocks {
        groups::search_soon(host, waiter);
    }
    tell(host, told, Some(waiter));
    None
}

/// Whether there may be no more sessions for a request that could enter all of its locks once these
/// tickets of its owner are withdrawn: it is refused then, and they stay.
fn lacks_sessions<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'_>],
    ask: AcquireAll<'_>,
    tickets: &[WaiterId],
) -> bool {
    let bounds = host.settings().bounds;
    let is_near =
        |state: &crate::State<H::Blocked>| state.manager.may_tie(&bounds, wants.len()).is_err();
    if ask.session.is_none() || !host.state(|state| is_near(state)) {
        return false;
    }
    let mut more: usize = 0;
    for want in wants {
        let Some(name) = names.get(want.number) else { return false };
        let claim = ask.claim(want);
        match stands_without(host, name, claim, tickets) {
            Some((Standing::Covered(_), true)) => {}
            Some((Standing::Covered(_) | Standing::Open, _)) => more = more.saturating_add(1),
            _ => return false,
        }
    }
    host.state(|state| state.manager.may_tie(&bounds, more)).is_err()
}

/// How a newcomer would stand at a lock without these tickets of its owner, and whether the hold
/// that covers it has a session. `None` if there is no lock.
fn stands_without<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    claim: Claim<'_>,
    tickets: &[WaiterId],
) -> Option<(Standing, bool)> {
    let bounds = host.settings().bounds;
    let at = At { db: host.db(), key: name.bytes(), now: host.now() };
    let (mut key, free) = (host.open(name, Access::Reads), Lock::default());
    let lock = key.lock(&free)?;
    host.state(|state| {
        let standing = state.manager.judge_without(at, &bounds, (lock, claim), tickets);
        let has_session = match standing {
            Standing::Covered(hold) => state.manager.has_session(at, hold.token),
            _ => false,
        };
        Some((standing, has_session))
    })
}

/// A request for one lock that waits, or takes a place, withdraws its owner's tickets for several
/// that name this one: not if it is refused.
///
/// # Errors
/// Without the tickets it would be granted, but there may be no more sessions; or it would close a
/// cycle.
pub(crate) fn make_way_for_one<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    ask: &Acquire<'_>,
) -> Result<(), Refusal> {
    if ask.patience == Patience::None {
        return Ok(());
    }
    let want = Want { key: name.bytes(), mode: ask.mode, limit: ask.limit, number: 0 };
    let db = host.db();
    let tickets = host
        .state(|state| state.manager.group_tickets_of(db, ask.owner, std::slice::from_ref(&want)));
    // Hardly anybody has any; asking the server whether it denies blocking takes longer.
    if tickets.is_empty() {
        return Ok(());
    }
    let is_ticket = matches!(ask.patience, Patience::Ticket(_));
    let may_wait = ask.patience == Patience::Tell || !host.denies_blocking();
    let is_patient = is_ticket || may_wait;
    if !is_patient || is_refused(host, name, ask, &tickets)? {
        return Ok(());
    }
    let now = host.now();
    for ticket in tickets {
        host.state(|state| state.manager.withdraw_group(ticket, now));
    }
    let told = groups::carry_on(host);
    tell(host, told, None);
    Ok(())
}

/// Whether a request for one lock is refused, with these tickets of its owner or without them.
///
/// # Errors
/// It is refused only without them: there may be no more sessions, or it would close a cycle.
fn is_refused<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    ask: &Acquire<'_>,
    tickets: &[WaiterId],
) -> Result<bool, Refusal> {
    let (bounds, claim) = (host.settings().bounds, Claim::from(ask));
    let Some((standing, has_session)) = stands_without(host, name, claim, tickets) else {
        return Ok(true);
    };
    let present = if let Standing::Covered(hold) = standing { hold.depth } else { 0 };
    if ask.depth.is_some_and(|depth| depth > present.saturating_add(1)) {
        return Ok(true);
    }
    Ok(match standing {
        Standing::WouldDeadlock => {
            !ask.upgrade
                || is_second_upgrade(host, name, ask.owner)
                || is_beside_others(host, name, ask.owner)
                    && may_not_wait(host, name, ask, tickets)?
        }
        Standing::Covered(_) | Standing::Open => {
            if ask.session.is_some() && !has_session {
                host.state(|state| state.manager.may_tie(&bounds, 1))?;
            }
            let adds = ask.depth.is_none_or(|depth| depth > present);
            adds && present >= bounds.max_depth
        }
        Standing::Barred { .. } => may_not_wait(host, name, ask, tickets)?,
    })
}

/// Whether somebody else holds the lock, so that an upgrade has to wait.
fn is_beside_others<H: Host>(host: &H, name: &H::Name<'_>, owner: &[u8]) -> bool {
    let (mut key, free) = (host.open(name, Access::Reads), Lock::default());
    let lock = key.lock(&free);
    lock.is_some_and(|lock| lock.holds().any(|(other, ..)| other != owner))
}

fn is_second_upgrade<H: Host>(host: &H, name: &H::Name<'_>, owner: &[u8]) -> bool {
    let at = At { db: host.db(), key: name.bytes(), now: host.now() };
    let (mut key, free) = (host.open(name, Access::Reads), Lock::default());
    let lock = key.lock(&free);
    lock.is_some_and(|lock| host.state(|s| s.manager.is_upgraded_by_another(at, lock, owner)))
}

/// Whether a request that cannot enter is refused a place in the queue.
///
/// # Errors
/// It would close a cycle.
fn may_not_wait<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    ask: &Acquire<'_>,
    tickets: &[WaiterId],
) -> Result<bool, Refusal> {
    let (bounds, claim, db) = (host.settings().bounds, Claim::from(ask), host.db());
    let want = Want { key: name.bytes(), mode: ask.mode, limit: ask.limit, number: 0 };
    if is_full(host, std::slice::from_ref(&want), ask.owner, ask.max_queue) {
        return Ok(true);
    }
    let lock = LockId { db, key: name.bytes().into() };
    if matches!(ask.patience, Patience::Ticket(_)) {
        return Ok(host.state(|state| {
            let of_groups = tickets.iter().filter_map(|ticket| state.manager.group(*ticket));
            let fewer: usize = of_groups.map(|group| group.keys.len()).sum();
            let has_own = state.manager.has_ticket(&lock, ask.owner);
            state.manager.may_take_tickets(&bounds, (usize::from(!has_own), fewer)).is_err()
        }));
    }
    let user = if ask.patience == Patience::Tell { host.any_user() } else { host.user() };
    let (owner, stand) = (Owner::from(ask.owner), Stand::Asking(claim));
    let wait = Wait { lock: &lock, owner: &owner, user: &user, stand };
    let may_park = host.state(|state| match ask.patience {
        Patience::Tell => state.manager.may_tell(&bounds).is_ok(),
        _ => state.manager.may_park(&bounds).is_ok(),
    });
    let given_up = GivenUp::of(host, &[], ask.owner, tickets);
    if may_park && !host.is_cluster() {
        blocked::deadlock_without(host, wait, &given_up).map_or(Ok(()), Err)?;
    }
    Ok(!may_park)
}
