//! Hand-off: the first in line enters in the same step that makes room for it.

use std::borrow::Cow;

use crate::step::input::{Effects, Reply, StepContext};
use crate::volatile::confirm::late_at;
use crate::volatile::endings::wake;
use crate::volatile::queue::{Entry, Kind, Place};
use crate::volatile::sessions::Session;
use crate::volatile::slow::Outcome;
use crate::volatile::unsent::{AckWait, Grant};
use crate::{Lock, Mode, Owner, Refusal, Volatile, WaiterId};

impl Lock {
    /// Lets in whoever can enter, from the head of the queue: blocked connections are granted,
    /// tickets get their turn. Adjacent readers enter together; nobody passes anybody.
    pub(crate) fn serve<'a>(
        &mut self,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'a>,
    ) {
        if volatile.queue.is_empty() || volatile.grace.is_some() {
            return;
        }
        if self.has_void_turns(volatile, moment.now) {
            volatile.queue.take_turns();
        }
        while let Some((place, head)) = volatile.queue.head() {
            let waits_for_turn = match head.mode {
                Mode::Read => volatile.queue.turn_mode() == Some(Mode::Write),
                Mode::Write => volatile.queue.turn_mode().is_some(),
            };
            if waits_for_turn || self.is_shut_to(volatile, head.into()) {
                return;
            }
            if !moment.take() {
                volatile.unfinished = Some(moment.now.ms());
                return;
            }
            // Its time has passed, but the portion ended before its reply.
            if head.ends_at.is_some_and(|ends_at| ends_at.is_over_at(moment.now)) {
                if let Some(entry) = volatile.queue.remove(place) {
                    volatile.log_slow(moment.slow.wait(&entry, Outcome::TimedOut, moment.now));
                    if let Kind::Blocked(waiter) = entry.kind {
                        let reply = Reply::NotNow { wait_ms: None };
                        effects.wakes.push(wake(waiter, reply, &entry, moment.now));
                    }
                }
                continue;
            }
            match head.kind {
                Kind::Ticket => {
                    effects.turns.push(head.owner.clone());
                    volatile.queue.give_turn(place);
                }
                Kind::Blocked(waiter) => {
                    if let Some(entry) = volatile.queue.remove(place) {
                        self.hand_over(waiter, &entry, volatile, moment, effects);
                        self.grant_reentries(entry.owner.as_bytes(), volatile, moment, effects);
                    }
                }
            }
        }
    }

    /// A value that came from outside may make parked requests of its owners re-entries: those are
    /// granted, wherever they stand. Goes through the fewer, holds or waits.
    pub(crate) fn grant_parked_reentries(
        &mut self,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'_>,
    ) {
        if volatile.grace.is_some() {
            return;
        }
        let queue = &volatile.queue;
        let holds = |owner: &Owner| {
            let holds = |mode| self.holders.hold(owner.as_bytes(), mode).is_some();
            holds(Mode::Read) || holds(Mode::Write)
        };
        let owners: Vec<Owner> = if self.holders.standing_count() < queue.len() {
            let owners = self.holders.standing().map(|(owner, _, _)| owner);
            owners.filter(|owner| queue.is_blocked(owner)).map(Owner::from).collect()
        } else {
            let owners = queue.iter().map(|(entry, _)| &entry.owner);
            owners
                .filter(|owner| holds(owner) && queue.is_blocked(owner.as_bytes()))
                .cloned()
                .collect()
        };
        for owner in owners {
            self.grant_reentries(owner.as_bytes(), volatile, moment, effects);
        }
    }

    /// Grants what is left of the requests that were re-entries at the end of a portion.
    pub(crate) fn go_on_entering(
        &mut self,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'_>,
    ) {
        for owner in std::mem::take(&mut volatile.entering) {
            self.grant_reentries(owner.as_bytes(), volatile, moment, effects);
        }
    }

    /// The owner holds or has re-entered: its ticket is withdrawn, and those of its blocked
    /// requests that are re-entries now are granted, wherever they stand.
    pub(crate) fn grant_reentries<'a>(
        &mut self,
        owner: &[u8],
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'a>,
    ) {
        if volatile.queue.is_empty() {
            return;
        }
        if let Some(place) = volatile.queue.ticket_of(owner)
            && let Some(ticket) = volatile.queue.remove(place)
        {
            volatile.log_slow(moment.slow.wait(&ticket, Outcome::Granted, moment.now));
        }
        let mut from = Place::FIRST;
        loop {
            let writes = self.holders.hold(owner, Mode::Write).is_some();
            let reads = self.holders.hold(owner, Mode::Read).is_some();
            let enters = |mode: Mode| writes || reads && mode == Mode::Read;
            // Those before stay what they were: a re-entry adds no mode.
            let mut waits = volatile.queue.blocked_of(owner, from);
            let Some((place, _)) = waits.find(|(_, entry)| enters(entry.mode)) else { return };
            drop(waits);
            if !moment.take() {
                volatile.unfinished = Some(moment.now.ms());
                volatile.entering.push(owner.into());
                return;
            }
            let Some(entry) = volatile.queue.remove(place) else { return };
            from = place;
            if let Kind::Blocked(waiter) = entry.kind {
                self.hand_over(waiter, &entry, volatile, moment, effects);
            }
        }
    }

    /// Grants a parked connection what it asked for, or tells it why that is not possible.
    fn hand_over<'a>(
        &mut self,
        waiter: WaiterId,
        entry: &Entry,
        volatile: &mut Volatile,
        moment: &mut StepContext<'_>,
        effects: &mut Effects<'a>,
    ) {
        let owner = entry.owner.as_bytes();
        self.end_own(owner, volatile, moment, effects);
        let held = self.holders.hold(owner, entry.mode);
        let reply = match held {
            _ if entry.session().is_some() && !volatile.may_tie(held, moment) => {
                Reply::Refused(Refusal::TooManySessions)
            }
            Some(hold) => self.reenter(entry.depth, entry.lease, hold, moment, effects),
            None => {
                let owner = Cow::Owned(owner.to_vec());
                self.begin_hold(owner, entry.mode, entry.lease, volatile, moment, effects)
            }
        };
        if let Reply::Granted { token, .. } = reply {
            let (depth, deadline) = self.levels(token, moment.now);
            let adds = depth > held.map_or(0, |before| before.depth);
            let acks = volatile.acks_for(entry.acks, held);
            if acks > 0 {
                let gate = AckWait {
                    acks,
                    until: late_at(moment, entry.ends_at, deadline),
                    deadline,
                    since: entry.since,
                    granted_at: moment.now,
                    session: entry.session().map(|client| (client, entry.lease)),
                    is_renewal: false,
                };
                volatile.gate(waiter, Grant { token, adds }, gate, held.is_none());
                volatile.log_slow(moment.slow.wait(entry, Outcome::Granted, moment.now));
                effects.gated.push(waiter);
                return;
            }
            volatile.remember_grant(waiter, token, adds);
            if let Some(client) = entry.session() {
                let session = Session::new(client, entry.lease, moment.now);
                volatile.sessions.tie_untold(token, waiter, session);
            }
        }
        let is_granted = matches!(reply, Reply::Granted { .. });
        let outcome = if is_granted { Outcome::Granted } else { Outcome::Refused };
        volatile.log_slow(moment.slow.wait(entry, outcome, moment.now));
        effects.wakes.push(wake(waiter, reply, entry, moment.now));
    }

    /// Levels whose connection departed before it could hear of its grant.
    pub(crate) fn revoke(
        &mut self,
        volatile: &mut Volatile,
        moment: &StepContext<'_>,
        effects: &mut Effects<'_>,
    ) {
        while let Some((token, by)) = volatile.next_revoked() {
            let until = self.holders.ended_until();
            let hold = self.holders.by_token(token).map(|(_, hold)| hold);
            let hold = hold.filter(|hold| Some(hold.deadline) > until);
            match (hold, by) {
                (Some(hold), None) => volatile.levels_remain(token, hold.depth),
                (None, None) => {}
                (Some(hold), Some(_)) if hold.depth > 1 => {
                    let left = hold.depth.saturating_sub(1);
                    self.update_hold(hold, left, hold.deadline, effects);
                    volatile.levels_remain(token, left);
                }
                (_, Some(by)) => self.end(token, by, volatile, moment, effects),
            }
        }
    }
}
