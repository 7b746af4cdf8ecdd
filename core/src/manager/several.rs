//! Requests for several locks: looking at each of them.

use super::{At, Bounds, LockId, Manager};
use crate::value::count::less;
use crate::volatile::queue::Place;
use crate::{
    Claim, Effects, EpochMs, GroupStand, Input, Lock, Now, OwnPlace, Refusal, Standing, Step,
    StepContext, Token, Volatile, WaiterId,
};

/// How many of a queue are served on trial before all of them are.
const FIRST_IN_LINE: usize = 64;

impl Manager {
    /// Whether this lock has to be caught up with before [`Manager::judge`]: something came due, or
    /// the grace is over.
    pub fn is_overdue(&self, at: At<'_>, bounds: &Bounds, lock: &Lock) -> bool {
        let volatile = self.locks.get_or_empty(at.db, at.key);
        let grace_is_over =
            volatile.grace.is_some() && self.grace_of(bounds.grace_ms, at.now).is_none();
        grace_is_over || self.is_unseen(at.db, at.key) || lock.is_overdue(volatile, at.now)
    }

    /// Judges how a newcomer with the holds of its owner, or one with this place, stands at this
    /// lock.
    pub fn judge(
        &self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &Lock,
        claim: Claim<'_>,
        place: OwnPlace,
    ) -> Standing {
        let volatile = self.locks.get_or_empty(at.db, at.key);
        lock.judge(volatile, claim, place, self.grace_of(bounds.grace_ms, at.now), at.now)
    }

    /// What the time to wait is at a lock that the group has not reached, as for
    /// [`crate::Reply::NotNow`]; `None` where nothing is in its way.
    pub fn group_wait_ms(
        &self,
        waiter: WaiterId,
        at: At<'_>,
        bounds: &Bounds,
        lock: &Lock,
        claim: Claim<'_>,
    ) -> Option<Option<u64>> {
        let volatile = self.locks.get_or_empty(at.db, at.key);
        if volatile.queue.group_stand(waiter) == Some(GroupStand::Line) {
            return Some(lock.estimated_wait_of(volatile, waiter, at.now));
        }
        match self.judge(at, bounds, lock, claim, OwnPlace::None) {
            Standing::Barred { wait_ms } => Some(wait_ms),
            Standing::WouldDeadlock => Some(None),
            Standing::Covered(_) | Standing::Open => None,
        }
    }

    /// Judges how a newcomer would stand at this lock if its owner's ticket there were withdrawn
    /// and those behind it were served. Nothing changes.
    pub fn judge_without(
        &self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &Lock,
        claim: Claim<'_>,
    ) -> Standing {
        let volatile = self.locks.get_or_empty(at.db, at.key);
        let is_stranger = lock.holds_of(claim.owner, None).next().is_none()
            && volatile.queue.blocked_of(claim.owner, Place::FIRST).next().is_none();
        let is_plain = is_stranger && !self.is_overdue(at, bounds, lock);
        // The hold of another owner is in the way, whoever waits: nothing is to be copied. Who has
        // nobody before it but its own tickets is told when that hold ends.
        let own = || usize::from(volatile.queue.ticket_of(claim.owner).is_some());
        let has_others = || volatile.queue.len() > own();
        if is_plain
            && has_others()
            && lock.blocked_until(Claim { upgrade: true, ..claim }).is_some()
        {
            return self.judge(at, bounds, lock, claim, OwnPlace::Ticket);
        }
        if is_plain && volatile.queue.len() > FIRST_IN_LINE {
            let first = volatile.with_first(FIRST_IN_LINE);
            let (standing, is_ahead) = self.served_without(at, bounds, lock, claim, first);
            // One of the first stays in line, before all others.
            if is_ahead {
                return standing;
            }
        }
        self.served_without(at, bounds, lock, claim, volatile.clone()).0
    }

