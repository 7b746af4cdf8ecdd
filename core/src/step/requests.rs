//! What a request does.

use smallvec::SmallVec;
use std::borrow::Cow;

use crate::step::input::{Acquire, Levels, Parking, Patience, Release, Renew, Reply};
use crate::volatile::kind::Kind;
use crate::volatile::levels::Asked;
use crate::volatile::queue::{Arrival, Entry, Place};
use crate::volatile::slow::Outcome;
use crate::volatile::unsent::HeldBack;
use crate::{Change, End, Hold, Lock, Mode, Now, Refusal, Step, Token, Volatile, WaiterId};

impl Lock {
    /// Whether another reader already waits in front to upgrade.
    pub(crate) fn is_upgraded_by_another(&self, volatile: &Volatile, owner: &[u8]) -> bool {
        volatile.queue.foremost().any(|entry| {
            let other = entry.owner.as_bytes();
            let reads = || self.holders.hold(other, Mode::Read).is_some();
            other != owner && entry.upgrade && entry.mode == Mode::Write && reads()
        })
    }
}

impl<'a> Step<'_, 'a> {
    pub(crate) fn acquire(&mut self, ask: Acquire<'a>, parking: Option<Parking>) -> Reply {
        let held = self.lock.holders.hold(ask.owner, ask.mode);
        if let Some(refused) = self.level_is_skipped(ask.owner, ask.mode, ask.depth) {
            return refused;
        }
        if (held.is_none() || self.volatile.grace.is_some())
            && let Err(reply) = self.may_begin(&ask)
        {
            return reply;
        }
        if ask.session.is_some() && !self.volatile.may_tie(held, self.moment.sessions_max) {
            return Reply::Refused(Refusal::TooManySessions);
        }
        // The owner asked before, and its wait has this number: that wait ends.
        if let Some(place) = parking.and_then(|it| self.volatile.queue.place_of(it.waiter)) {
            self.volatile.queue.remove(place);
        }
        let acks = self.volatile.acks_for(ask.acks, held, ask.depth);
        match ask.patience {
            Patience::Ticket(_) if acks > 0 => return Reply::Refused(Refusal::HoldIsPending),
            _ if acks > 0 && parking.is_none() => return Reply::MustConfirm,
            _ => {}
        }
        if ask.patience == Patience::Take && held.is_none() {
            self.force(None);
        }
        self.grant(Acquire { acks, ..ask }, held, None, parking)
    }

    /// Grants an owner what it asks for, and then what is a re-entry: a level of the hold that it
    /// has, or a new hold, with this token or the next one. The owner learns of it at once, unless
    /// a caller waits for the reply.
    pub(crate) fn grant(
        &mut self,
        ask: Acquire<'a>,
        held: Option<Hold>,
        token: Option<Token>,
        caller: Option<Parking>,
    ) -> Reply {
        // Where the order of the sessions matters, all of them enter in the same portion.
        if ask.session.is_some() && caller.is_none() && self.stop_for_own(ask.owner) {
            return Reply::Count(0);
        }
        let granted = match held {
            Some(hold) => self.reenter(ask.depth, ask.lease, hold),
            None => self.begin_hold(Cow::Borrowed(ask.owner), &ask, token),
        };
        let Reply::Granted { token, .. } = granted else { return granted };
        let Some(caller) = caller else {
            self.granted_at_once(&ask, token);
            return granted;
        };
        let is_pending = self.reply_to_grant_later(caller, &ask, token, held);
        if is_pending && caller.is_of_several {
            self.effects.pending.push(caller.waiter);
        }
        self.grant_reentries(ask.owner);
        if is_pending { Reply::Pending } else { granted }
    }

    /// The owner learns at once that it was granted what it asks for.
    fn granted_at_once(&mut self, ask: &Acquire<'_>, token: Token) {
        let session = HeldBack::grant(ask.session, ask.lease).session(self.moment.now);
        self.volatile.unsent.owner_knows(token);
        self.volatile.unsent.levels.told(token, ask.depth);
        if let Some(session) = session {
            self.volatile.sessions.tie(token, session);
        }
        self.volatile.sessions.lasts_at_least(token, self.deadline_of(token), 0);
        let tied = self.volatile.sessions.get(token).copied();
        // All of them, if the order of the ties matters.
        let left = self.moment.portion;
        self.moment.portion = if session.is_some() { usize::MAX } else { left };
        self.grant_reentries(ask.owner);
        self.moment.portion = left.min(self.moment.portion);
        // Requests that re-entered in this step asked earlier, so the session belongs to this
        // connection.
        if let Some(session) = session
            && self.volatile.sessions.get(token).copied() != tied
        {
            self.volatile.sessions.tie(token, session);
        }
    }

    /// Checks whether a new hold may begin. `Err` has the reply to the caller, which has its place
    /// in the queue by then.
    fn may_begin(&mut self, ask: &Acquire<'_>) -> Result<(), Reply> {
        let takes = ask.patience == Patience::Take;
        let reads = || self.lock.holders.hold(ask.owner, Mode::Read).is_some();
        // Who takes the lock upgrades nothing: its own READ ends, too.
        let is_upgrade = !takes && ask.mode == Mode::Write && reads();
        if is_upgrade && !ask.upgrade {
            return Err(Reply::Refused(Refusal::UpgradeWouldDeadlock));
        }
        let ticket = self.volatile.queue.ticket_of(ask.owner);
        let turn = ticket.filter(|place| self.volatile.queue.has_turn(*place));
        // Without QUEUE and BLOCK, a ticket counts only if it has its turn.
        let place = if ask.patience == Patience::None { turn } else { ticket };
        let owns_write = self.lock.holders.hold(ask.owner, Mode::Write).is_some();
        let is_open = !owns_write && self.lock.is_open_to(self.volatile, ask, is_upgrade, place);
        if is_open {
            self.put_off_behind(ask, turn);
        }
        let may_enter = owns_write || takes || is_open;
        if may_enter && self.volatile.grace.is_none() {
            return Ok(());
        }
        // Turns behind its own may have been given up, which may move other places.
        let ticket = if turn.is_some() { self.volatile.queue.ticket_of(ask.owner) } else { ticket };
        let is_second = is_upgrade && self.lock.is_upgraded_by_another(self.volatile, ask.owner);
        let now = self.moment.now;
        let wait_ms = match self.volatile.grace {
            Some(grace) if may_enter => Some(grace.wait_from(now)),
            _ if is_second => None,
            _ => self.lock.estimated_wait_ms(self.volatile, ask, ticket, is_upgrade, now),
        };
        let is_full = ask.max_queue.is_some_and(|max| self.volatile.queue.len() >= max);
        if matches!(ask.patience, Patience::None | Patience::Take) || ticket.is_none() && is_full {
            return Err(Reply::NotNow { wait_ms });
        }
        if is_second {
            return Err(Reply::Refused(Refusal::SecondUpgrade));
        }
        let Patience::Ticket(window) = ask.patience else {
            return Err(Reply::MustWait { wait_ms });
        };
        if ticket.is_none() && self.moment.tickets_left == 0 {
            return Err(Reply::Refused(Refusal::TooManyTickets));
        }
        self.enqueue(ticket, ask.entry(Kind::Ticket, Some(now.after(window)), now));
        Err(Reply::NotNow { wait_ms })
    }

    /// The owner's place in the queue: its ticket or the wait with this number, whichever is first.
    /// The other one is given up.
    pub(crate) fn own_place(&mut self, waiter: WaiterId, owner: &[u8]) -> Option<Place> {
        let queue = &mut self.volatile.queue;
        let (ticket, own) = (queue.ticket_of(owner), queue.place_of(waiter));
        if let (Some(one), Some(other)) = (ticket, own) {
            queue.remove(one.max(other));
            return Some(one.min(other));
        }
        ticket.or(own)
    }

    /// Takes a place in the queue: that of the owner's ticket, the front for an upgrade, or the
    /// end.
    pub(crate) fn enqueue(&mut self, ticket: Option<Place>, mut entry: Entry) {
        if ticket.is_none() {
            self.note_in_the_way(&mut entry);
        }
        entry.arrival = Arrival::new(self.moment.arrival);
        let queue = &mut self.volatile.queue;
        let reads = || self.lock.holders.hold(entry.owner.as_bytes(), Mode::Read).is_some();
        let is_upgrade = entry.upgrade && entry.mode == Mode::Write && reads();
        let Some(mut place) = ticket else {
            return if is_upgrade { queue.push_front(entry) } else { queue.push_back(entry) };
        };
        // The owner asked and could not acquire the lock: it gives up its turn, if it had one, and
        // the waiters behind it are decided anew.
        if queue.has_turn(place) {
            queue.take_turns_from(place);
            place = queue.ticket_of(entry.owner.as_bytes()).unwrap_or(place);
        }
        if is_upgrade && queue.get(place).is_some_and(|ticket| !ticket.is_in_front) {
            if let Some(ticket) = queue.remove(place) {
                (entry.since, entry.in_the_way) = (ticket.since, ticket.in_the_way);
                entry.arrival = ticket.arrival;
            }
            queue.push_front(entry);
        } else {
            queue.replace(place, entry);
        }
    }

    pub(crate) fn release(&mut self, ask: Release<'a>) -> Reply {
        let Some((hold, left)) = self.lock.release_target(&ask) else {
            return match (ask.levels, ask.token) {
                (Levels::DownTo(_), None) => Reply::Count(0),
                _ => self.not_held(ask.owner, ask.mode, ask.token),
            };
        };
        // The grant was never reported, so releasing it ends all levels.
        if left == 0 || self.volatile.pending_acks(hold.token).is_some() {
            self.end(hold.token, End::Released);
        } else {
            self.update_hold(hold, left, hold.deadline);
            let levels = &mut self.volatile.unsent.levels;
            match ask.levels {
                Levels::DownTo(_) => levels.cap(hold.token, left),
                Levels::One | Levels::All => levels.release_one(hold.token, left),
            }
            self.volatile.levels_remain(hold.token);
        }
        let left = self.lock.holders.by_token(hold.token).map_or(0, |(.., hold)| hold.depth);
        Reply::Count(left.into())
    }

    /// Renews; a blocked caller has its reply later.
    pub(crate) fn renew(&mut self, ask: Renew<'_>, parking: Option<Parking>) -> Reply {
        let holds: SmallVec<[Hold; 2]> =
            self.lock.holds_of(ask.owner, ask.mode, ask.token).collect();
        let Some(first) = holds.first().copied() else {
            return self.not_held(ask.owner, ask.mode, ask.token);
        };
        let acks_for = |hold: &Hold| self.volatile.acks_for(ask.acks, Some(*hold), None);
        let acks = holds.iter().map(acks_for).max().unwrap_or(0);
        if acks > 0 && parking.is_none() {
            return Reply::MustConfirm;
        }
        for hold in holds {
            let Hold { token, depth, .. } = hold;
            let deadline = hold.deadline.max(self.moment.now.after(ask.lease));
            self.record(Change::Updated { token, depth, deadline });
            if acks == 0 {
                self.volatile.unsent.owner_knows(token);
                self.volatile.sessions.lasts_at_least(token, deadline, 0);
            }
        }
        let (Some(caller), 1..) = (parking, acks) else { return Reply::Renewed };
        let (asked, reply) = (Asked::new(Some(first), Some(1)), HeldBack::Renewal);
        self.hold_back(caller, acks, first.token, asked, reply);
        Reply::Pending
    }

    /// Ends all waits of this owner: its ticket, and its blocked connections, which get a reply.
    pub(crate) fn cancel(&mut self, owner: &[u8]) -> Reply {
        let (now, mut count): (Now, u64) = (self.moment.now, 0);
        while let Some((place, entry)) = self.volatile.queue.first_of(owner) {
            if entry.kind.group().is_some() {
                // The owner's other places are given up; the caller gets its reply.
                self.volatile.queue.remove(place);
                continue;
            }
            let wait_ms = self.lock.estimated_wait_at(self.volatile, place, entry, now);
            if let Some(entry) = self.volatile.queue.remove(place) {
                self.end_wait(&entry, Reply::NotNow { wait_ms }, Outcome::Cancelled);
            }
            count = count.saturating_add(1);
        }
        for mode in [Mode::Write, Mode::Read] {
            let Some(hold) = self.lock.holders.hold(owner, mode) else { continue };
            // Its groups are canceled, including those that were just granted this lock.
            drop(self.volatile.queue.take_covered(hold.token));
        }
        self.revoke();
        Reply::Count(count)
    }

    pub(crate) fn force(&mut self, mode: Option<Mode>) -> Reply {
        let tokens: Vec<Token> = self
            .lock
            .holders
            .standing()
            .filter(|(_, held, _)| mode.is_none_or(|only| only == *held))
            .map(|(_, _, hold)| hold.token)
            .collect();
        for token in &tokens {
            self.end(*token, End::Forced);
        }
        Reply::Count(u64::try_from(tokens.len()).unwrap_or(u64::MAX))
    }
}
