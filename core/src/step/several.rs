//! One lock of a request for several: whether the owner can acquire it, and the grant. The caller
//! examines every lock before it changes any.

use smallvec::SmallVec;

use crate::step::input::{Acquire, Parking, Reply};
use crate::volatile::queue::Place;
use crate::{End, EpochMs, Hold, Lock, Mode, Now, Refusal, Step, Token, Volatile, WaiterId};

/// What a request for several locks finds at one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The owner holds it in the wanted mode.
    Covered(Hold),
    /// The owner may enter, with a new hold.
    Open,
    /// Another owner, or its request, is in the way.
    Barred {
        /// As [`Reply::NotNow`].
        wait_ms: Option<u64>,
    },
    /// The owner holds READ and wants WRITE: it would wait for itself.
    WouldDeadlock,
}

/// Which place in the queue helps a request for several locks: one of its own, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPlace {
    /// No level.
    None,
    /// Its ticket, which the request withdraws if it waits.
    Ticket,
    /// The turn of this group.
    Group(WaiterId),
}

impl Lock {
    /// Judges a request, given its owner's holds and its `place` in the queue, if it has one.
    /// Nothing may be overdue; no request enters before `grace` ends.
    pub fn judge(
        &self,
        volatile: &Volatile,
        claim: &Acquire<'_>,
        place: OwnPlace,
        grace: Option<EpochMs>,
        now: Now,
    ) -> Standing {
        let owns = |mode| self.holders.hold(claim.owner, mode);
        match owns(claim.mode) {
            Some(_) if grace.is_some() => {}
            Some(hold) => return Standing::Covered(hold),
            None if claim.mode == Mode::Write && owns(Mode::Read).is_some() => {
                return Standing::WouldDeadlock;
            }
            None => {}
        }
        let own = self.own_way(volatile, claim, place);
        let may_enter = owns(claim.mode).is_some()
            || owns(Mode::Write).is_some()
            || self.is_open_to(volatile, claim, own.is_some(), own);
        let wait_ms = match (may_enter, grace) {
            (true, None) => return Standing::Open,
            (true, Some(grace)) => Some(grace.wait_from(now)),
            (false, grace) => {
                // A ticket is not behind itself.
                let own = match place {
                    OwnPlace::Group(waiter) => volatile.queue.place_of(waiter),
                    OwnPlace::None | OwnPlace::Ticket => None,
                };
                let wait_ms = self.estimated_wait_ms(volatile, claim, own, false, now);
                wait_ms.map(|ms| ms.max(grace.map_or(0, |grace| grace.wait_from(now))))
            }
        };
        Standing::Barred { wait_ms }
    }

    /// The owner's own turn; or its ticket, if nobody else waits.
    fn own_way(&self, volatile: &Volatile, claim: &Acquire<'_>, place: OwnPlace) -> Option<Place> {
        let queue = &volatile.queue;
        match place {
            OwnPlace::None => None,
            OwnPlace::Group(waiter) => {
                queue.place_of(waiter).filter(|place| queue.has_turn(*place))
            }
            OwnPlace::Ticket => {
                let is_alone = queue.len() == 1 && self.excess_holders(claim, 0) == 0;
                queue.ticket_of(claim.owner).filter(|_| is_alone)
            }
        }
    }
}

impl<'a> Step<'_, 'a> {
    /// Enters. A hold that the owner already has gets no further level, but perhaps a later
    /// deadline; otherwise a new hold begins.
    pub(crate) fn enter(
        &mut self,
        ask: Acquire<'a>,
        token: Option<Token>,
        caller: Option<Parking>,
    ) -> Reply {
        caller.map(|caller| self.volatile.queue.leave(caller.waiter));
        let held = self.lock.holders.hold(ask.owner, ask.mode);
        // The lock was judged to be covered by the owner's hold.
        if held.is_none() && token.is_none() {
            return Reply::Refused(Refusal::NoTokenLeft);
        }
        self.grant(ask, held, token, caller)
    }

    /// Ends every hold of this owner, in both modes and at any depth, or the one with this token.
    pub(crate) fn release_all(&mut self, owner: &[u8], token: Option<Token>) -> Reply {
        // READ first, so that each hold is published as released.
        let holds: SmallVec<[Hold; 2]> = self.lock.holds_of(owner, None, token).collect();
        for hold in holds.iter().rev() {
            self.end(hold.token, End::Released);
        }
        Reply::Count(u64::try_from(holds.len()).unwrap_or(u64::MAX))
    }
}
