//! Holds that end. If very many expire together, each step removes a portion of them, and the
//! others count as ended at once: no decision sees them.

use crate::input::{Effects, Moment};
use crate::sessions::Session;
use crate::slow::Outcome;
use crate::{Change, End, Event, Lock, Memory, Mode, Now, Token};

impl Lock {
    /// Ends what has expired: a portion of it; the rest counts as ended. Whoever asks finds no
    /// expired hold of its own.
    pub(crate) fn end_expired(
        &mut self,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        owner: Option<&[u8]>,
        effects: &mut Effects<'_>,
    ) {
        let now = moment.now;
        let mut left = moment.portion;
        memory.tell_replaced(moment, &mut left, effects);
        // Once the clock was set back, a hold that counted as ended might hold again.
        let is_back = self.holders.ended_until().is_some_and(|until| until > now.ms());
        while let Some(token) = self.holders.first_over(now) {
            if left == 0 && !is_back && self.holders.end_over(now) {
                memory.unfinished = Some(now.ms());
                self.lose_ended(memory, moment, effects);
                break;
            }
            left = left.saturating_sub(1);
            self.end(token, End::Expired, memory, moment, effects);
        }
        if let Some(owner) = owner {
            self.end_own(owner, memory, moment, effects);
        }
    }

    /// Ends this owner's hold if it counts as ended: a new one may take its place.
    pub(crate) fn end_own(
        &mut self,
        owner: &[u8],
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) {
        if self.holders.ended_until().is_some()
            && self.holders.hold(owner, Mode::Read).is_none()
            && let Some(hold) = self.holders.any_hold(owner, Mode::Read)
        {
            self.end(hold.token, End::Expired, memory, moment, effects);
        }
    }

    /// The sessions of holds that count as ended are lost with the step that knows it, however many
    /// there are: what their connections send would run beside the next owner.
    fn lose_ended(&mut self, memory: &mut Memory, moment: &Moment<'_>, effects: &mut Effects<'_>) {
        while let Some(token) = memory.sessions.first_ended(moment.now) {
            self.end_session(token, memory, moment, effects);
        }
    }

    /// The deadline has passed until which this session lasts, as far as it is known.
    pub(crate) fn end_session(
        &mut self,
        token: Token,
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) {
        match self.holders.by_token(token).map(|(_, hold)| hold.deadline) {
            Some(deadline) if deadline.is_over_at(moment.now) => {
                effects.lost.extend(memory.lose(token));
            }
            Some(deadline)
                if memory.sessions.acks_of(token) == 0
                    && !Session::closes_at(deadline).is_over_at(moment.now) =>
            {
                memory.sessions.lasts_until(token, deadline);
            }
            Some(_) => self.end(token, End::Disconnected, memory, moment, effects),
            None => effects.lost.extend(memory.lose(token)),
        }
    }

    /// Before an owner enters to write: its grant takes the place of all holds that count as ended,
    /// here and in every replay. Each is told of with the next steps.
    pub(crate) fn make_way(
        &mut self,
        owner: &[u8],
        mode: Mode,
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) {
        if mode == Mode::Write
            && self.holders.ended_until().is_some()
            && let Some(readers) = self.holders.take_readers(owner)
        {
            memory.replaced.push(readers);
            memory.unfinished = Some(moment.now.ms());
            effects.wakes.extend(self.lost_grants(memory, moment.now));
        }
    }

    /// Ends a hold, and its session with it.
    pub(crate) fn end(
        &mut self,
        token: Token,
        by: End,
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) {
        let Some((mode, hold)) = self.holders.by_token(token) else { return };
        let ended_until = self.holders.ended_until();
        let is_ended = ended_until.is_some_and(|until| hold.deadline <= until);
        let by = if is_ended { End::Expired } else { by };
        if moment.slow.hold_ms.is_some()
            && let Some(owner) = self.holders.owner(token)
        {
            let until =
                if by == End::Expired { Now::from_ms(hold.deadline.get()) } else { moment.now };
            memory.note(moment.slow.hold(owner, mode, token.age_ms(until), by.into()));
        }
        self.record(Change::Ended { token, by }, effects);
        effects.wakes.extend(memory.end_acks(token, by, moment.now));
        if matches!(by, End::Released | End::Unconfirmed) {
            memory.sessions.untie(token);
        } else {
            effects.lost.extend(memory.lose(token));
        }
        // The last of those that counted as ended stands alone now.
        let alone = ended_until.filter(|_| self.holders.len() == 1);
        let last = self.holders.by_deadline().next();
        if let Some((_, token)) = last.filter(|(deadline, _)| Some(*deadline) <= alone) {
            self.end(token, End::Expired, memory, moment, effects);
        }
    }
}

impl Memory {
    /// Tells of holds that had expired when a writer's grant took their place.
    fn tell_replaced(&mut self, moment: &Moment<'_>, left: &mut usize, effects: &mut Effects<'_>) {
        while let Some(readers) = self.replaced.last_mut() {
            if *left == 0 {
                self.unfinished = Some(moment.now.ms());
                return;
            }
            let Some((owner, hold)) = readers.take_earliest() else {
                self.replaced.pop();
                continue;
            };
            *left = left.saturating_sub(1);
            let ms = hold.token.age_ms(Now::from_ms(hold.deadline.get()));
            let slow = moment.slow.hold(owner.as_bytes(), Mode::Read, ms, Outcome::Expired);
            self.note(slow);
            effects.events.push(Event::Expired);
            effects.replaced.push(hold.token);
        }
    }
}
