//! Hand-off: the first in line enters in the step that makes room for it.

use std::borrow::Cow;

use crate::step::input::{Acquire, Parking, Reply, Unchecked};
use crate::volatile::kind::Kind;
use crate::volatile::queue::{Entry, Place};
use crate::volatile::slow::Outcome;
use crate::{Mode, Owner, Refusal, Right, Step, WaiterId};

/// For how many waiters that would enter together the permissions are asked at a time.
const CHECKED_TOGETHER: usize = 16;

impl Step<'_, '_> {
    /// Lets in every waiter that can enter, from the head of the queue: blocked connections are
    /// granted, tickets get their turn. Adjacent readers enter together; nobody overtakes anybody.
    pub(crate) fn serve(&mut self) {
        self.volatile.is_unserved = false;
        if self.volatile.queue.is_empty() || self.volatile.grace.is_some() {
            return;
        }
        if self.lock.has_void_turns(self.volatile, self.moment.now) {
            self.volatile.queue.take_turns();
        }
        if self.moment.serves_later {
            let head = self.volatile.queue.head();
            self.volatile.is_unserved = head.is_some_and(|(place, head)| self.enters(place, head));
            return;
        }
        while self.effects.unchecked.is_none()
            && let Some((place, head)) = self.volatile.queue.head()
        {
            if !self.enters(place, head) {
                return;
            }
            // The wait has timed out, but the portion ended before its reply.
            let is_over = head.ends_at.is_some_and(|ends_at| ends_at.is_over_at(self.moment.now));
            if let Some(waiters) = self.unchecked_in_line(head).filter(|_| !is_over) {
                return self.stop(waiters, true);
            }
            let kind = head.kind;
            if !self.take_item() {
                return;
            }
            if is_over {
                if let Some(entry) = self.volatile.queue.remove(place) {
                    self.end_wait(&entry, Reply::NotNow { wait_ms: None }, Outcome::TimedOut);
                }
                continue;
            }
            match kind {
                Kind::Ticket => {
                    let ticket = self.volatile.queue.get(place);
                    self.effects.turns.extend(ticket.map(|ticket| ticket.owner.clone()));
                    self.volatile.queue.give_turn(place);
                }
                Kind::Group(_) => self.volatile.queue.give_turn(place),
                Kind::Blocked(waiter) | Kind::Told(waiter) => {
                    if let Some(entry) = self.volatile.queue.remove(place) {
                        self.hand_over(waiter, &entry);
                        self.grant_reentries(entry.owner.as_bytes());
                    }
                }
            }
        }
    }

    /// Whether the first in line can enter now.
    fn enters(&self, place: Place, head: &Entry) -> bool {
        self.lock.is_open_to(self.volatile, &head.into(), true, Some(place))
    }

    /// Law 6: the first in line cannot be granted the lock, unless this step stopped and continues
    /// later.
    pub(crate) fn is_served(&self) -> bool {
        let is_later = self.effects.unchecked.is_some()
            || self.volatile.unfinished.is_some()
            || self.volatile.is_unserved;
        let head = self.volatile.queue.head();
        is_later
            || self.volatile.grace.is_some()
            || !head.is_some_and(|(place, head)| self.enters(place, head))
    }

    /// The waiters whose permissions to check next: the first in line and those that would enter
    /// together with it. `None` if that of the first has been checked.
    fn unchecked_in_line(&self, head: &Entry) -> Option<Vec<WaiterId>> {
        let first = head.kind.waiter()?;
        if self.moment.rights.of(first).is_some() {
            return None;
        }
        let line = self.volatile.queue.line_between(None, None).map(|(_, entry)| entry).skip(1);
        let together = line.take_while(|entry| head.mode == Mode::Read && entry.mode == Mode::Read);
        let others = together.filter_map(|entry| entry.kind.waiter());
        Some([first].into_iter().chain(others).take(CHECKED_TOGETHER).collect())
    }

    /// A value from outside may hold the lock for owners with parked requests. These requests are
    /// then re-entries, and are granted wherever they stand. Visits the holds or the waits,
    /// whichever are fewer.
    pub(crate) fn grant_parked_reentries(&mut self) {
        if self.volatile.grace.is_some() {
            return;
        }
        let queue = &self.volatile.queue;
        let holds = |owner: &Owner| {
            let holds = |mode| self.lock.holders.hold(owner.as_bytes(), mode).is_some();
            holds(Mode::Read) || holds(Mode::Write)
        };
        let owners: Vec<Owner> = if self.lock.holders.standing_count() < queue.len() {
            let owners = self.lock.holders.standing().map(|(owner, _, _)| owner);
            owners.filter(|owner| queue.is_blocked(owner)).map(Owner::from).collect()
        } else {
            let owners = queue.iter().map(|(entry, _)| &entry.owner);
            owners
                .filter(|owner| holds(owner) && queue.is_blocked(owner.as_bytes()))
                .cloned()
                .collect()
        };
        for owner in owners {
            self.grant_reentries(owner.as_bytes());
        }
    }

    /// Continues to grant the re-entries that the last portion did not reach.
    pub(crate) fn go_on_entering(&mut self) {
        for owner in std::mem::take(&mut self.volatile.entering) {
            self.grant_reentries(owner.as_bytes());
        }
    }

