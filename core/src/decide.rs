//! The one transition: what an input does to a lock and to the memory of it.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::gated::Told;
use crate::input::{
    Acquire, Effects, Input, Levels, Moment, Parking, Patience, Release, Renew, Reply, Wake,
};
use crate::queue::{Entry, Kind, Place};
use crate::refusal::{Instead, Refusal};
use crate::sessions::Session;
use crate::slow::{Names, Outcome};
use crate::way::{Wish, is_behind, is_reached};
use crate::{Change, End, EpochMs, Hold, LeaseMs, Lock, Memory, Mode, Now, Token, WaiterId};

impl Lock {
    /// Decides what `input` does now, and does it. What others must be told goes to `effects`,
    /// which must be empty. What has expired ends first, so that it decides nothing; and whoever
    /// can enter afterwards has entered when this returns.
    pub fn apply<'a>(
        &mut self,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        input: Input<'a>,
        effects: &mut Effects<'a>,
    ) {
        memory.unfinished = None;
        let grace_is_over = memory.grace.is_some() && moment.grace.is_none();
        memory.grace = moment.grace;
        if let Input::Deny(waiter) = input {
            memory.leave(waiter);
        }
        self.catch_up(memory, moment, input.owner(), effects);
        if grace_is_over {
            self.reenter_parked(memory, moment, effects);
        }
        let has_caught_up = !effects.changes.is_empty();
        effects.reply = match input {
            Input::Acquire(ask) => self.acquire(ask, None, memory, moment, effects),
            Input::Park(ask, parking) => {
                let reply = self.acquire(ask, Some(parking), memory, moment, effects);
                let Parking { waiter, client, ends_at } = parking;
                if let Reply::MustWait { .. } = reply {
                    let ticket = memory.queue.ticket_of(ask.owner);
                    let mut entry = Entry::new(&ask, Kind::Blocked(waiter), ends_at, moment.now);
                    entry.client = entry.client.or(client);
                    self.stand(memory, moment, ticket, entry);
                }
                reply
            }
            Input::Release(ask) => self.release(ask, memory, moment, effects),
            Input::Renew(ask) => self.renew(ask, None, memory, moment, effects),
            Input::ParkRenew(ask, parking) => {
                self.renew(ask, Some(parking), memory, moment, effects)
            }
            Input::Cancel(owner) => self.cancel(owner, memory, moment, effects),
            Input::Force(mode) => self.force(mode, memory, moment, effects),
            Input::Changed => {
                self.reenter_parked(memory, moment, effects);
                Reply::Count(0)
            }
            Input::Tick | Input::Deny(_) => Reply::Count(0),
        };
        self.serve(memory, moment, effects);
        if let (Input::Release(ask), [Change::Ended { .. }]) = (&input, effects.changes.as_slice())
        {
            effects.is_request_enough = !has_caught_up && self.left_by(ask).is_none();
        }
    }

    fn acquire<'a>(
        &mut self,
        ask: Acquire<'a>,
        parking: Option<Parking>,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        let held = self.holders.hold(ask.owner, ask.mode);
        let present = held.map_or(0, |hold| hold.depth);
        if let Some(asked) = ask.depth
            && asked > present.saturating_add(1)
        {
            return match held {
                Some(_) => Reply::Refused(Refusal::DepthSkipped { asked, present }),
                None => self.not_held(ask.owner, Some(ask.mode), None),
            };
        }
        if (held.is_none() || memory.grace.is_some())
            && let Err(reply) = self.may_begin(&ask, memory, moment)
        {
            return reply;
        }
        if ask.session.is_some() && !memory.may_tie(held, moment) {
            return Reply::Refused(Refusal::TooManySessions);
        }
        let acks = memory.acks_for(ask.acks, held);
        if acks > 0 {
            let told = Told { acks, held, parking };
            return self.acquire_gated(ask, told, memory, moment, effects);
        }
        let session = ask.session.map(|client| Session::new(client, ask.lease, moment.now));
        let owner = Cow::Borrowed(ask.owner);
        let reply = match held {
            Some(hold) => self.enter_again(ask.depth, ask.lease, hold, moment, effects),
            None => self.enter(owner, ask.mode, ask.lease, memory, moment, effects),
        };
        let Reply::Granted { token, .. } = reply else { return reply };
        if let Some(Parking { waiter, .. }) = parking {
            // The lock became another one since it was told to wait. It is parked, and hears later.
            let (depth, _) = self.levels(token, moment.now);
            memory.remember_grant(waiter, token, depth > present);
            if let Some(session) = session {
                memory.sessions.tie_untold(token, waiter, session);
            }
            self.granted(ask.owner, memory, moment, effects);
            return reply;
        }
        memory.confirm(token);
        let (_, deadline) = self.levels(token, moment.now);
        if let Some(session) = session {
            memory.sessions.tie(token, session);
        }
        memory.promised(token, deadline);
        let tied = memory.sessions.get(token).copied();
        // All of them, where the order of the ties matters.
        let left = moment.portion;
        moment.portion = if session.is_some() { usize::MAX } else { left };
        self.granted(ask.owner, memory, moment, effects);
        moment.portion = left.min(moment.portion);
        // Those that entered with it asked before: it has the tie all the same.
        if let Some(session) = session
            && memory.sessions.get(token).copied() != tied
        {
            memory.sessions.tie(token, session);
        }
        reply
    }

    /// Whether a new hold may begin. Otherwise the reply to the caller, which has its place in the
    /// queue by then.
    fn may_begin(
        &self,
        ask: &Acquire<'_>,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
    ) -> Result<(), Reply> {
        let reads = || self.holders.hold(ask.owner, Mode::Read).is_some();
        let is_upgrade = ask.mode == Mode::Write && reads();
        if is_upgrade && !ask.upgrade {
            return Err(Reply::Refused(Refusal::UpgradeWouldDeadlock));
        }
        let wish = Wish::from(ask);
        let ticket = memory.queue.ticket_of(ask.owner);
        let turn = ticket.filter(|place| memory.queue.has_turn(*place));
        // Without QUEUE and BLOCK a ticket counts only if it has its turn.
        let place = if ask.patience == Patience::None { turn } else { ticket };
        let owns_write = self.holders.hold(ask.owner, Mode::Write).is_some();
        let may_enter = owns_write
            || self.in_the_way(wish).is_none()
                && is_reached(memory, ask.mode, is_upgrade, place)
                && self.has_room(memory, wish, turn);
        if may_enter && memory.grace.is_none() {
            return Ok(());
        }
        // Turns behind its own may have been given up, which may move others.
        let ticket = if turn.is_some() { memory.queue.ticket_of(ask.owner) } else { ticket };
        let is_second = is_upgrade && self.is_upgraded_by_another(ask.owner, memory);
        let is_behind = is_second || is_behind(memory, is_upgrade, ticket);
        let wait_ms = match memory.grace {
            Some(grace) if may_enter => Some(grace.wait_from(moment.now)),
            _ => self.known_wait(memory, wish, ticket, is_behind, moment.now),
        };
        if ask.patience != Patience::None
            && ticket.is_none()
            && ask.max_queue.is_some_and(|max| memory.queue.len() >= max)
        {
            return Err(Reply::NotNow { wait_ms });
        }
        if is_second {
            return Err(match ask.patience {
                Patience::None => Reply::NotNow { wait_ms },
                _ => Reply::Refused(Refusal::SecondUpgrade),
            });
        }
        match ask.patience {
            Patience::None => Err(Reply::NotNow { wait_ms }),
            Patience::Block => Err(Reply::MustWait { wait_ms }),
            Patience::Ticket(window) => {
                if ticket.is_none() && moment.tickets_left == 0 {
                    return Err(Reply::Refused(Refusal::TooManyTickets));
                }
                let ends_at = Some(moment.now.after(window));
                let entry = Entry::new(ask, Kind::Ticket, ends_at, moment.now);
                self.stand(memory, moment, ticket, entry);
                Err(Reply::NotNow { wait_ms })
            }
        }
    }

    /// Whether another reader already waits in front to upgrade.
    fn is_upgraded_by_another(&self, owner: &[u8], memory: &Memory) -> bool {
        memory.queue.foremost().any(|entry| {
            let other = entry.owner.as_bytes();
            let reads = || self.holders.hold(other, Mode::Read).is_some();
            other != owner && entry.upgrade && entry.mode == Mode::Write && reads()
        })
    }

    /// Takes a place in the queue: that of the owner's ticket, the front for an upgrade, or the
    /// end.
    fn stand(
        &self,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        ticket: Option<Place>,
        mut entry: Entry,
    ) {
        if moment.slow.wait_ms.is_some() && ticket.is_none() {
            let owners = || self.owners_in_the_way(memory, (&entry).into());
            let before = memory.queue.last().and_then(|last| last.in_the_way.as_ref());
            let names = Names::shared(before, moment.names, moment.names_max, owners);
            entry.in_the_way = Some(names);
        }
        let queue = &mut memory.queue;
        let reads = || self.holders.hold(entry.owner.as_bytes(), Mode::Read).is_some();
        let is_upgrade = entry.upgrade && entry.mode == Mode::Write && reads();
        let Some(mut place) = ticket else {
            return if is_upgrade { queue.push_front(entry) } else { queue.push_back(entry) };
        };
        // It asked and could not enter: a turn that it had is given up, and those behind are
        // decided anew.
        if queue.has_turn(place) {
            queue.take_turns_from(place);
            place = queue.ticket_of(entry.owner.as_bytes()).unwrap_or(place);
        }
        if is_upgrade && queue.get(place).is_some_and(|ticket| !ticket.is_in_front) {
            if let Some(ticket) = queue.remove(place) {
                (entry.since, entry.in_the_way) = (ticket.since, ticket.in_the_way);
            }
            queue.push_front(entry);
        } else {
            queue.replace(place, entry);
        }
    }

    /// Begins a new hold.
    pub(crate) fn enter<'a>(
        &mut self,
        owner: Cow<'a, [u8]>,
        mode: Mode,
        lease: LeaseMs,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        self.make_way(&owner, mode, memory, moment, effects);
        let Some(begun) = self.begin(owner, mode, lease, moment.now, moment.tokens) else {
            return Reply::Refused(Refusal::NoTokenLeft);
        };
        effects.events.extend(begun.event);
        effects.changes.push(begun.change);
        begun.reply
    }

    /// Adds a level, or goes to the requested depth; the deadline is only ever extended.
    pub(crate) fn enter_again(
        &mut self,
        asked: Option<u16>,
        lease: LeaseMs,
        hold: Hold,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) -> Reply {
        let depth = match asked {
            Some(asked) if asked <= hold.depth => hold.depth,
            _ => match hold.depth.checked_add(1) {
                Some(depth) if depth <= moment.max_depth => depth,
                _ => {
                    let (present, max) = (hold.depth, moment.max_depth);
                    return Reply::Refused(Refusal::TooDeep { present, max });
                }
            },
        };
        let deadline = hold.deadline.max(moment.now.after(lease));
        self.record(Change::Held { token: hold.token, depth, deadline }, effects);
        Reply::Granted { token: hold.token, left_ms: deadline.left_at(moment.now) }
    }

    fn release<'a>(
        &mut self,
        ask: Release<'a>,
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        let Some((hold, left)) = self.left_by(&ask) else {
            return match (ask.levels, ask.token) {
                (Levels::DownTo(_), None) => Reply::Count(0),
                _ => self.not_held(ask.owner, ask.mode, ask.token),
            };
        };
        // Nobody was told of it, so releasing it ends all levels.
        if left == 0 || memory.untold(hold.token).is_some() {
            self.end(hold.token, End::Released, memory, moment, effects);
        } else {
            self.hold_on(hold, left, hold.deadline, effects);
            if let Levels::DownTo(_) = ask.levels {
                memory.end_unheard(hold.token, hold.depth.saturating_sub(left));
            }
            memory.left_with(hold.token, left);
        }
        let left = self.holders.by_token(hold.token).map_or(0, |(_, hold)| hold.depth);
        Reply::Count(left.into())
    }

    /// The hold that a release means, and its remaining depth.
    pub(crate) fn left_by(&self, ask: &Release<'_>) -> Option<(Hold, u16)> {
        let asked = |mode: &Mode| ask.mode.is_none_or(|only| only == *mode);
        let hold = [Mode::Write, Mode::Read]
            .into_iter()
            .filter(asked)
            .filter_map(|mode| self.holders.hold(ask.owner, mode))
            .find(|hold| ask.token.is_none_or(|token| token == hold.token))?;
        let left = match ask.levels {
            Levels::One => hold.depth.saturating_sub(1),
            Levels::All => 0,
            Levels::DownTo(depth) => depth.min(hold.depth),
        };
        Some((hold, left))
    }

    fn renew(
        &mut self,
        ask: Renew<'_>,
        parking: Option<Parking>,
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) -> Reply {
        let asked = |mode: &Mode| ask.mode.is_none_or(|only| only == *mode);
        let holds: SmallVec<[Hold; 2]> = [Mode::Write, Mode::Read]
            .into_iter()
            .filter(asked)
            .filter_map(|mode| self.holders.hold(ask.owner, mode))
            .filter(|hold| ask.token.is_none_or(|token| token == hold.token))
            .collect();
        let Some(first) = holds.first().copied() else {
            return self.not_held(ask.owner, ask.mode, ask.token);
        };
        let acks = holds.iter().map(|hold| memory.acks_for(ask.acks, Some(*hold))).max();
        let acks = acks.unwrap_or(0);
        if acks > 0 && parking.is_none() {
            return Reply::MustConfirm;
        }
        for hold in holds {
            let Hold { token, depth, .. } = hold;
            let deadline = hold.deadline.max(moment.now.after(ask.lease));
            self.record(Change::Held { token, depth, deadline }, effects);
            if acks == 0 {
                memory.confirm(token);
                memory.promised(token, deadline);
            }
        }
        if let (Some(Parking { waiter, .. }), 1..) = (parking, acks) {
            let deadline = first.deadline.max(moment.now.after(ask.lease));
            memory.gate_renewal(waiter, first.token, acks, deadline, moment);
            return Reply::Pending;
        }
        Reply::Count(1)
    }

    /// Ends all waits of this owner: its ticket, and those of its blocked connections, which get a
    /// reply.
    fn cancel(
        &mut self,
        owner: &[u8],
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) -> Reply {
        let (now, mut count): (Now, u64) = (moment.now, 0);
        while let Some((place, entry)) = memory.queue.first_of(owner) {
            let wait_ms = self.known_wait_at(memory, place, entry, now);
            if let Some(entry) = memory.queue.remove(place) {
                memory.note(moment.slow.wait(&entry, Outcome::Cancelled, now));
                if let Kind::Blocked(waiter) = entry.kind {
                    effects.wakes.push(wake(waiter, Reply::NotNow { wait_ms }, &entry, now));
                }
            }
            count = count.saturating_add(1);
        }
        for mode in [Mode::Write, Mode::Read] {
            let token = self.holders.hold(owner, mode).map(|hold| hold.token);
            if token.is_some_and(|token| memory.give_up_turn(token)) {
                count = count.saturating_add(1);
            }
        }
        self.take_back(memory, moment, effects);
        Reply::Count(count)
    }

    fn force(
        &mut self,
        mode: Option<Mode>,
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) -> Reply {
        let tokens: Vec<Token> = self
            .holders
            .standing()
            .filter(|(_, held, _)| mode.is_none_or(|only| only == *held))
            .map(|(_, _, hold)| hold.token)
            .collect();
        for token in &tokens {
            self.end(*token, End::Forced, memory, moment, effects);
        }
        Reply::Count(u64::try_from(tokens.len()).unwrap_or(u64::MAX))
    }

    pub(crate) fn record<'a>(&mut self, change: Change<'a>, effects: &mut Effects<'a>) {
        effects.events.extend(self.replay(&change));
        effects.changes.push(change);
    }

    /// A change that changes nothing is not recorded.
    pub(crate) fn hold_on(
        &mut self,
        hold: Hold,
        depth: u16,
        deadline: EpochMs,
        effects: &mut Effects<'_>,
    ) {
        if (depth, deadline) != (hold.depth, hold.deadline) {
            self.record(Change::Held { token: hold.token, depth, deadline }, effects);
        }
    }

    fn not_held(&self, owner: &[u8], mode: Option<Mode>, token: Option<Token>) -> Reply {
        // The hold to name: the one with this token, else of this mode, else WRITE.
        let own = [Mode::Write, Mode::Read]
            .into_iter()
            .filter_map(|held| self.holders.hold(owner, held).map(|hold| (held, hold.token)))
            .max_by_key(|(held, own)| (Some(*own) == token, Some(*held) == mode, *held))
            .map(|(held, own)| Instead::Own(held, own));
        let instead = own.unwrap_or_else(|| match self.holders.standing().next() {
            None => Instead::Free,
            Some((other, _, _)) => match self.holders.writer() {
                Some((writer, _)) => Instead::WriteBy(writer.into()),
                None if self.holders.standing_count() == 1 => Instead::ReadBy(other.into()),
                None => Instead::ReadByMany(self.holders.standing_count()),
            },
        });
        Reply::Refused(Refusal::NotHeld { mode, token, instead })
    }
}

impl Memory {
    /// Whether another hold may be tied to a connection; a tied one may be tied again.
    pub(crate) fn may_tie(&self, held: Option<Hold>, moment: &Moment<'_>) -> bool {
        self.session_count() < moment.sessions_max
            || held.is_some_and(|hold| self.sessions.get(hold.token).is_some())
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

pub(crate) fn wake(waiter: WaiterId, reply: Reply, entry: &Entry, now: Now) -> Wake {
    let waited_us = now.us().saturating_sub(entry.since.us());
    Wake { waiter, reply, waited_us, acks_us: None }
}
