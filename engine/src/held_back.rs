//! Grants of several locks, whose reply may wait until replicas have acknowledged them.

use rlock_core::manager::Group;
use rlock_core::{Judged, Parking, Ready, Reply, Unit};

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
    caller: Option<Parking>,
    group: impl FnOnce(Parking) -> Group,
) -> Result<Reply, RequestError> {
    let Judged { acks, new_holds, .. } = ready.judged;
    let reply = unit.enter(locks, ready, caller)?;
    locks.send();
    match (&reply, caller) {
        (Reply::Pending, Some(caller)) => {
            let mut group = group(caller);
            group.acks = acks;
            host.state(|state| state.manager.group_is_pending(caller.waiter, group, new_holds));
        }
        _ => host.observe(Happening::GrantedSeveral),
    }
    Ok(reply)
}
