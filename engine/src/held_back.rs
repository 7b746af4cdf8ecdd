//! Grants and renewals of several locks whose reply is held back until replicas have acknowledged
//! them.

use rlock_core::manager::{Group, HeldBackReply};
use rlock_core::{Confirm, EpochMs, LeaseMs, Now, Reply, WaiterId};

use crate::acks;
use crate::host::Host;
use crate::open_locks::{AcquireAll, Judged, OpenLocks, Telling};
use crate::unit::RequestError;

/// Who asks for several locks.
#[derive(Clone, Copy)]
pub(crate) enum Asker {
    /// A caller that is not blocked.
    Caller,
    /// The owner of a ticket, which lasts for this window.
    Ticket(LeaseMs),
    /// A caller that is blocked until replicas have acknowledged it.
    Blocked(Patient),
}

/// How long a grant may wait for acknowledgments, and whose it is.
#[derive(Clone, Copy)]
pub(crate) struct Patient {
    /// The blocked caller, or the number of a ticket's grant.
    pub(crate) number: WaiterId,
    pub(crate) since: Now,
    /// Until when the caller waits, or its ticket lasts.
    pub(crate) ends_at: Option<EpochMs>,
    /// The ticket, if nobody is blocked.
    pub(crate) ticket: Option<WaiterId>,
}

/// Enters all of the locks, which the owner may, and holds the reply back. [`Reply::Pending`], or
/// the refusal where there is no token, or where there may be no more sessions.
///
/// # Errors
/// [`RequestError`].
pub(crate) fn enter<'a, H: Host>(
    host: &H,
    locks: &mut OpenLocks<'_, '_, '_, 'a, H>,
    (ask, judged): (AcquireAll<'a>, &Judged),
    patient: Patient,
    group: Group,
) -> Result<Reply, RequestError> {
    let Patient { number, since, ends_at, ticket } = patient;
    let acks = ask.acks.max(judged.pending_acks);
    let token = match locks.prepare(ask, judged) {
        Ok(token) => token,
        Err((refused, _)) => return Ok(refused),
    };
    let now = locks.at(0).now;
    let own = ask.waiter().or(ask.ticket()).filter(|own| Some(*own) != ticket);
    own.map(|own| host.state(|state| state.manager.group_granted(own, now)));
    let confirm = Some(Confirm::Await { acks, since, ends_at });
    let telling = Telling { waiter: Some(number), ticket: own, confirm };
    locks.enter(ask, token, telling)?;
    let told_by = ends_at.unwrap_or(now.after(LeaseMs::MAX));
    let reply = HeldBackReply {
        acks,
        holds: judged.new_holds(),
        ticket,
        told_by,
        deadline: now.after(ask.lease),
        is_acked: false,
    };
    host.state(|state| state.manager.reply_is_held_back(number, group, reply));
    Ok(Reply::Pending)
}

/// The owner of a ticket takes what it has reached. It is told when replicas have acknowledged that
/// and it asks again, within `window`.
///
/// # Errors
/// [`RequestError`].
pub(crate) fn take<'a, H: Host>(
    host: &H,
    locks: &mut OpenLocks<'_, '_, '_, 'a, H>,
    (ask, judged): (AcquireAll<'a>, &Judged),
    (ticket, window): (WaiterId, LeaseMs),
    group: Group,
) -> Result<Reply, RequestError> {
    let (number, now) = (host.state(|state| state.manager.next_waiter()), locks.at(0).now);
    let patient =
        Patient { number, since: now, ends_at: Some(now.after(window)), ticket: Some(ticket) };
    // The owner counts the lease from when it asks again. Its session begins then.
    let ask = AcquireAll { lease: ask.lease.with_window(window), session: None, ..ask };
    enter(host, locks, (ask, judged), patient, group)
}

/// The owner of a ticket asks again before replicas have acknowledged what it was granted.
pub(crate) fn asks_again<H: Host>(host: &H, ticket: WaiterId, acks: u8) {
    let late_at = host.now().after_ms(host.settings().bounds.confirm_ms);
    host.state(|state| state.manager.ticket_wants(ticket, acks, late_at));
    // The subscription may have ended since the replicas were asked first.
    acks::watch(host);
}

/// Holds back the reply to a blocked caller that began no hold.
pub(crate) fn hold_back<H: Host>(host: &H, (waiter, acks): (WaiterId, u8), group: Group) {
    let at = host.now().ms();
    let reply =
        HeldBackReply { acks, holds: 0, ticket: None, told_by: at, deadline: at, is_acked: false };
    host.state(|state| state.manager.reply_is_held_back(waiter, group, reply));
}
