//! Grants of several locks, whose reply may wait until replicas have acknowledged them.

use rlock_core::manager::Group;
use rlock_core::{Acquire, Judged, Parking, Ready, Reply, Unit};

use crate::happening::Happening;
use crate::host::Host;
use crate::open_locks::OpenKeys;
use crate::unit::RequestError;

/// Enters all of the locks. If replicas must acknowledge that, the reply to the caller is held back
/// ([`Reply::Pending`]).
///
/// # Errors
/// [`RequestError`].
pub(crate) fn enter<'a, H: Host>(
    host: &H,
    locks: &mut OpenKeys<'_, '_, '_, 'a, H>,
    unit: &Unit<'_, 'a>,
    ready: Ready,
    caller: Option<Parking>,
) -> Result<Reply, RequestError> {
    let Judged { acks, new_holds, .. } = ready.judged;
    let reply = unit.enter(locks, ready, caller)?;
    locks.send();
    match (&reply, caller) {
        (Reply::Pending, Some(caller)) => {
            let ask = Acquire { acks, ..unit.ask };
            let group = Group::new(host.db(), unit.wants, &ask, &caller);
            host.state(|state| state.manager.group_is_pending(caller.waiter, group, new_holds));
        }
        _ => host.observe(Happening::GrantedSeveral),
    }
    Ok(reply)
}
