//! Holds that end. If very many expire together, each step removes a portion of them, and the
//! others count as ended at once: decisions ignore them.

use crate::step::input::Wake;
use crate::volatile::confirm::refused;
use crate::volatile::sessions::Session;
use crate::volatile::slow::Outcome;
use crate::{
    Change, ClientId, End, EpochMs, Event, Lock, Mode, Now, Refusal, Step, Token, Volatile,
};

impl<'a> Step<'_, 'a> {
    /// Ends a portion of the holds that have expired; the others count as ended. No expired hold of
    /// the asking owner remains.
    pub(crate) fn end_expired(&mut self, owner: Option<&[u8]>) {
        let now = self.moment.now;
        let mut left = self.moment.portion;
        self.tell_replaced(&mut left);
        // After the clock was set back, a hold that counted as ended may be in force again.
        let is_back = self.lock.holders.ended_until().is_some_and(|until| until > now.ms());
        while let Some(token) = self.lock.holders.first_over(now) {
            if left == 0 && !is_back && self.lock.holders.end_over(now) {
                self.volatile.unfinished = Some(now.ms());
                self.lose_ended();
                self.lock.uncover_ended(self.volatile);
                break;
            }
            left = left.saturating_sub(1);
            self.end(token, End::Expired);
        }
        if let Some(owner) = owner {
            self.end_own(owner);
        }
    }

    /// Ends this owner's hold if it counts as ended: a new one may take its place.
    pub(crate) fn end_own(&mut self, owner: &[u8]) {
        if self.lock.holders.ended_until().is_some()
            && self.lock.holders.hold(owner, Mode::Read).is_none()
            && let Some(hold) = self.lock.holders.any_hold(owner, Mode::Read)
        {
            self.end(hold.token, End::Expired);
        }
    }

    /// Loses the sessions of all holds that count as ended, however many there are, in the same
    /// step: otherwise their connections could still send commands while the next owner holds the
    /// lock.
    pub(crate) fn lose_ended(&mut self) {
        while let Some(token) = self.volatile.sessions.first_ended(self.moment.now) {
            self.end_session(token);
        }
    }

    /// The last known deadline of this session has passed.
    pub(crate) fn end_session(&mut self, token: Token) {
        if self.lock.extends_session(self.volatile, token, self.moment.now) {
            return;
        }
        if self.lock.lasts_at(token, self.moment.now) {
            self.end(token, End::Disconnected);
        } else {
            self.effects.lost.extend(self.volatile.lose(token));
        }
    }

    /// Called before an owner enters with WRITE: its grant replaces all holds that count as ended,
    /// here and in every replay. Their expiry is published with the next steps.
    pub(crate) fn make_way(&mut self, owner: &[u8], mode: Mode) {
        if mode == Mode::Write
            && self.lock.holders.ended_until().is_some()
            && let Some(readers) = self.lock.holders.take_readers(owner)
        {
            self.volatile.replaced.push(readers);
            self.volatile.unfinished = Some(self.moment.now.ms());
            self.effects.wakes.extend(self.lock.lost_grants(self.volatile, self.moment.now));
        }
    }

    /// Ends a hold, and its session with it.
    pub(crate) fn end(&mut self, token: Token, by: End) {
        let Some((owner, mode, hold)) = self.lock.holders.by_token(token) else { return };
        let ended_until = self.lock.holders.ended_until();
        let is_ended = ended_until.is_some_and(|until| hold.deadline <= until);
        let by = if is_ended { End::Expired } else { by };
        let until =
            if by == End::Expired { Now::from_ms(hold.deadline.get()) } else { self.moment.now };
        let slow = self.moment.slow.hold(owner, mode, token.age_ms(until), by.into());
        self.volatile.log_slow(slow);
        self.record(Change::Ended { token, by });
        self.lock.uncover(self.volatile, token);
        self.effects.wakes.extend(self.volatile.end_acks(token, self.moment.now));
        if matches!(by, End::Released | End::Unconfirmed) {
            self.volatile.sessions.untie(token);
        } else {
            self.effects.lost.extend(self.volatile.lose(token));
        }
        // The last of the holds that counted as ended is the lock's only hold now.
        let alone = ended_until.filter(|_| self.lock.holders.len() == 1);
        let last = self.lock.holders.by_deadline().next();
        if let Some((_, token)) = last.filter(|(deadline, _)| Some(*deadline) <= alone) {
            self.end(token, End::Expired);
        }
    }

    /// Publishes the expiry of holds that a writer's grant replaced.
    fn tell_replaced(&mut self, left: &mut usize) {
        while let Some(readers) = self.volatile.replaced.last_mut() {
            if *left == 0 {
                self.volatile.unfinished = Some(self.moment.now.ms());
                return;
            }
            let Some((owner, hold)) = readers.take_earliest() else {
                self.volatile.replaced.pop();
                continue;
            };
            *left = left.saturating_sub(1);
            let ms = hold.token.age_ms(Now::from_ms(hold.deadline.get()));
            let slow = self.moment.slow.hold(owner.as_bytes(), Mode::Read, ms, Outcome::Expired);
            self.volatile.log_slow(slow);
            self.effects.events.push(Event::Expired);
            self.effects.replaced.push(hold.token);
        }
    }
}

