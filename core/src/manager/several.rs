//! How a request for several locks examines each of them.

use super::{At, Bounds, LockId, Manager};
use crate::value::count::less;
use crate::{Lock, OpenLock, Refusal, Token, Unit};

impl Manager {
    /// An open lock, ready to be judged.
    pub fn open_lock<'l>(&'l self, at: At<'_>, bounds: &Bounds, lock: &'l Lock) -> OpenLock<'l> {
        OpenLock {
            lock,
            volatile: self.locks.get_or_empty(at.db, at.key),
            tokens: &self.tokens,
            now: at.now,
            grace: self.grace_of(bounds.grace_ms, at.now),
            is_unswept: self.is_unseen(at.db, at.key),
        }
    }

    /// Checks that one more connection may be blocked.
    ///
    /// # Errors
    /// `rlock.max-waiters` is reached.
    pub fn may_park(&self, bounds: &Bounds) -> Result<(), Refusal> {
        let max = bounds.max_waiters;
        let observers = less(self.observers.len(), self.observers.told);
        let waiters = self.totals().waiters.saturating_add(observers);
        if waiters < max { Ok(()) } else { Err(Refusal::TooManyWaiters { max }) }
    }

    /// Checks that this many more holds may be tied to connections.
    ///
    /// # Errors
    /// `rlock.max-sessions` would be exceeded.
    pub fn may_tie(&self, bounds: &Bounds, more: usize) -> Result<(), Refusal> {
        match self.totals().sessions.saturating_add(more) <= bounds.max_sessions {
            true => Ok(()),
            false => Err(Refusal::TooManySessions),
        }
    }

    /// Whether one of these locks has more waiters than the request accepts (`MAXQUEUE`).
    pub fn is_line_too_long(&self, db: i32, unit: &Unit<'_, '_>) -> bool {
        let Some(max_queue) = unit.ask.max_queue else { return false };
        unit.wants.iter().any(|want| {
            let volatile = self.locks.get(db, want.key);
            volatile.is_some_and(|it| it.queue.others_in_line(unit.ask.owner) >= max_queue)
        })
    }

    /// Whether this owner has a ticket there.
    pub fn has_ticket(&self, id: &LockId, owner: &[u8]) -> bool {
        let volatile = self.locks.get(id.db, &id.key);
        volatile.is_some_and(|volatile| volatile.queue.ticket_of(owner).is_some())
    }

    /// A token for the holds that one request begins.
    ///
    /// # Errors
    /// No token below 2^53 remains.
    pub fn issue(&mut self, at: At<'_>) -> Result<Token, Refusal> {
        self.tokens.issue(at.now).ok_or(Refusal::NoTokenLeft)
    }
}
