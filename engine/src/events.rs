//! What the server reports outside commands. The callbacks may come at any time, so they only
//! notify the manager and set timers.

use rlock_core::manager::At;
use rlock_core::{ClientId, Lock};

use crate::host::{During, Host};
use crate::planted::PlantedFault;
use crate::{answers, timers};

/// A lock is removed from its key. A lock that the engine itself removes is empty, and its removal
/// is published with the change that caused it.
pub fn key_left<H: Host>(host: &H, db: i32, key: &[u8], lock: &Lock) {
    if lock.is_free() {
        return;
    }
    let at = At { db, key, now: host.now() };
    host.state(|state| state.manager.key_left(at, lock));
    settle(host, During::Removal);
}

/// The server expired or evicted a key, of whatever type.
pub fn key_lost<H: Host>(host: &H, db: i32, key: &[u8], is_evicted: bool) {
    host.state(|state| state.manager.key_lost(db, key, is_evicted));
}

/// A value appeared at a free name: connections that are blocked there may be granted or refused
/// now.
pub fn key_came<H: Host>(host: &H, db: i32, key: &[u8]) {
    if host.state(|state| state.manager.key_came(db, key)) {
        timers::settle(host);
    }
}

/// A lock was loaded, at this key if the server reports the key: none of its tokens is ever issued
/// again.
pub fn lock_loaded<H: Host>(host: &H, at: Option<(i32, &[u8])>, lock: &Lock) {
    if let Some((db, key)) = at {
        host.state(|state| state.manager.is_at(db, key, lock));
        if lock.hold_count() > 1 && host.state(|state| state.manager.decides()) {
            timers::settle(host);
        }
    }
    if !host.has_fault(PlantedFault::TokensUnseen) {
        host.state(|state| lock.holds().for_each(|(_, _, hold)| state.manager.saw(hold.token)));
    }
}

/// This server became a primary, or a replica.
pub fn set_role<H: Host>(host: &H, is_primary: bool) {
    let now = host.now();
    let refused = host.state(|state| state.manager.set_role(is_primary, now));
    answers::later(host, refused);
    settle(host, During::Callback);
}

/// The settings changed, or are read for the first time.
pub fn settings_are<H: Host>(host: &H) {
    let (now, grace_ms) = (host.now(), host.settings().bounds.grace_ms);
    host.state(|state| state.manager.grace_is(grace_ms, now));
    timers::settle(host);
}

/// A database was emptied; `None` means all of them.
pub fn flushed<H: Host>(host: &H, db: Option<i32>) {
    host.state(|state| state.manager.flushed(db));
    settle(host, During::Callback);
}

/// Slots of a Cluster moved to or from this node in one step: their keys may have been removed, or
/// are about to be.
pub fn slots_moved<H: Host>(host: &H) {
    host.state(|state| state.manager.slots_moved());
    settle(host, During::Callback);
}

/// Two databases are swapped.
pub fn swapped<H: Host>(host: &H, one: i32, other: i32) {
    let now = host.now();
    host.state(|state| state.manager.swapped(one, other, now));
    settle(host, During::Callback);
}

/// The server began to load its data, or has finished or given up.
pub fn loading_is<H: Host>(host: &H, is_over: bool) {
    host.state(|state| {
        if is_over {
            state.manager.loading_ends();
        } else {
            state.manager.loading_begins();
        }
    });
    timers::settle(host);
}

/// The server is about to run a command. The deadlines of sessions may have passed before a sweep
/// noticed: the process was stopped, or is busy. Another server may have granted their locks, so
/// these sessions are lost, and none of their connections' commands is executed.
pub fn command_is_read<H: Host>(host: &H) {
    let Some(next_end) = host.state(|state| state.manager.next_session_end()) else { return };
    let now = host.now();
    if next_end.is_over_at(now) {
        host.state(|state| state.manager.end_overdue(now));
        timers::settle(host);
        host.close_lost(During::Reading);
    }
}

/// A connection closed. Its sessions and its wait end with it, and so does a grant whose reply it
/// did not get.
pub fn connection_ended<H: Host>(host: &H, client: ClientId) {
    let now = host.now();
    host.state(|state| state.manager.connection_ended(client, now));
    timers::settle(host);
}

fn settle<H: Host>(host: &H, during: During) {
    timers::settle(host);
    host.close_lost(during);
}
