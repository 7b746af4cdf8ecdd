//! An open lock, which a request for several locks examines before anything changes.

use std::rc::Rc;

use crate::step::input::{Acquire, Effects, Input, StepContext};
use crate::step::several::{OwnPlace, Standing};
use crate::volatile::owner_names::OwnerNames;
use crate::volatile::queue::groups::GroupStand;
use crate::{EpochMs, Lock, Now, Step, Tokens, Volatile, WaiterId};

/// How many waiters of a queue are served on trial, before all of them are.
const FIRST_IN_LINE: usize = 64;

/// A lock, with everything that a judgment about it depends on.
#[derive(Clone, Copy, Debug)]
pub struct OpenLock<'l> {
    /// The lock.
    pub lock: &'l Lock,
    /// The lock's waiters and sessions.
    pub volatile: &'l Volatile,
    /// Where the tokens of new holds come from.
    pub tokens: &'l Tokens,
    /// The server's clock.
    pub now: Now,
    /// Nobody enters before this.
    pub grace: Option<EpochMs>,
    /// Whether the lock may have changed since its last sweep.
    pub is_unswept: bool,
}

impl OpenLock<'_> {
    /// Whether due items must be handled at this lock before it is judged, or its grace period is
    /// over.
    pub fn is_overdue(&self) -> bool {
        let Self { lock, volatile, now, .. } = *self;
        let is_due = |at: EpochMs| at.is_over_at(now);
        volatile.grace.is_some() && self.grace.is_none()
            || self.is_unswept
            || volatile.has_to_settle()
            || volatile.next_alarm().is_some_and(is_due)
            || lock.holders.first_over(now).is_some()
            || lock.holders.ended_until().is_some()
            || lock.has_void_turns(volatile, now)
    }

    /// How a newcomer stands here, given its owner's holds and its own place in the queue.
    pub fn standing(&self, claim: &Acquire<'_>, place: OwnPlace) -> Standing {
        self.lock.judge(self.volatile, claim, place, self.grace, self.now)
    }

    /// How a newcomer would stand here if its owner's ticket were withdrawn and the waiters behind
    /// it were served. Nothing changes.
    pub fn standing_without_ticket(&self, claim: &Acquire<'_>) -> Standing {
        let Self { lock, volatile, .. } = *self;
        let is_stranger = lock.holds_of(claim.owner, None, None).next().is_none()
            && volatile.queue.blocked_of(claim.owner, None).next().is_none();
        let is_plain = is_stranger && !self.is_overdue();
        // Another owner's hold is in the way, whoever waits, so no copy is needed. A request that
        // has only its owner's tickets ahead of it gets the time at which that hold ends.
        let has_others = || volatile.queue.others_in_line(claim.owner) > 0;
        if is_plain
            && has_others()
            && lock.blocked_until(&Acquire { upgrade: true, ..*claim }).is_some()
        {
            return self.standing(claim, OwnPlace::Ticket);
        }
        if is_plain && volatile.queue.len() > FIRST_IN_LINE {
            let (lock, first) = self.served(volatile.with_first(FIRST_IN_LINE), claim.owner);
            // One of the first waiters remains in line, ahead of all others.
            if first.queue.head().is_some() {
                return lock.judge(&first, claim, OwnPlace::None, self.grace, self.now);
            }
        }
        let (lock, volatile) = self.served(volatile.clone(), claim.owner);
        lock.judge(&volatile, claim, OwnPlace::None, self.grace, self.now)
    }

    /// A copy of the lock without this owner's ticket, in which the waiters behind that ticket were
    /// served. Of a very long queue, only the first waiters are copied.
    pub fn without_ticket(&self, owner: &[u8]) -> (Lock, Volatile) {
        const MOST: usize = 2 * crate::waits_for::STEPS_MAX;
        match self.volatile.queue.len() > MOST {
            true => self.served(self.volatile.with_first(MOST), owner),
            false => self.served(self.volatile.clone(), owner),
        }
    }

    /// A copy with this queue, in which the owner's ticket was withdrawn and waiters were served.
    fn served(&self, mut volatile: Volatile, owner: &[u8]) -> (Lock, Volatile) {
        let own = volatile.queue.ticket_of(owner);
        own.map(|place| volatile.queue.remove(place));
        let (mut lock, mut effects) = (self.lock.clone(), Effects::default());
        let (mut tokens, mut names) = (self.tokens.clone(), Rc::<OwnerNames>::default());
        let moment = StepContext::unlimited(self.now, &mut tokens, &mut names);
        let moment = StepContext { grace: self.grace, ..moment };
        let (of, with, effects) = (&mut lock, &mut volatile, &mut effects);
        Step { lock: of, volatile: with, moment, effects }.apply(Input::Tick);
        (lock, volatile)
    }

    /// The estimated wait at a lock that the group has not reached, as in [`crate::Reply::NotNow`];
    /// `None` if nothing is in its way.
    pub fn group_wait_ms(&self, waiter: WaiterId, claim: &Acquire<'_>) -> Option<Option<u64>> {
        if self.volatile.queue.group_stand(waiter) == Some(GroupStand::Line) {
            return Some(self.lock.estimated_wait_of(self.volatile, waiter, self.now));
        }
        match self.standing(claim, OwnPlace::None) {
            Standing::Barred { wait_ms } => Some(wait_ms),
            Standing::WouldDeadlock => Some(None),
            Standing::Covered(_) | Standing::Open => None,
        }
    }
}
