//! The one transition: what an input does to a lock, its waiters and its sessions.

use crate::step::input::{Input, Levels, Parking, Patience, Reply, Unchecked};
use crate::volatile::kind::Kind;
use crate::{Change, Step};

impl<'a> Step<'_, 'a> {
    /// Decides what `input` does now, and does it. Expired holds end first, so that they affect no
    /// decision; and every waiter that can enter afterward has entered when this returns.
    ///
    /// A step that stops ([`crate::Effects::unchecked`]) continues when it is applied again.
    pub fn apply(mut self, input: Input<'a>) {
        let stopped = self.effects.unchecked.take();
        let is_empty = self.effects.changes.is_empty() && self.effects.events.is_empty();
        debug_assert!(stopped.is_some() || is_empty, "a step begins without effects");
        self.effects.is_request_enough = false;
        match &stopped {
            // Due items were handled before the owner was judged, and the token is issued already:
            // no other hold may begin before this one.
            None if matches!(input, Input::Enter { .. }) => {}
            None => self.volatile.unfinished = None,
            Some(Unchecked { portion, .. }) => self.moment.portion = *portion,
        }
        if stopped.is_some_and(|stopped| stopped.is_decided) {
            self.go_on_entering();
            self.serve();
        } else {
            if let Input::Enter { ask, .. } = input {
                self.volatile.grace = self.moment.grace;
                self.end_own(ask.owner);
            } else {
                self.catch_up(input.owner(), input.serves_first());
            }
            if let Some(unchecked) = &mut self.effects.unchecked {
                unchecked.is_decided = false;
                return;
            }
            let has_caught_up = !self.effects.changes.is_empty();
            self.effects.reply = self.decide(input);
            self.serve();
            if let (Input::Release(ask), [Change::Ended { .. }]) =
                (&input, self.effects.changes.as_slice())
            {
                // The maximum depth is a setting: a replaying server may have a smaller one, and
                // refuse that depth.
                self.effects.is_request_enough = !has_caught_up
                    && !matches!(ask.levels, Levels::DownTo(1..))
                    && self.lock.release_target(ask).is_none();
            }
        }
        debug_assert!(self.is_served(), "the first in line could enter: {:?}", self.volatile);
    }

    fn decide(&mut self, input: Input<'a>) -> Reply {
        match input {
            Input::Acquire(ask) => self.acquire(ask, None),
            Input::Park(ask, parking) => {
                let parking = self.begin_now(parking);
                let reply = self.acquire(ask, Some(parking));
                let waiter = parking.waiter;
                if let Reply::MustWait { .. } = reply {
                    let kind = match ask.patience {
                        Patience::Tell => Kind::Told(waiter),
                        _ => Kind::Blocked(waiter),
                    };
                    let place = self.own_place(waiter, ask.owner);
                    self.enqueue(place, ask.entry_of(kind, &parking));
                } else if let Some(place) = self.volatile.queue.place_of(waiter) {
                    // The request took the place of a wait with TELL, and is refused.
                    self.volatile.queue.remove(place);
                }
                reply
            }
            Input::Release(ask) => self.release(ask),
            Input::Enter { ask, token, caller } => self.enter(ask, token, caller),
            Input::ReleaseAll(owner, token) => self.release_all(owner, token),
            Input::Renew(ask) => self.renew(ask, None),
            Input::ParkRenew(ask, parking) => self.renew(ask, Some(self.begin_now(parking))),
            Input::Join(entry) => self.join(entry.clone()),
            Input::Withdraw(owner) => self.withdraw(owner),
            Input::Cancel(owner) => self.cancel(owner),
            Input::Force(mode) => self.force(mode),
            Input::Changed => {
                self.grant_parked_reentries();
                Reply::Count(0)
            }
            Input::Tick => Reply::Count(0),
        }
    }

    /// The wait begins with this step: what is granted in it has waited for nothing before.
    const fn begin_now(&self, parking: Parking) -> Parking {
        Parking { since: self.moment.now, ..parking }
    }
}

impl Input<'_> {
    /// Whether those who can enter do so before this is decided.
    const fn serves_first(&self) -> bool {
        match self {
            // A group may stand ahead of those already in line.
            Self::Join(_) => false,
            // Whoever entered would lose the lock at once.
            Self::Acquire(ask) => !matches!(ask.patience, Patience::Take),
            Self::Force(_) => false,
            _ => true,
        }
    }

    /// The owner that asks; `None` for an input that no owner caused.
    fn owner(&self) -> Option<&[u8]> {
        match self {
            Self::Acquire(ask) | Self::Park(ask, _) | Self::Enter { ask, .. } => Some(ask.owner),
            Self::Release(ask) => Some(ask.owner),
            Self::Renew(ask) | Self::ParkRenew(ask, _) => Some(ask.owner),
            Self::Join(entry) => Some(entry.owner.as_bytes()),
            Self::ReleaseAll(owner, _) | Self::Withdraw(owner) | Self::Cancel(owner) => Some(owner),
            Self::Force(_) | Self::Tick | Self::Changed => None,
        }
    }
}
