//! What a request for several locks gives up if it waits: its owner's tickets there. Whether it
//! waits, and for whom, is judged as if these were withdrawn already; nothing changes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rlock_core::grammar::Want;
use rlock_core::manager::{At, LockId, Manager, World};
use rlock_core::{Lock, Owner, Volatile};

use crate::host::Host;
use crate::unit;

/// Tickets that a request withdraws if it waits.
pub(crate) struct GivenUp {
    owner: Option<Owner>,
    /// The locks for which the owner has a ticket.
    locks: BTreeSet<LockId>,
}

impl GivenUp {
    /// The owner's tickets for these locks.
    pub(crate) fn of<H: Host>(host: &H, wants: &[Want<&[u8]>], owner: &[u8]) -> Self {
        let db = host.db();
        let locks = host.state(|state| {
            let ids = wants.iter().map(|want| LockId { db, key: want.key.into() });
            ids.filter(|id| state.manager.has_ticket(id, owner)).collect()
        });
        Self { owner: Some(owner.into()), locks }
    }

    /// Nothing is given up.
    pub(crate) fn nothing() -> Self {
        Self { owner: None, locks: BTreeSet::new() }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.locks.is_empty()
    }
}

/// The server's locks as the search sees them: without these tickets.
pub(crate) struct LocksLeft<'h, H> {
    host: &'h H,
    given_up: &'h GivenUp,
    /// The locks that would differ, in that state; added when they are examined.
    left: RefCell<BTreeMap<LockId, Rc<(Lock, Volatile)>>>,
}

impl<'h, H: Host> LocksLeft<'h, H> {
    pub(crate) fn new(host: &'h H, given_up: &'h GivenUp) -> Self {
        Self { host, given_up, left: RefCell::default() }
    }

    /// Looks at a lock in its present state.
    fn see<T>(&self, id: &LockId, see: impl FnOnce(&Lock, &Volatile) -> T) -> T {
        unit::look(self.host, id, |lock, state| {
            let unknown = Volatile::default();
            see(lock, state.manager.volatile(id.db, &id.key).unwrap_or(&unknown))
        })
    }

    /// The lock without the given-up ticket, and with the waiters behind it served.
    fn left_behind(&self, id: &LockId) -> Rc<(Lock, Volatile)> {
        if let Some(known) = self.left.borrow().get(id) {
            return known.clone();
        }
        let (host, bounds) = (self.host, self.host.settings().bounds);
        let owner = self.given_up.owner.as_ref().map_or(&[][..], Owner::as_bytes);
        let at = At { db: id.db, key: &id.key, now: host.now() };
        let held = self.see(id, |lock, _| lock.clone());
        let left =
            host.state(|state| state.manager.open_lock(at, &bounds, &held).without_ticket(owner));
        let left = Rc::new(left);
        self.left.borrow_mut().insert(id.clone(), left.clone());
        left
    }
}

impl<H: Host> World for LocksLeft<'_, H> {
    fn manager<T>(&mut self, see: impl FnOnce(&Manager) -> T) -> T {
        self.host.state(|state| see(&state.manager))
    }

    fn lock<T>(&mut self, id: &LockId, see: impl FnOnce(&Lock, &Volatile) -> T) -> T {
        if !self.given_up.locks.contains(id) {
            return self.see(id, see);
        }
        let left = self.left_behind(id);
        see(&left.0, &left.1)
    }

    fn is_left(&self, id: Option<&LockId>) -> bool {
        match id {
            Some(id) => self.given_up.locks.contains(id),
            None => !self.given_up.is_nothing(),
        }
    }
}
