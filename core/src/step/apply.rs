//! The one transition: what an input does to a lock and to what is remembered of it.

use crate::step::input::{Effects, Input, Parking, Reply, StepContext};
use crate::volatile::queue::{Entry, Kind};
use crate::{Change, Lock, Volatile};

impl Lock {
    /// Decides what `input` does now, and does it. What others must be told goes to `effects`,
    /// which must be empty. What has expired ends first, so that it decides nothing; and whoever
    /// can enter afterwards has entered when this returns.
    pub fn apply<'a>(
        &mut self,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        input: Input<'a>,
        effects: &mut Effects<'a>,
    ) {
        volatile.unfinished = None;
        let grace_is_over = volatile.grace.is_some() && moment.grace.is_none();
        volatile.grace = moment.grace;
        if let Input::Deny(waiter) = input {
            volatile.leave(waiter);
        }
        self.catch_up(volatile, moment, input.owner(), effects);
        if grace_is_over {
            self.grant_parked_reentries(volatile, moment, effects);
        }
        let has_caught_up = !effects.changes.is_empty();
        effects.reply = match input {
            Input::Acquire(ask) => self.acquire(ask, None, volatile, moment, effects),
            Input::Park(ask, parking) => {
                let reply = self.acquire(ask, Some(parking), volatile, moment, effects);
                let Parking { waiter, client, ends_at } = parking;
                if let Reply::MustWait { .. } = reply {
                    let ticket = volatile.queue.ticket_of(ask.owner);
                    let mut entry = Entry::new(&ask, Kind::Blocked(waiter), ends_at, moment.now);
                    entry.client = entry.client.or(client);
                    self.enqueue(volatile, moment, ticket, entry);
                }
                reply
            }
            Input::Release(ask) => self.release(ask, volatile, moment, effects),
            Input::Renew(ask) => self.renew(ask, None, volatile, moment, effects),
            Input::ParkRenew(ask, parking) => {
                self.renew(ask, Some(parking), volatile, moment, effects)
            }
            Input::Cancel(owner) => self.cancel(owner, volatile, moment, effects),
            Input::Force(mode) => self.force(mode, volatile, moment, effects),
            Input::Changed => {
                self.grant_parked_reentries(volatile, moment, effects);
                Reply::Count(0)
            }
            Input::Tick | Input::Deny(_) => Reply::Count(0),
        };
        self.serve(volatile, moment, effects);
        if let (Input::Release(ask), [Change::Ended { .. }]) = (&input, effects.changes.as_slice())
        {
            effects.is_request_enough = !has_caught_up && self.release_target(ask).is_none();
        }
    }
}

impl Input<'_> {
    /// Who asks; nobody, if it is something that happens by itself.
    const fn owner(&self) -> Option<&[u8]> {
        match self {
            Self::Acquire(ask) | Self::Park(ask, _) => Some(ask.owner),
            Self::Release(ask) => Some(ask.owner),
            Self::Renew(ask) | Self::ParkRenew(ask, _) => Some(ask.owner),
            Self::Cancel(owner) => Some(owner),
            Self::Force(_) | Self::Tick | Self::Changed | Self::Deny(_) => None,
        }
    }
}