impl Lock {
    /// Whether the hold with this token exists and has not expired.
    fn lasts_at(&self, token: Token, now: Now) -> bool {
        self.holders.by_token(token).is_some_and(|(.., hold)| !hold.deadline.is_over_at(now))
    }

    /// Whether the session of this hold has not ended yet, because the hold's deadline was moved.
    /// With acknowledgments, a moved deadline alone extends no session.
    fn extends_session(&self, volatile: &mut Volatile, token: Token, now: Now) -> bool {
        let deadline = self.holders.by_token(token).map(|(.., hold)| hold.deadline);
        let lasts = |deadline: &EpochMs| !Session::closes_at(*deadline).is_over_at(now);
        let deadline = deadline.filter(lasts).filter(|_| volatile.sessions.acks_of(token) == 0);
        deadline.map(|deadline| volatile.sessions.lasts_until(token, deadline)).is_some()
    }

    /// The key may have been changed from outside, or the gate is shut: sessions whose hold no
    /// longer exists are lost.
    pub fn lost_sessions(&self, volatile: &mut Volatile, now: Now) -> Vec<ClientId> {
        let tokens = volatile.sessions.tokens().into_iter();
        let gone = tokens.filter(|token| !self.lasts_at(*token, now));
        gone.flat_map(|token| volatile.lose(token)).collect()
    }

    /// The gate is shut, so no session is renewed: those whose lease has expired are lost. The
    /// others last until their deadlines.
    pub fn ended_sessions(&self, volatile: &mut Volatile, now: Now) -> Vec<ClientId> {
        let mut lost = Vec::new();
        while let Some(token) = volatile.sessions.first_ended(now) {
            if self.extends_session(volatile, token, now) {
                continue;
            }
            lost.extend(volatile.lose(token));
            // The hold may still exist when the gate opens.
            if self.lasts_at(token, now) {
                volatile.sessions.end_later(token);
            }
        }
        lost
    }

    /// Something other than RLOCK changed the key: refuses the pending callers whose hold no longer
    /// exists.
    pub fn lost_grants(&self, volatile: &mut Volatile, now: Now) -> Vec<Wake> {
        let is_there = |token: Token| self.lasts_at(token, now);
        let mut wakes = Vec::new();
        for token in volatile.unsent.pending_tokens().into_iter().filter(|token| !is_there(*token))
        {
            let why = match volatile.unsent.lasts(token, now) {
                true => Refusal::NoAcksMoved,
                false => Refusal::NoAcks,
            };
            let pending = volatile.unsent.remove_pending(token).into_iter();
            wakes.extend(pending.map(|(waiter, since)| refused(waiter, since, why.clone(), now)));
        }
        if let Some(acks) = volatile.acks.as_deref_mut() {
            acks.forget_gone(is_there);
        }
        wakes
    }
}