    /// Serves a copy of the queue without the owner's ticket. Returns how a newcomer stands then,
    /// and whether somebody is in line.
    fn served_without(
        &self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &Lock,
        claim: Claim<'_>,
        mut volatile: Volatile,
    ) -> (Standing, bool) {
        let mut lock = lock.clone();
        let now = at.now;
        withdraw_from(&mut volatile, claim.owner);
        let grace = self.serve_copy(&mut lock, &mut volatile, bounds, now);
        let standing = lock.judge(&volatile, claim, OwnPlace::None, grace, now);
        (standing, volatile.queue.head().is_some())
    }

    /// A copy of this lock, and of what is remembered of it, without the owner's ticket, and those
    /// behind it served. Of very many who wait, only the first ones are in it.
    pub fn without_ticket(
        &self,
        at: At<'_>,
        bounds: &Bounds,
        mut lock: Lock,
        owner: &[u8],
    ) -> (Lock, Volatile) {
        const MOST: usize = 2 * crate::waits_for::STEPS_MAX;
        let volatile = self.locks.get_or_empty(at.db, at.key);
        let mut volatile = match volatile.queue.len() > MOST {
            true => volatile.with_first(MOST),
            false => volatile.clone(),
        };
        withdraw_from(&mut volatile, owner);
        self.serve_copy(&mut lock, &mut volatile, bounds, at.now);
        (lock, volatile)
    }

    /// Serves the queue of a copy. Returns until when the grace lasts.
    fn serve_copy(
        &self,
        lock: &mut Lock,
        volatile: &mut Volatile,
        bounds: &Bounds,
        now: Now,
    ) -> Option<EpochMs> {
        let (mut tokens, mut names) = (self.tokens.clone(), self.names.clone());
        let (mut effects, grace) = (Effects::default(), self.grace_of(bounds.grace_ms, now));
        let moment = StepContext::unlimited(now, &mut tokens, &mut names);
        let moment = StepContext { grace, ..moment };
        Step { lock, volatile, moment, effects: &mut effects }.apply(Input::Tick);
        grace
    }

    /// Whether the hold with this token is tied to a connection.
    pub fn has_session(&self, at: At<'_>, token: Token) -> bool {
        let volatile = self.locks.get(at.db, at.key);
        volatile.is_some_and(|volatile| volatile.sessions.get(token).is_some())
    }

    /// Another connection may be blocked.
    ///
    /// # Errors
    /// `rlock.max-waiters` is reached.
    pub fn may_park(&self, bounds: &Bounds) -> Result<(), Refusal> {
        let max = bounds.max_waiters;
        let observers = less(self.observers.len(), self.observers.told);
        let waiters = self.totals().waiters.saturating_add(observers);
        if waiters < max { Ok(()) } else { Err(Refusal::TooManyWaiters { max }) }
    }

    /// So many more holds may be tied to connections.
    ///
    /// # Errors
    /// `rlock.max-sessions` would be exceeded.
    pub fn may_tie(&self, bounds: &Bounds, more: usize) -> Result<(), Refusal> {
        match self.totals().sessions.saturating_add(more) <= bounds.max_sessions {
            true => Ok(()),
            false => Err(Refusal::TooManySessions),
        }
    }

    /// How many wait for a lock, apart from this owner's ticket.
    pub fn others_in_line(&self, db: i32, key: &[u8], owner: &[u8]) -> usize {
        let Some(volatile) = self.locks.get(db, key) else { return 0 };
        let own = usize::from(volatile.queue.ticket_of(owner).is_some());
        volatile.queue.len().saturating_sub(own)
    }

    /// Whether this owner has a ticket there.
    pub fn has_ticket(&self, id: &LockId, owner: &[u8]) -> bool {
        let volatile = self.locks.get(id.db, &id.key);
        volatile.is_some_and(|volatile| volatile.queue.ticket_of(owner).is_some())
    }

    /// A token for the holds that one request begins.
    ///
    /// # Errors
    /// There is none left.
    pub fn issue(&mut self, at: At<'_>) -> Result<Token, Refusal> {
        self.tokens.issue(at.now).ok_or(Refusal::NoTokenLeft)
    }
}

fn withdraw_from(volatile: &mut Volatile, owner: &[u8]) {
    let own = volatile.queue.ticket_of(owner);
    own.map(|place| volatile.queue.remove(place));
}
