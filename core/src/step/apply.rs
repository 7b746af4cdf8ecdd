//! The one transition: what an input does to a lock and to what is remembered of it.

use crate::step::input::{Input, Parking, Reply};
use crate::volatile::queue::{Entry, Kind};
use crate::{Change, Step};

impl<'a> Step<'_, 'a> {
    /// Decides what `input` does now, and does it. What has expired ends first, so that it decides
    /// nothing; and whoever can enter afterwards has entered when this returns.
    pub fn apply(mut self, input: Input<'a>) {
        self.volatile.unfinished = None;
        let grace_is_over = self.volatile.grace.is_some() && self.moment.grace.is_none();
        self.volatile.grace = self.moment.grace;
        if let Input::Deny(waiter) = input {
            self.volatile.leave(waiter);
        }
        self.catch_up(input.owner());
        if grace_is_over {
            self.grant_parked_reentries();
        }
        let has_caught_up = !self.effects.changes.is_empty();
        self.effects.reply = match input {
            Input::Acquire(ask) => self.acquire(ask, None),
            Input::Park(ask, parking) => {
                let reply = self.acquire(ask, Some(parking));
                let Parking { waiter, client, ends_at } = parking;
                if let Reply::MustWait { .. } = reply {
                    let ticket = self.volatile.queue.ticket_of(ask.owner);
                    let mut entry =
                        Entry::new(&ask, Kind::Blocked(waiter), ends_at, self.moment.now);
                    entry.client = entry.client.or(client);
                    self.enqueue(ticket, entry);
                }
                reply
            }
            Input::Release(ask) => self.release(ask),
            Input::Renew(ask) => self.renew(ask, None),
            Input::ParkRenew(ask, parking) => self.renew(ask, Some(parking)),
            Input::Cancel(owner) => self.cancel(owner),
            Input::Force(mode) => self.force(mode),
            Input::Changed => {
                self.grant_parked_reentries();
                Reply::Count(0)
            }
            Input::Tick | Input::Deny(_) => Reply::Count(0),
        };
        self.serve();
        if let (Input::Release(ask), [Change::Ended { .. }]) =
            (&input, self.effects.changes.as_slice())
        {
            self.effects.is_request_enough =
                !has_caught_up && self.lock.release_target(ask).is_none();
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
