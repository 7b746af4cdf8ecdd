//! Hand-off: whoever is first in line enters in the very step that lets it.

use std::borrow::Cow;

use crate::decide::wake;
use crate::input::{Effects, Moment, Reply};
use crate::queue::{Entry, Kind};
use crate::{End, Lock, Memory, Mode, WaiterId};

impl Lock {
    /// Lets in from the head of the line whoever can enter: blocked connections are granted,
    /// tickets get their turn. Readers that stand together enter together; nobody passes
    /// anybody.
    pub(crate) fn serve<'a>(
        &mut self,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) {
        if memory.queue.is_empty() {
            return;
        }
        if self.contradicts_turns(memory) {
            memory.queue.take_turns();
        }
        while let Some((place, head)) = memory.queue.head() {
            let waits_for_turn = match head.mode {
                Mode::Read => memory.queue.turn_mode() == Some(Mode::Write),
                Mode::Write => memory.queue.turn_mode().is_some(),
            };
            let owner = head.owner.as_bytes();
            if waits_for_turn || self.in_the_way(owner, head.mode, head.upgrade).is_some() {
                return;
            }
            match head.kind {
                Kind::Ticket => {
                    effects.turns.push(head.owner.clone());
                    memory.queue.give_turn(place);
                }
                Kind::Blocked(waiter) => {
                    if let Some(entry) = memory.queue.remove(place) {
                        self.hand_over(waiter, &entry, memory, moment, effects);
                        self.granted(entry.owner.as_bytes(), memory, moment, effects);
                    }
                }
            }
        }
    }

    /// Turns that were given cannot be taken up any more: something put another hold in their way.
    fn contradicts_turns(&self, memory: &Memory) -> bool {
        memory.queue.first_turn().is_some_and(|turn| {
            self.in_the_way(turn.owner.as_bytes(), turn.mode, turn.upgrade).is_some()
        })
    }

    /// The owner holds, or holds once more: its ticket is withdrawn, and its own parked requests
    /// that are re-entries now are granted, wherever they stand.
    pub(crate) fn granted<'a>(
        &mut self,
        owner: &[u8],
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) {
        if memory.queue.is_empty() {
            return;
        }
        if let Some(place) = memory.queue.ticket_of(owner) {
            memory.queue.remove(place);
        }
        loop {
            let writes = self.holders.hold(owner, Mode::Write).is_some();
            let reads = self.holders.hold(owner, Mode::Read).is_some();
            let enters = |mode: Mode| writes || reads && mode == Mode::Read;
            let place = memory.queue.blocked_of(owner).find(|(_, entry)| enters(entry.mode));
            let Some(entry) = place.map(|(place, _)| place).and_then(|p| memory.queue.remove(p))
            else {
                return;
            };
            if let Kind::Blocked(waiter) = entry.kind {
                self.hand_over(waiter, &entry, memory, moment, effects);
            }
        }
    }

    /// Grants a parked connection what it asked for, or tells it why that is not possible.
    fn hand_over<'a>(
        &mut self,
        waiter: WaiterId,
        entry: &Entry,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) {
        let owner = entry.owner.as_bytes();
        let held = self.holders.hold(owner, entry.mode).copied();
        let reply = match held {
            Some(hold) => self.enter_again(entry.depth, entry.lease, hold, moment, effects),
            None => {
                let owner = Cow::Owned(owner.to_vec());
                self.enter(owner, entry.mode, entry.lease, moment, effects)
            }
        };
        if let Reply::Granted { token, .. } = reply {
            let depth = self.holders.by_token(token).map_or(0, |(_, hold)| hold.depth);
            if depth > held.map_or(0, |before| before.depth) {
                memory.remember_grant(waiter, token);
            }
            if let Some(client) = entry.session {
                memory.sessions.tie(token, client, entry.lease, moment.now);
            }
        }
        effects.wakes.push(wake(waiter, reply, entry, moment.now));
    }

    /// Levels whose connection was gone before it could hear of its grant.
    pub(crate) fn take_back(&mut self, memory: &mut Memory, effects: &mut Effects<'_>) {
        while let Some(token) = memory.take_back_next() {
            match self.holders.by_token(token).map(|(_, hold)| *hold) {
                Some(hold) if hold.depth > 1 => {
                    self.hold_on(hold, hold.depth.saturating_sub(1), hold.deadline, effects);
                }
                _ => self.end(token, End::Disconnected, memory, effects),
            }
        }
    }
}