    /// The owner holds or has re-entered: its ticket is withdrawn, and those of its blocked
    /// requests that have become re-entries are granted, wherever they stand.
    pub(crate) fn grant_reentries(&mut self, owner: &[u8]) {
        if self.volatile.queue.is_empty() {
            return;
        }
        if !self.cover_groups(owner) {
            return self.volatile.entering.push(owner.into());
        }
        if let Some(place) = self.volatile.queue.ticket_of(owner)
            && let Some(ticket) = self.volatile.queue.remove(place)
        {
            self.log_end(&ticket, Outcome::Granted);
        }
        loop {
            let writes = self.lock.holders.hold(owner, Mode::Write).is_some();
            if !writes && self.lock.holders.hold(owner, Mode::Read).is_none() {
                return;
            }
            // The requests ahead of it are judged as before: a re-entry adds no mode.
            let (place, unchecked) = {
                let queue = &self.volatile.queue;
                // An owner that only holds READ may have very many waits for WRITE.
                let mut waits = queue.blocked_of(owner, (!writes).then_some(Mode::Read));
                let Some((place, entry)) = waits.next() else { return };
                let first = entry.kind.waiter();
                let goes_on = self.effects.unchecked.is_none();
                let first =
                    first.filter(|waiter| goes_on && self.moment.rights.of(*waiter).is_none());
                let waiters = first.map(|first| {
                    let others = waits.filter_map(|(_, entry)| entry.kind.waiter());
                    [first].into_iter().chain(others).take(CHECKED_TOGETHER).collect()
                });
                (place, waiters)
            };
            if let Some(waiters) = unchecked {
                self.stop(waiters, true);
            }
            if self.effects.unchecked.is_some() || !self.take_item() {
                return self.volatile.entering.push(owner.into());
            }
            let Some(entry) = self.volatile.queue.remove(place) else { return };
            if let Some(waiter) = entry.kind.waiter() {
                self.hand_over(waiter, &entry);
            }
        }
    }

    /// Stops before a grant, until it is known which of these waiters may be granted.
    fn stop(&mut self, waiters: Vec<WaiterId>, is_decided: bool) {
        debug_assert!(self.effects.unchecked.is_none() && !waiters.is_empty(), "{waiters:?}");
        let portion = self.moment.portion;
        self.effects.unchecked = Some(Unchecked { waiters, is_decided, portion });
    }

    /// Stops before a request is decided, until it is known which of its owner's blocked requests
    /// may be granted with it. False if that is known already.
    pub(crate) fn stop_for_own(&mut self, owner: &[u8]) -> bool {
        let own = self.volatile.queue.blocked_of(owner, None);
        let own = own.filter_map(|(_, entry)| entry.kind.waiter());
        let waiters: Vec<WaiterId> =
            own.filter(|waiter| self.moment.rights.of(*waiter).is_none()).collect();
        let stops = !waiters.is_empty();
        if stops {
            self.stop(waiters, false);
        }
        stops
    }

    /// Grants a blocked connection what it asked for, or refuses it with the reason.
    fn hand_over(&mut self, waiter: WaiterId, entry: &Entry) {
        match self.moment.rights.of(waiter) {
            Some(Right::MayNot) => {
                let reply = Reply::Refused(Refusal::NotPermitted);
                return self.end_wait(entry, reply, Outcome::Refused);
            }
            Some(Right::Unheard) => {
                self.log_end(entry, Outcome::Disconnected);
                return self.effects.unheard.push(waiter);
            }
            Some(Right::May) | None => {}
        }
        let ask = Acquire::from(entry);
        self.end_own(ask.owner);
        let held = self.lock.holders.hold(ask.owner, ask.mode);
        // The level below it may have ended while it waited.
        let skipped = self.level_is_skipped(ask.owner, ask.mode, ask.depth);
        let reply = match (skipped, held) {
            (Some(refused), _) => refused,
            _ if ask.session.is_some()
                && !self.volatile.may_tie(held, self.moment.sessions_max) =>
            {
                Reply::Refused(Refusal::TooManySessions)
            }
            (None, Some(hold)) => self.reenter(ask.depth, ask.lease, hold),
            (None, None) => self.begin_hold(Cow::Owned(ask.owner.to_vec()), &ask, None),
        };
        if let Reply::Granted { token, .. } = reply {
            let acks = self.volatile.acks_for(ask.acks, held, ask.depth);
            let (caller, ask) = (Parking::of(waiter, entry), Acquire { acks, ..ask });
            if self.reply_to_grant_later(caller, &ask, token, held) {
                self.log_end(entry, Outcome::Granted);
                self.effects.pending.push(waiter);
                if let Kind::Told(waiter) = entry.kind {
                    let asked = (waiter, entry.owner.clone(), entry.mode);
                    self.effects.told_pending.push(asked);
                }
                return;
            }
        }
        let is_granted = matches!(reply, Reply::Granted { .. });
        let outcome = if is_granted { Outcome::Granted } else { Outcome::Refused };
        self.end_wait(entry, reply, outcome);
    }

    /// Ends the levels whose connection departed before it could read the reply.
    pub(crate) fn revoke(&mut self) {
        while let Some((token, lost, by)) = self.volatile.unsent.next_revoked() {
            let until = self.lock.holders.ended_until();
            let hold = self.lock.holders.by_token(token).map(|(.., hold)| hold);
            match hold.filter(|hold| Some(hold.deadline) > until && hold.depth > lost) {
                Some(hold) => {
                    self.update_hold(hold, hold.depth.saturating_sub(lost), hold.deadline);
                    self.volatile.levels_remain(token);
                }
                None => self.end(token, by),
            }
        }
    }
}
