//! The one transition: what an input does to a lock and to the memory of it.

use std::borrow::Cow;

use crate::input::{
    Acquire, Effects, Input, Levels, Moment, Parking, Patience, Release, Renew, Reply, Wake,
};
use crate::queue::{Entry, Kind, Place};
use crate::refusal::{Instead, Refusal};
use crate::way::{Wish, is_behind, is_reached};
use crate::{Change, End, EpochMs, Hold, LeaseMs, Lock, Memory, Mode, Now, Token, WaiterId};

impl Lock {
    /// Decides what `input` does at this moment and does it; what the world must be told is noted
    /// in `effects`, where nothing is yet. What is over ends first, so that nothing is decided by
    /// it; and whoever can enter afterwards has entered when this returns.
    pub fn apply<'a>(
        &mut self,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        input: Input<'a>,
        effects: &mut Effects<'a>,
    ) {
        memory.unfinished = None;
        if let Input::Deny(waiter) = input {
            memory.leave(waiter);
        }
        self.catch_up(memory, moment, input.is_by_itself(), effects);
        let has_caught_up = !effects.changes.is_empty();
        effects.reply = match input {
            Input::Acquire(ask) => self.acquire(ask, memory, moment, effects),
            Input::Park(ask, Parking { waiter, client, ends_at }) => {
                let reply = self.acquire(ask, memory, moment, effects);
                if let Reply::MustWait { .. } = reply {
                    let ticket = memory.queue.ticket_of(ask.owner);
                    let mut entry = Entry::new(&ask, Kind::Blocked(waiter), ends_at, moment.now);
                    entry.client = entry.client.or(client);
                    self.stand(memory, ticket, entry);
                }
                reply
            }
            Input::Release(ask) => self.release(ask, memory, effects),
            Input::Renew(ask) => self.renew(ask, memory, moment.now, effects),
            Input::Cancel(owner) => self.cancel(owner, memory, moment.now, effects),
            Input::Force(mode) => self.force(mode, memory, effects),
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
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        let held = self.holders.hold(ask.owner, ask.mode).copied();
        let present = held.map_or(0, |hold| hold.depth);
        if let Some(asked) = ask.depth
            && asked > present.saturating_add(1)
        {
            return match held {
                Some(_) => Reply::Refused(Refusal::DepthSkipped { asked, present }),
                None => self.not_held(ask.owner, Some(ask.mode), None),
            };
        }
        if held.is_none()
            && let Err(reply) = self.may_begin(&ask, memory, moment)
        {
            return reply;
        }
        if ask.session.is_some() && !memory.may_tie(held, moment) {
            return Reply::Refused(Refusal::TooManySessions);
        }
        let (owner, session) = (Cow::Borrowed(ask.owner), ask.session);
        let reply = match held {
            Some(hold) => self.enter_again(ask.depth, ask.lease, hold, moment, effects),
            None => self.enter(owner, ask.mode, ask.lease, moment, effects),
        };
        if let Reply::Granted { token, .. } = reply {
            memory.confirm(token);
            if let Some(client) = session {
                memory.sessions.tie(token, client, ask.lease, moment.now);
            }
            self.granted(ask.owner, memory, moment, effects);
        }
        reply
    }

    /// A new hold may begin; else the answer to the one who asked for it, which has its place by
    /// then.
    fn may_begin(
        &self,
        ask: &Acquire<'_>,
        memory: &mut Memory,
        moment: &Moment<'_>,
    ) -> Result<(), Reply> {
        let reads = || self.holders.hold(ask.owner, Mode::Read).is_some();
        let is_upgrade = ask.mode == Mode::Write && reads();
        if is_upgrade && !ask.upgrade {
            return Err(Reply::Refused(Refusal::UpgradeWouldDeadlock));
        }
        let wish = Wish::from(ask);
        let ticket = memory.queue.ticket_of(ask.owner);
        let turn = ticket.filter(|place| memory.queue.has_turn(*place));
        // Without QUEUE and BLOCK a ticket counts only when it has its turn.
        let place = if ask.patience == Patience::None { turn } else { ticket };
        let owns_write = self.holders.hold(ask.owner, Mode::Write).is_some();
        if owns_write
            || self.in_the_way(wish).is_none()
                && is_reached(memory, ask.mode, is_upgrade, place)
                && self.has_room(memory, wish, turn)
        {
            return Ok(());
        }
        let is_second = is_upgrade && self.is_upgraded_by_another(ask.owner, memory);
        let is_behind = is_second || is_behind(memory, is_upgrade, ticket);
        let wait_ms = self.known_wait(memory, wish, is_behind, moment.now);
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
                self.stand(memory, ticket, Entry::new(ask, Kind::Ticket, ends_at, moment.now));
                Err(Reply::NotNow { wait_ms })
            }
        }
    }

    /// Another reader already waits for everybody else to leave: it stands in front.
    fn is_upgraded_by_another(&self, owner: &[u8], memory: &Memory) -> bool {
        memory.queue.foremost().any(|entry| {
            let other = entry.owner.as_bytes();
            let reads = || self.holders.hold(other, Mode::Read).is_some();
            other != owner && entry.upgrade && entry.mode == Mode::Write && reads()
        })
    }

    /// Takes a place: that of the owner's ticket, or the front for an upgrade, or the end.
    fn stand(&self, memory: &mut Memory, ticket: Option<Place>, mut entry: Entry) {
        let queue = &mut memory.queue;
        let reads = || self.holders.hold(entry.owner.as_bytes(), Mode::Read).is_some();
        let is_upgrade = entry.upgrade && entry.mode == Mode::Write && reads();
        let Some(place) = ticket else {
            return if is_upgrade { queue.push_front(entry) } else { queue.push_back(entry) };
        };
        // It asked and could not enter: a turn that it had is given up, and those behind are
        // decided anew.
        if queue.has_turn(place) {
            queue.take_turns_from(place);
        }
        if is_upgrade && queue.get(place).is_some_and(|ticket| !ticket.is_in_front) {
            entry.since = queue.remove(place).map_or(entry.since, |ticket| ticket.since);
            queue.push_front(entry);
        } else {
            queue.replace(place, entry);
        }
    }

    /// A new hold.
    pub(crate) fn enter<'a>(
        &mut self,
        owner: Cow<'a, [u8]>,
        mode: Mode,
        lease: LeaseMs,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'a>,
    ) -> Reply {
        let Some(token) = moment.tokens.issue(moment.now) else {
            return Reply::Refused(Refusal::NoTokenLeft);
        };
        let deadline = moment.now.after(lease);
        self.record(Change::Granted { owner, mode, token, deadline }, effects);
        Reply::Granted { token, left_ms: deadline.left_at(moment.now) }
    }

    /// One level more, or the depth that was asked for; the deadline is only ever extended.
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
        effects: &mut Effects<'a>,
    ) -> Reply {
        let Some((hold, left)) = self.left_by(&ask) else {
            return match (ask.levels, ask.token) {
                (Levels::DownTo(_), None) => Reply::Count(0),
                _ => self.not_held(ask.owner, ask.mode, ask.token),
            };
        };
        if left == 0 {
            self.end(hold.token, End::Released, memory, effects);
        } else {
            self.hold_on(hold, left, hold.deadline, effects);
        }
        Reply::Count(left.into())
    }

    /// The hold that is meant, and the depth that a release leaves of it.
    pub(crate) fn left_by(&self, ask: &Release<'_>) -> Option<(Hold, u16)> {
        let asked = |mode: &Mode| ask.mode.is_none_or(|only| only == *mode);
        let hold = [Mode::Write, Mode::Read]
            .into_iter()
            .filter(asked)
            .filter_map(|mode| self.holders.hold(ask.owner, mode).copied())
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
        memory: &mut Memory,
        now: Now,
        effects: &mut Effects<'_>,
    ) -> Reply {
        let asked = |mode: &Mode| ask.mode.is_none_or(|only| only == *mode);
        let mut is_held = false;
        for mode in [Mode::Write, Mode::Read].into_iter().filter(asked) {
            let hold = self.holders.hold(ask.owner, mode).copied();
            if let Some(hold) = hold
                && ask.token.is_none_or(|token| token == hold.token)
            {
                is_held = true;
                memory.confirm(hold.token);
                let (token, depth) = (hold.token, hold.depth);
                let deadline = hold.deadline.max(now.after(ask.lease));
                self.record(Change::Held { token, depth, deadline }, effects);
            }
        }
        if is_held { Reply::Count(1) } else { self.not_held(ask.owner, ask.mode, ask.token) }
    }

    /// Gives up whatever this owner waits for: its ticket, and the waits of its blocked
    /// connections, which are told so.
    fn cancel(
        &self,
        owner: &[u8],
        memory: &mut Memory,
        now: Now,
        effects: &mut Effects<'_>,
    ) -> Reply {
        let mut count: u64 = 0;
        while let Some((place, entry)) = memory.queue.first_of(owner) {
            let wait_ms = self.known_wait_at(memory, place, entry, now);
            if let Some(entry) = memory.queue.remove(place)
                && let Kind::Blocked(waiter) = entry.kind
            {
                effects.wakes.push(wake(waiter, Reply::NotNow { wait_ms }, &entry, now));
            }
            count = count.saturating_add(1);
        }
        Reply::Count(count)
    }

    fn force(
        &mut self,
        mode: Option<Mode>,
        memory: &mut Memory,
        effects: &mut Effects<'_>,
    ) -> Reply {
        let tokens: Vec<Token> = self
            .holders
            .iter()
            .filter(|(_, held, _)| mode.is_none_or(|only| only == *held))
            .map(|(_, _, hold)| hold.token)
            .collect();
        for token in &tokens {
            self.end(*token, End::Forced, memory, effects);
        }
        Reply::Count(u64::try_from(tokens.len()).unwrap_or(u64::MAX))
    }

    pub(crate) fn record<'a>(&mut self, change: Change<'a>, effects: &mut Effects<'a>) {
        effects.events.extend(self.replay(&change));
        effects.changes.push(change);
    }

    /// Ends a hold, and its session with it.
    pub(crate) fn end(
        &mut self,
        token: Token,
        by: End,
        memory: &mut Memory,
        effects: &mut Effects<'_>,
    ) {
        if self.holders.by_token(token).is_none() {
            return;
        }
        self.record(Change::Ended { token, by }, effects);
        if by == End::Released {
            memory.sessions.untie(token);
        } else {
            effects.lost.extend(memory.lose(token));
        }
    }

    /// Nothing is recorded that changes nothing.
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
        // The one that was meant: with the same token, else of the same mode, else WRITE.
        let own = [Mode::Write, Mode::Read]
            .into_iter()
            .filter_map(|held| self.holders.hold(owner, held).map(|hold| (held, hold.token)))
            .max_by_key(|(held, own)| (Some(*own) == token, Some(*held) == mode, *held))
            .map(|(held, own)| Instead::Own(held, own));
        let instead = own.unwrap_or_else(|| match self.holders.iter().next() {
            None => Instead::Free,
            Some((other, _, _)) => match self.holders.writer() {
                Some((writer, _)) => Instead::WriteBy(writer.clone()),
                None if self.holders.len() == 1 => Instead::ReadBy(other.clone()),
                None => Instead::ReadByMany(self.holders.len()),
            },
        });
        Reply::Refused(Refusal::NotHeld { mode, token, instead })
    }
}

impl Memory {
    /// One more hold may be tied to a connection; one that is tied may be tied anew.
    pub(crate) fn may_tie(&self, held: Option<Hold>, moment: &Moment<'_>) -> bool {
        self.sessions.len() < moment.sessions_max
            || held.is_some_and(|hold| self.sessions.get(hold.token).is_some())
    }
}

impl Input<'_> {
    /// No request: something that the server does by itself.
    const fn is_by_itself(&self) -> bool {
        matches!(self, Input::Tick | Input::Changed)
    }
}

pub(crate) fn wake(waiter: WaiterId, reply: Reply, entry: &Entry, now: Now) -> Wake {
    Wake { waiter, reply, waited_us: now.us().saturating_sub(entry.since.us()) }
}
