//! Grants and renewals of several locks whose reply is held back until replicas have acknowledged
//! them.

use rlock_core::manager::{Group, HeldBackReply};
use rlock_core::{AckDeadline, Judged, Ready, Reply, Unit, WaiterId};

use crate::happening::Happening;
use crate::host::Host;
use crate::open_locks::OpenKeys;
use crate::unit::RequestError;

/// Enters all of the locks. If replicas must acknowledge that, the reply to the caller is held back
/// ([`Reply::Pending`]), for this group.
///
/// # Errors
/// [`RequestError`].
pub(crate) fn enter<'a, H: Host>(
    host: &H,
    locks: &mut OpenKeys<'_, '_, '_, 'a, H>,
    unit: &Unit<'_, 'a>,
    ready: Ready,
    caller: Option<AckDeadline>,
    group: impl FnOnce() -> Group,
) -> Result<Reply, RequestError> {
    let Judged { acks, new_holds, .. } = ready.judged;
    let reply = unit.enter(locks, ready, caller)?;
    locks.send();
    match (&reply, caller) {
        (Reply::Pending, Some(caller)) => {
            hold_back(host, caller.waiter, HeldBackReply { acks, holds: new_holds }, group());
        }
        _ => host.observe(Happening::GrantedSeveral),
    }
    Ok(reply)
}

/// Holds back the reply to a caller.
pub(crate) fn hold_back<H: Host>(host: &H, waiter: WaiterId, reply: HeldBackReply, group: Group) {
    host.state(|state| state.manager.reply_is_held_back(waiter, group, reply));
}
