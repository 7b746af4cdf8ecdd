//! Decisions about one lock, given its waiters and sessions.

use super::group_moves::TouchedGroups;
use super::tells::PendingRequest;
use super::{At, Bounds, ExpiryAction, KeyExpiry, LockId, Manager, Mark};
use crate::value::count::less;
use crate::volatile::owner_names::names_max;
use crate::volatile::slow::Outcome;
use crate::{
    Ack, Acquire, Effects, FastStep, Input, Lock, Refusal, Reply, Rights, Step, StepContext,
    Volatile, WaiterId,
};

/// The path that a decision took.
#[must_use = "a decision that is not carried out is a lost grant"]
#[derive(Debug)]
pub enum Decided<'a> {
    /// A free lock was acquired, or its only hold released, and nothing else is known of the lock
    /// except, perhaps, that this hold was confirmed.
    Fast(FastStep<'a>, ExpiryAction),
    /// The caller must wait, for the lock or for acknowledgments: this is the reply, and nothing
    /// changed.
    MustWait(Reply),
    /// Anything else, with effects; and the expiry that the key had before and must have now.
    Step([KeyExpiry; 2]),
}

impl<'a> Decided<'a> {
    /// The effects, on whichever path; `of_step` are the effects of a step.
    pub fn effects(self, of_step: Option<Effects<'a>>) -> Effects<'a> {
        match self {
            Self::Fast(step, _) => step.into(),
            Self::MustWait(reply) => Effects { reply, ..Effects::default() },
            Self::Step(_) => of_step.unwrap_or_default(),
        }
    }
}

impl Manager {
    /// Decides what `input` does to the lock at a key, and applies it: first the fast path, then
    /// requests that certainly must wait, then everything else. Only a step has `effects`: to make
    /// them for each request would slow the fast path down by a twentieth. If the step stops
    /// ([`Effects::unchecked`]), call [`Manager::step`] with more `rights` until it has ended.
    #[inline]
    pub fn decide<'a>(
        &mut self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &mut Lock,
        input: &Input<'a>,
        rights: Rights<'_>,
        effects: &mut Option<Effects<'a>>,
    ) -> Decided<'a> {
        if let Some(step) = self.try_fast(at, bounds, lock, input) {
            return Decided::Fast(step, KeyExpiry::of(lock, None).begin());
        }
        if let Input::Acquire(ask) = input
            && let Some(reply) = self.must_wait(at, bounds, lock, ask)
        {
            return Decided::MustWait(reply);
        }
        if matches!(input, Input::Release(_))
            && let Some(step) = self.release_confirmed(at, bounds, lock, input)
        {
            return Decided::Fast(step, KeyExpiry::of(lock, None).begin());
        }
        let effects = effects.insert(Effects::default());
        Decided::Step(self.step(at, bounds, lock, input, rights, effects))
    }

    /// The blocked connection that a release will probably grant: if its permission is checked
    /// beforehand, the step need not stop.
    #[inline]
    pub fn expected_grant(&self, at: At<'_>, input: &Input<'_>) -> Option<WaiterId> {
        // If nobody waits at any lock, a plain release looks none up.
        let totals = || self.locks.totals();
        if !matches!(input, Input::Release(_)) || totals().waiters == 0 && totals().told == 0 {
            return None;
        }
        let (_, head) = self.locks.get(at.db, at.key)?.queue.head()?;
        head.kind.waiter()
    }

    /// Does what a plain request asks for ([`Lock::try_fast`]). `None` if the request is not plain;
    /// nothing has changed then.
    #[inline]
    fn try_fast<'a>(
        &mut self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &mut Lock,
        input: &Input<'a>,
    ) -> Option<FastStep<'a>> {
        let is_held = matches!(input, Input::Acquire(_)) && !lock.is_free();
        if is_held || self.locks.get(at.db, at.key).is_some() {
            return None;
        }
        self.run_fast(at, bounds, lock, input)
    }

    /// [`Lock::try_fast`], unless the lock has observers or the server is in its grace period.
    #[inline]
    fn run_fast<'a>(
        &mut self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &mut Lock,
        input: &Input<'a>,
    ) -> Option<FastStep<'a>> {
        let is_observed = self.observers.has(at.db, at.key);
        if is_observed || self.grace_of(bounds.grace_ms, at.now).is_some() {
            return None;
        }
        (self.slow, self.slowlog_max) = (bounds.slow, bounds.slowlog_max);
        lock.try_fast(input, at.now, &mut self.tokens, bounds.slow)
    }

    /// Like `run_fast`, for the release of the only hold, of which nothing is known except that
    /// replicas have acknowledged it.
    fn release_confirmed<'a>(
        &mut self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &mut Lock,
        input: &Input<'a>,
    ) -> Option<FastStep<'a>> {
        let is_confirmed = self.locks.get(at.db, at.key).is_some_and(Volatile::is_only_confirmed);
        if !is_confirmed || self.is_unseen(at.db, at.key) {
            return None;
        }
        let step = self.run_fast(at, bounds, lock, input)?;
        self.locks.change(at.db, at.key, |volatile, _| (volatile.reset(), None));
        Some(step)
    }

    /// The reply to a request that certainly has to wait ([`Lock::must_wait`]): it is decided only
    /// when it is parked.
    fn must_wait(
        &self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &Lock,
        ask: &Acquire<'_>,
    ) -> Option<Reply> {
        if self.grace_of(bounds.grace_ms, at.now).is_some() || self.is_unseen(at.db, at.key) {
            return None;
        }
        lock.must_wait(self.locks.get_or_empty(at.db, at.key), ask, at.now)
    }

    /// Runs a [`Step`], or continues one that stopped. Returns the expiry that the key had before
    /// and must have now. A connection that lost its session is closed, and gets no further grant.
    pub fn step<'a>(
        &mut self,
        at: At<'_>,
        bounds: &Bounds,
        lock: &mut Lock,
        input: &Input<'a>,
        rights: Rights<'_>,
        effects: &mut Effects<'a>,
    ) -> [KeyExpiry; 2] {
        let At { db, key, now } = at;
        let totals = self.locks.totals();
        let is_suspect = matches!(input, Input::Changed) || self.is_unseen(db, key);
        (self.slow, self.slowlog_max) = (bounds.slow, bounds.slowlog_max);
        let grace = self.grace_of(bounds.grace_ms, now);
        self.arrivals = self.arrivals.saturating_add(1);
        let serves_later = self.groups.several_change && self.groups.waiting_count() > 0;
        let Self { tokens, locks, names, expects_keys, arrivals, waits, tells, .. } = self;
        let name = || {
            // Waiting requests share one copy of the owner's name.
            let shared = match input {
                Input::Park(_, parking) | Input::ParkRenew(_, parking) => {
                    let parked = waits.get(parking.waiter).map(|parked| parked.lock.clone());
                    let shared = parked.or_else(|| tells.lock_of(parking.waiter));
                    shared.filter(|_| !parking.is_of_several)
                }
                _ => None,
            };
            shared.unwrap_or_else(|| LockId { db, key: key.into() })
        };
        let (lives, over, asked, touched, is_unserved) =
            locks.change_named(db, key, name, |volatile, _| {
                if is_suspect && !volatile.is_empty() {
                    effects.lost.extend(lock.lost_sessions(volatile, now));
                    effects.wakes.extend(lock.lost_grants(volatile, now));
                    lock.uncover_ended(volatile);
                }
                let beside = less(totals.sessions, volatile.session_count());
                let moment = StepContext {
                    now,
                    tokens,
                    max_depth: bounds.max_depth,
                    tickets_left: bounds.max_tickets.saturating_sub(totals.tickets),
                    sessions_max: bounds.max_sessions.saturating_sub(beside),
                    slow: bounds.slow,
                    names,
                    names_max: names_max(totals.waiting()),
                    confirm_ms: bounds.confirm_ms,
                    grace,
                    rights,
                    arrival: *arrivals,
                    portion: StepContext::PORTION,
                    serves_later,
                };
                let before = KeyExpiry::of(lock, Some(volatile));
                Step { lock, volatile, moment, effects }.apply(*input);
                *expects_keys |=
                    effects.unchecked.is_none() && lock.is_free() && volatile.queue.has_blocked();
                let lives = [before, KeyExpiry::of(lock, Some(volatile))];
                let over = volatile.drain_ended(bounds.slow, now);
                // A group that loses its turn may get it back when the step continues, or when the
                // queue is served.
                let is_unserved = volatile.is_unserved;
                let is_settled = effects.unchecked.is_none() && !is_unserved;
                let stands = match is_settled {
                    true => volatile.queue.take_touched_groups(),
                    false => volatile.queue.touched_groups(),
                };
                let touched = TouchedGroups { stands, is_settled };
                if volatile.is_empty() {
                    return ((lives, over, Vec::new(), touched, false), None);
                }
                let next = lock.next_to_end(volatile);
                ((lives, over, volatile.take_asked(), touched, is_unserved), next)
            });
        self.is_at(db, key, lock);
        if !effects.changes.is_empty() {
            self.observers.mark(db, key, !effects.wakes.is_empty());
        }
        self.log_slow(at, over);
        match is_unserved {
            true => self.groups.serve_later(LockId { db, key: key.into() }, now),
            false => self.groups.is_served(db, key),
        }
        self.groups_are(db, key, touched);
        self.expect_acks(at, input, asked, effects);
        // A step that stopped may still let in a group whose connection is lost.
        if effects.unchecked.is_none() && !effects.lost.is_empty() {
            self.lose(std::mem::take(&mut effects.lost), now);
        }
        lives
    }

    /// Records who waits for acknowledgments after a step, and what replicas have yet to
    /// acknowledge.
    fn expect_acks(
        &mut self,
        at: At<'_>,
        input: &Input<'_>,
        asked: Vec<(u8, Ack)>,
        effects: &mut Effects<'_>,
    ) {
        let parked = match input {
            Input::Park(ask, by) => Some((by.waiter, ask.owner, PendingRequest::Acquire(ask.mode))),
            Input::ParkRenew(ask, by) => {
                Some((by.waiter, ask.owner, PendingRequest::Renew(ask.mode)))
            }
            _ => None,
        };
        if let Some((waiter, owner, asked)) = parked.filter(|_| effects.reply == Reply::Pending) {
            self.waits.expect(waiter, Refusal::NoAcks);
            self.tells.is_pending(waiter, owner.into(), asked);
        }
        for (waiter, owner, mode) in std::mem::take(&mut effects.told_pending) {
            self.tells.is_pending(waiter, owner, PendingRequest::Acquire(mode));
        }
        for waiter in &effects.unheard {
            self.tells.end(*waiter);
        }
        // Whoever is woken here gets a reply now: its grant of several locks is not reported.
        if self.groups.pending > 0 {
            effects.wakes.iter().for_each(|wake| self.groups.revoke(wake.waiter));
        }
        effects.pending.iter().for_each(|waiter| self.waits.expect(*waiter, Refusal::NoAcks));
        if !asked.is_empty() {
            effects.awaits_acks = true;
            self.acks.ask(LockId { db: at.db, key: at.key.into() }, asked);
        }
    }

    /// Nobody can be granted the lock at this key any more: blocked connections get the error
    /// `why`. If more wait than fit into a portion, the others get it with the next sweep, unless
    /// the key is a lock again by then.
    pub fn dismiss(&mut self, at: At<'_>, why: &Refusal) {
        let At { db, key, now } = at;
        let slow = self.slow;
        let (dismissed, over) = self.locks.change(db, key, |volatile, _| {
            let dismissed = volatile.dismiss(why, slow, now, StepContext::PORTION);
            ((dismissed, volatile.drain_ended(slow, now)), None)
        });
        if !dismissed.is_all {
            self.locks.mark(db, key, Mark::Changed, Some(now.ms()));
        }
        self.log_slow(at, over);
        // A group that is not among the first to end has lost its turn all the same.
        self.groups_are(db, key, TouchedGroups { stands: dismissed.touched, is_settled: true });
        for waiter in dismissed.groups {
            let reply = Reply::Refused(why.clone());
            self.end_group_with(waiter, reply, Outcome::Refused, now);
        }
        self.post(dismissed.wakes);
        self.lose(dismissed.lost, now);
    }
}
