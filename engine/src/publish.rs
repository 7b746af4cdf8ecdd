//! Keyspace notifications that do not come from a change of this step: of locks that something
//! other than RLOCK removed, and of turns of tickets.

use std::ffi::CString;

use rlock_core::manager::LockId;

use crate::gate;
use crate::happening::Happening;
use crate::host::{Gate, Host, KeyName};

/// Whether nothing is to be published.
pub(crate) fn is_quiet<H: Host>(host: &H) -> bool {
    host.state(|state| state.manager.is_quiet())
}

/// Publishes removed locks, except those that move with their slot: in the next loop iteration, or
/// before the next event of any lock.
pub(crate) fn removed<H: Host>(host: &H) {
    let is_primary = host.state(|state| state.manager.is_primary());
    // The commands of a node that migrates a slot are not redirected: what they remove is handled
    // afterward, like any other removal.
    if is_quiet(host) || is_primary && host.is_from_primary() {
        return;
    }
    let now = host.now();
    let removed = host.state(|state| state.manager.take_removed(now));
    for lock in removed {
        let id = LockId { db: lock.db, key: lock.key.as_slice().into() };
        host.with_name(&id, |name| {
            if !host.is_cluster() || !is_primary || gate::of(host, name) != Gate::Elsewhere {
                host.notify(lock.event.name(), name);
            }
        });
        if is_primary {
            host.observe(Happening::Removed(&lock));
        }
    }
}

/// Publishes that a ticket has its turn. The event has the owner's name unescaped, so that the
/// owner can subscribe to it; only a NUL, which no event can contain, becomes four characters.
pub(crate) fn turn<H: Host>(host: &H, name: &H::Name<'_>, owner: &[u8]) {
    let mut event = b"rlock.turn:".to_vec();
    for &byte in owner {
        match byte {
            0 => event.extend_from_slice(br"\x00"),
            byte => event.push(byte),
        }
    }
    host.notify(&CString::new(event).unwrap_or_default(), name);
    host.observe(Happening::Turn { db: host.db(), key: name.bytes(), owner });
}
