//! Grants and renewals of several locks whose reply is held back until replicas have acknowledged
//! them.

use rlock_core::manager::{Group, HeldBackReply};
use rlock_core::{Confirm, EpochMs, Now, Reply, WaiterId};

use crate::host::Host;
use crate::open_locks::{AcquireAll, Judged, OpenLocks, Telling};
use crate::unit::RequestError;

/// The caller whose grant waits for acknowledgments, and for how long it waits.
#[derive(Clone, Copy)]
pub(crate) struct Patient {
    pub(crate) number: WaiterId,
    pub(crate) since: Now,
    /// Until when the caller waits.
    pub(crate) ends_at: Option<EpochMs>,
}

/// Enters all of the locks, which the owner may, and holds the reply back. [`Reply::Pending`], or
/// the refusal where there is no token, or where there may be no more sessions.
///
/// # Errors
/// [`RequestError`].
pub(crate) fn enter<'a, H: Host>(
    host: &H,
    locks: &mut OpenLocks<'_, '_, '_, 'a, H>,
    ask: AcquireAll<'a>,
    judged: &Judged,
    patient: Patient,
    group: Group,
) -> Result<Reply, RequestError> {
    let Patient { number, since, ends_at } = patient;
    let acks = ask.acks.max(judged.pending_acks);
    let token = match locks.prepare(ask, judged) {
        Ok(token) => token,
        Err((refused, _)) => return Ok(refused),
    };
    let now = locks.at(0).now;
    ask.waiter().map(|own| host.state(|state| state.manager.group_granted(own, now)));
    let confirm = Some(Confirm { acks, since, ends_at });
    locks.enter(ask, token, Telling { waiter: Some(number), confirm })?;
    let reply = HeldBackReply { acks, holds: judged.new_holds() };
    host.state(|state| state.manager.reply_is_held_back(number, group, reply));
    Ok(Reply::Pending)
}

/// Holds back the reply to a caller that began no hold.
pub(crate) fn hold_back<H: Host>(host: &H, waiter: WaiterId, acks: u8, group: Group) {
    let reply = HeldBackReply { acks, holds: 0 };
    host.state(|state| state.manager.reply_is_held_back(waiter, group, reply));
}
