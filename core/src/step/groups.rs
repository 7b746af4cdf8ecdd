//! What a request for several locks does at one of them while it waits.

use crate::step::input::Reply;
use crate::volatile::queue::{Entry, Way};
use crate::volatile::slow::Outcome;
use crate::{Lock, Mode, Queue, Step, Token, Volatile};

impl Lock {
    /// The owner's hold that lets it acquire the lock regardless of the queue.
    fn covering(&self, owner: &[u8], mode: Mode) -> Option<Token> {
        let own = |mode| self.holders.hold(owner, mode).map(|hold| hold.token);
        // An owner that holds WRITE needs no turn for READ either.
        own(mode).or_else(|| own(Mode::Write))
    }

    /// A hold has ended: the groups that it covered stand in line now, unless another hold covers
    /// them.
    pub(crate) fn uncover(&self, volatile: &mut Volatile, token: Token) {
        if !volatile.queue.has_covered() {
            return;
        }
        for entry in volatile.queue.take_covered(token) {
            match self.covering(entry.owner.as_bytes(), entry.mode) {
                Some(other) => volatile.queue.cover(entry, other),
                None => volatile.queue.join(entry),
            }
        }
    }

    /// Like `uncover`, for all holds that were removed without notice, that count as ended, or that
    /// another value may have replaced.
    pub(crate) fn uncover_ended(&self, volatile: &mut Volatile) {
        if !volatile.queue.has_covered() {
            return;
        }
        let until = self.holders.ended_until();
        for token in volatile.queue.covering() {
            let hold = self.holders.by_token(token).map(|(_, mode, hold)| (mode, hold));
            // All holds of one grant share its token: this hold may have been at another key.
            if hold.is_none_or(|(mode, hold)| mode == Mode::Read || Some(hold.deadline) <= until) {
                self.uncover(volatile, token);
            }
        }
    }
}

impl Step<'_, '_> {
    /// A group reaches this lock: if its owner already holds what it wants, it needs no turn;
    /// otherwise it stands in line, and may get its turn in this step.
    pub(crate) fn join(&mut self, mut entry: Entry) -> Reply {
        let cover = self.lock.covering(entry.owner.as_bytes(), entry.mode);
        if let Some(token) = cover.filter(|_| self.volatile.grace.is_none()) {
            self.volatile.queue.cover(entry, token);
        } else {
            self.note_in_the_way(&mut entry);
            self.volatile.queue.join(entry);
        }
        Reply::Count(0)
    }

    /// The owner holds the lock: its groups that want no more than that need no turn. False if the
    /// portion ended before the last of them.
    pub(crate) fn cover_groups(&mut self, owner: &[u8]) -> bool {
        if self.volatile.queue.group_count() == 0 {
            return true;
        }
        for mode in [Mode::Read, Mode::Write] {
            let Some(token) = self.lock.covering(owner, mode) else { continue };
            let first = |queue: &Queue| {
                queue.waits_of(owner, Way::Group(mode)).next().map(|(place, _)| place)
            };
            while let Some(place) = first(&self.volatile.queue) {
                if !self.take_item() {
                    return false;
                }
                self.volatile.queue.cover_at(place, token);
            }
        }
        true
    }

    /// Ends the owner's ticket: its request takes new places.
    pub(crate) fn withdraw(&mut self, owner: &[u8]) -> Reply {
        let ticket = self.volatile.queue.ticket_of(owner);
        if let Some(entry) = ticket.and_then(|place| self.volatile.queue.remove(place)) {
            self.log_end(&entry, Outcome::Cancelled);
        }
        Reply::Count(ticket.is_some().into())
    }
}
