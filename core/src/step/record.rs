//! Changes of a hold that continues, and waits that end.

use crate::step::input::{Reply, Wake};
use crate::volatile::endings::wake;
use crate::volatile::owner_names::OwnerNames;
use crate::volatile::queue::Entry;
use crate::volatile::slow::Outcome;
use crate::{Change, EpochMs, Hold, Step, Token};

impl<'a> Step<'_, 'a> {
    pub(crate) fn record(&mut self, change: Change<'a>) {
        self.effects.events.extend(self.lock.replay(&change));
        self.effects.changes.push(change);
    }

    /// An update that changes nothing is not recorded.
    pub(crate) fn update_hold(&mut self, hold: Hold, depth: u16, deadline: EpochMs) {
        if (depth, deadline) != (hold.depth, hold.deadline) {
            self.record(Change::Updated { token: hold.token, depth, deadline });
        }
    }

    /// The deadline of a hold; `now` if there is none.
    pub(crate) fn deadline_of(&self, token: Token) -> EpochMs {
        let hold = self.lock.holders.by_token(token);
        hold.map_or(self.moment.now.ms(), |(.., hold)| hold.deadline)
    }

    /// A wait begins: if long waits are logged, records who is in its way.
    pub(crate) fn note_in_the_way(&mut self, entry: &mut Entry) {
        if self.moment.slow.wait_ms.is_none() {
            return;
        }
        let owners = || self.lock.owners_in_the_way(self.volatile, &(&*entry).into());
        let before = self.volatile.queue.last().and_then(|last| last.in_the_way.as_ref());
        let names = OwnerNames::shared(before, self.moment.names, self.moment.names_max, owners);
        entry.in_the_way = Some(names);
    }

    /// A wait ends: records it if it lasted long enough to be logged.
    pub(crate) fn log_end(&mut self, entry: &Entry, outcome: Outcome) {
        self.volatile.log_slow(entry.ended(self.moment.slow, outcome, self.moment.now));
    }

    /// Takes one item of the portion, as [`Volatile::take_item`].
    pub(crate) fn take_item(&mut self) -> bool {
        self.volatile.take_item(&mut self.moment.portion, self.moment.now)
    }

    /// A wait ends: a blocked connection gets this reply.
    pub(crate) fn end_wait(&mut self, entry: &Entry, reply: Reply, outcome: Outcome) {
        let now = self.moment.now;
        self.log_end(entry, outcome);
        if let Some(waiter) = entry.kind.waiter() {
            let is_withdrawn = outcome == Outcome::Cancelled;
            let wake = wake(waiter, reply, entry, now);
            self.effects.wakes.push(Wake { is_withdrawn, ..wake });
        }
    }
}
