//! One lock and those who wait for it, as naively as it can be written down: two lists, searched
//! from end to end. Written from the contract, not from the core; where the two differ, one of them
//! is wrong.

mod entering;
mod leaving;
mod ties;

use std::num::NonZeroU32;

use rlock_core::{
    Acquire, ClientId, End, Event, Input, Kind, LeaseMs, Mode, Now, Patience, Refusal, WaiterId,
};

use super::told::{Said, Told, error, name};
use entering::Wish;
use ties::Claim;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub owner: Vec<u8>,
    pub mode: Mode,
    pub token: u64,
    pub depth: u16,
    pub deadline: u64,
    pub session: Option<Tie>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tie {
    pub client: ClientId,
    pub lease: LeaseMs,
    pub renew_at: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub owner: Vec<u8>,
    pub mode: Mode,
    pub kind: Kind,
    pub ends_at: Option<u64>,
    pub is_turn: bool,
    pub limit: Option<u32>,
    upgrade: bool,
    /// It came to the front, as an upgrader.
    is_in_front: bool,
    lease: LeaseMs,
    depth: Option<u16>,
    session: Option<ClientId>,
    /// The connection that is parked.
    client: Option<ClientId>,
}

/// A grant of this hold.
#[derive(Clone, Copy, Debug)]
struct Unheard {
    waiter: WaiterId,
    token: u64,
    /// A level of the hold is this connection's own.
    adds: bool,
}

/// What the server's configuration and its other locks set.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub max_depth: u16,
    pub tickets_left: usize,
}

#[derive(Debug, Default)]
pub struct Naive {
    pub holds: Vec<Hold>,
    /// In order of arrival; those who have their turn are served before the others.
    pub queue: Vec<Waiting>,
    now: u64,
    now_us: u64,
    last_token: u64,
    /// Granted to connections that have not heard of it yet.
    unheard: Vec<Unheard>,
    /// Granted to connections that left without hearing of it.
    taken_back: Vec<u64>,
    /// Of the holds that are tied, in no order.
    claims: Vec<Claim>,
    /// Tied to connections that ended.
    orphans: Vec<u64>,
}

impl Naive {
    pub fn ask(&mut self, now: Now, limits: Limits, input: &Input<'_>) -> Told {
        (self.now, self.now_us) = (now.ms().get(), now.us());
        let mut told = Told::default();
        self.come_due(limits, &mut told);
        let reply = match input {
            Input::Acquire(ask) => self.acquire(ask, limits, &mut told),
            Input::Park(ask, parking) => {
                let reply = self.acquire(ask, limits, &mut told);
                if matches!(reply, Said::MustWait { .. }) {
                    let ends_at = parking.ends_at.map(|at| at.get());
                    self.stand(ask, Kind::Blocked(parking.waiter), parking.client, ends_at);
                }
                reply
            }
            Input::Release(ask) => self.release(ask, &mut told),
            Input::Renew(ask) | Input::ParkRenew(ask, _) => self.renew(ask),
            Input::Cancel(owner) => {
                let before = self.queue.len();
                self.give_up(owner, &mut told);
                Said::Count((before - self.queue.len()) as u64)
            }
            Input::Force(mode) => {
                let before = self.holds.len();
                self.end(|hold| mode.is_none_or(|only| only == hold.mode), End::Forced, &mut told);
                Said::Count((before - self.holds.len()) as u64)
            }
            Input::Tick | Input::Changed | Input::Deny(_) => Said::Count(0),
        };
        told.reply = Some(reply);
        self.serve(limits, &mut told);
        told.sorted()
    }

    pub fn disconnect(&mut self, client: ClientId) {
        self.end_ties(client);
    }

    /// A token of another lock.
    pub fn saw(&mut self, token: u64) {
        self.last_token = self.last_token.max(token);
    }

    /// The key went from its name.
    pub fn forget_holds(&mut self) -> Vec<ClientId> {
        let lost: Vec<ClientId> = self.holds.iter().flat_map(|hold| self.losers(hold)).collect();
        self.holds.clear();
        lost.iter().for_each(|client| self.close(*client));
        lost
    }

    /// Everybody goes home.
    pub fn dismiss(&mut self, now: Now, why: &Refusal) -> Told {
        let lost = self.holds.iter().flat_map(|hold| self.losers(hold)).collect();
        let mut told = Told { lost, ..Told::default() };
        self.holds.iter_mut().for_each(|hold| hold.session = None);
        told.lost.clone().into_iter().for_each(|client| self.close(client));
        self.claims.clear();
        for one in std::mem::take(&mut self.queue) {
            let is_over = one.ends_at.is_some_and(|at| at <= now.ms().get());
            let said = if is_over { Said::NotNow { wait_ms: None } } else { error(why) };
            if let Kind::Blocked(waiter) = one.kind {
                told.wakes.push((waiter, said));
            }
        }
        self.taken_back.clear();
        self.orphans.clear();
        told.sorted()
    }

    // --- who holds ------------------------------------------------------------------------------

    fn of(&mut self, owner: &[u8], mode: Mode) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.owner == owner && hold.mode == mode)
    }

    fn has(&self, owner: &[u8], mode: Mode) -> bool {
        self.holds.iter().any(|hold| hold.owner == owner && hold.mode == mode)
    }

    fn end(&mut self, is_over: impl Fn(&Hold) -> bool, by: End, told: &mut Told) {
        while let Some(place) = self.holds.iter().position(&is_over) {
            let hold = self.holds.remove(place);
            let stays = hold.mode == Mode::Write && self.has(&hold.owner, Mode::Read);
            told.events.push(name(match by {
                End::Released if stays => Event::Downgraded,
                End::Released => Event::Released,
                End::Expired => Event::Expired,
                End::Forced => Event::Forced,
                End::Disconnected | End::Unconfirmed => Event::Disconnected,
            }));
            if by != End::Released {
                for client in self.losers(&hold) {
                    told.lost.push(client);
                    self.close(client);
                }
            }
        }
    }

    /// It is going to be closed: it is not granted what it waits for.
    fn close(&mut self, client: ClientId) {
        self.queue.retain(|one| one.client != Some(client));
    }

    fn come_due(&mut self, limits: Limits, told: &mut Told) {
        let now = self.now;
        self.end(|hold| hold.deadline <= now, End::Expired, told);
        while let Some(token) = self.taken_back.pop() {
            match self.holds.iter_mut().find(|hold| hold.token == token) {
                Some(hold) if hold.depth > 1 => hold.depth -= 1,
                _ => self.end(|hold| hold.token == token, End::Disconnected, told),
            }
        }
        for token in std::mem::take(&mut self.orphans) {
            self.end(|hold| hold.token == token, End::Disconnected, told);
        }
        self.renew_ties();
        let ended = |one: &&Waiting| one.ends_at.is_some_and(|at| at <= now);
        let when = |one: &&Waiting| (one.ends_at, !one.is_turn);
        while let Some(one) = self.queue.iter().filter(ended).min_by_key(when).cloned() {
            let place = self.queue.iter().position(|other| *other == one);
            let wait_ms = self.known_wait(&one.wish(), false, place);
            self.queue.remove(place.expect("it waits"));
            if let Kind::Blocked(waiter) = one.kind {
                told.wakes.push((waiter, Said::NotNow { wait_ms }));
            }
        }
        self.serve(limits, told);
    }

    // --- who may enter --------------------------------------------------------------------------

    fn acquire(&mut self, ask: &Acquire<'_>, limits: Limits, told: &mut Told) -> Said {
        let present = self.of(ask.owner, ask.mode).map_or(0, |hold| hold.depth);
        if ask.depth.is_some_and(|wanted| wanted > present + 1) {
            let code = if present == 0 { "NOTHELD" } else { "ERR" };
            return Said::Error(code.into());
        }
        if present == 0
            && let Err(refused) = self.may_begin(ask, limits)
        {
            return refused;
        }
        let said = self.enter(ask.owner, ask.mode, ask.lease, ask.depth, limits, told);
        if let Said::Granted { token, .. } = said {
            self.confirm(token);
            self.holds_now(ask.owner, limits, told);
            self.tie(token, None, ask.session, ask.lease);
        }
        said
    }

    fn may_begin(&mut self, ask: &Acquire<'_>, limits: Limits) -> Result<(), Said> {
        let is_upgrade = ask.mode == Mode::Write && self.has(ask.owner, Mode::Read);
        if is_upgrade && !ask.upgrade {
            return Err(Said::Error("DEADLOCK".into()));
        }
        let is_own = |one: &Waiting| one.kind == Kind::Ticket && one.owner == ask.owner;
        let ticket = self.queue.iter().position(is_own);
        let waits = ask.patience != Patience::None;
        let place = ticket.filter(|place| waits || self.queue[*place].is_turn);
        let (turns, line) = self.ahead(place);
        let keeps_out = |turn: &&Waiting| ask.mode == Mode::Write || turn.mode == Mode::Write;
        let is_next = !turns.iter().any(keeps_out) && (line.is_empty() || is_upgrade);
        let limit = ask.limit.map(NonZeroU32::get);
        // A turn was judged when it was given, and is again under a smaller limit: then by those
        // before it, and those behind it are put off where there is no room for both.
        let turn = ticket.filter(|place| self.queue[*place].is_turn);
        let is_judged = turn
            .map(|place| self.queue[place].limit)
            .is_none_or(|given| given.is_none_or(|given| limit.is_some_and(|limit| limit < given)));
        let is_full = |places| {
            let others = self.others(ask.owner, places);
            is_judged && limit.is_some_and(|limit| others >= limit as usize)
        };
        let is_open = self.in_the_way(ask.owner, ask.mode, ask.upgrade).is_none()
            && !is_full(turn.unwrap_or(usize::MAX));
        if self.has(ask.owner, Mode::Write) || is_open && is_next {
            if is_full(usize::MAX)
                && let Some(place) = turn
            {
                self.queue[place..].iter_mut().for_each(|one| one.is_turn = false);
            }
            return Ok(());
        }
        let wish = Wish { owner: ask.owner, mode: ask.mode, upgrade: ask.upgrade, limit };
        let is_too_long = ask.max_queue.is_some_and(|max| self.queue.len() >= max);
        let is_refused = waits && ticket.is_none() && is_too_long;
        let upgrades = |one: &Waiting| {
            let is_upgrade = one.upgrade && one.mode == Mode::Write;
            one.owner != ask.owner && is_upgrade && self.has(&one.owner, Mode::Read)
        };
        // One farther back came to read by another connection: it is in the line as anybody is.
        let first = |is_turn| self.queue.iter().find(|one| one.is_turn == is_turn);
        if is_upgrade && [first(true), first(false)].into_iter().flatten().any(upgrades) {
            let second = Said::Error("DEADLOCK".into());
            return Err(if waits && !is_refused { second } else { Said::NotNow { wait_ms: None } });
        }
        let wait_ms = self.known_wait(&wish, is_upgrade, ticket);
        if is_refused {
            return Err(Said::NotNow { wait_ms });
        }
        Err(match ask.patience {
            Patience::None => Said::NotNow { wait_ms },
            Patience::Block => Said::MustWait { wait_ms },
            Patience::Ticket(_) if ticket.is_none() && limits.tickets_left == 0 => {
                Said::Error("TOOMANY".into())
            }
            Patience::Ticket(window) => {
                self.stand(ask, Kind::Ticket, None, Some(after(self.now_us, window.get())));
                Said::NotNow { wait_ms }
            }
        })
    }

    /// One level more, or the first.
    fn enter(
        &mut self,
        owner: &[u8],
        mode: Mode,
        lease: LeaseMs,
        wanted: Option<u16>,
        limits: Limits,
        told: &mut Told,
    ) -> Said {
        let now_us = self.now_us;
        let deadline = after(now_us, lease.get());
        if let Some(hold) = self.of(owner, mode) {
            if wanted.is_none_or(|wanted| wanted > hold.depth) {
                if hold.depth >= limits.max_depth {
                    return Said::Error("TOOMANY".into());
                }
                hold.depth += 1;
            }
            hold.deadline = hold.deadline.max(deadline);
            return Said::Granted { token: hold.token, left_ms: left(hold.deadline, now_us) };
        }
        let is_upgrade = mode == Mode::Write && self.has(owner, Mode::Read);
        told.events.push(name(if is_upgrade { Event::Upgraded } else { Event::Acquired }));
        self.last_token = self.now_us.max(self.last_token + 1);
        let (owner, token) = (owner.to_vec(), self.last_token);
        self.holds.push(Hold { owner, mode, token, depth: 1, deadline, session: None });
        Said::Granted { token, left_ms: lease.get() }
    }

    fn confirm(&mut self, token: u64) {
        self.unheard.retain(|grant| grant.token != token);
    }

    // --- who waits ------------------------------------------------------------------------------

    fn withdraw_ticket(&mut self, owner: &[u8]) {
        self.queue.retain(|one| one.kind != Kind::Ticket || one.owner != owner);
    }

    /// Whatever it waits for, the first place first.
    fn give_up(&mut self, owner: &[u8], told: &mut Told) {
        let served = |one: &Waiting| (!one.is_turn, one.owner != owner);
        while self.queue.iter().any(|one| one.owner == owner) {
            let mut places: Vec<usize> = (0..self.queue.len()).collect();
            places.sort_by_key(|place| (served(&self.queue[*place]).0, *place));
            let place = places.into_iter().find(|place| self.queue[*place].owner == owner);
            let place = place.expect("it waits");
            let one = self.queue[place].clone();
            let wait_ms = self.known_wait(&one.wish(), false, Some(place));
            self.queue.remove(place);
            if let Kind::Blocked(waiter) = one.kind {
                told.wakes.push((waiter, Said::NotNow { wait_ms }));
            }
        }
    }

    fn stand(
        &mut self,
        ask: &Acquire<'_>,
        kind: Kind,
        client: Option<ClientId>,
        ends_at: Option<u64>,
    ) {
        let is_upgrade = ask.upgrade && ask.mode == Mode::Write && self.has(ask.owner, Mode::Read);
        let mut new = Waiting {
            owner: ask.owner.to_vec(),
            mode: ask.mode,
            kind,
            ends_at,
            is_turn: false,
            limit: ask.limit.map(NonZeroU32::get),
            upgrade: ask.upgrade,
            is_in_front: is_upgrade,
            lease: ask.lease,
            depth: ask.depth,
            session: ask.session,
            client,
        };
        let is_own = |one: &Waiting| one.kind == Kind::Ticket && one.owner == ask.owner;
        if let Some(place) = self.queue.iter().position(is_own) {
            // A turn that is given up puts those behind it off, too.
            if self.queue[place].is_turn {
                self.queue[place..].iter_mut().for_each(|one| one.is_turn = false);
            }
            if !is_upgrade || self.queue[place].is_in_front {
                new.is_in_front = self.queue[place].is_in_front;
                self.queue[place] = new;
                return;
            }
            self.queue.remove(place);
        }
        let place = if is_upgrade { 0 } else { self.queue.len() };
        self.queue.insert(place, new);
    }

    fn serve(&mut self, limits: Limits, told: &mut Told) {
        let is_shut = |one: &Waiting| self.is_shut(&one.owner, one.mode, one.upgrade, None);
        if self.queue.iter().any(|one| one.is_turn && is_shut(one)) {
            self.queue.iter_mut().for_each(|one| one.is_turn = false);
        }
        while let Some(place) = self.queue.iter().position(|one| !one.is_turn) {
            let head = self.queue[place].clone();
            let keeps_out = |turn: &Waiting| {
                turn.is_turn && (head.mode == Mode::Write || turn.mode == Mode::Write)
            };
            if self.queue.iter().any(keeps_out)
                || self.is_shut(&head.owner, head.mode, head.upgrade, head.limit)
            {
                return;
            }
            match head.kind {
                Kind::Ticket => {
                    self.queue[place].is_turn = true;
                    told.turns.push(head.owner);
                }
                Kind::Blocked(_) => {
                    let one = self.queue.remove(place);
                    self.hand_over(&one, limits, told);
                    self.holds_now(&one.owner, limits, told);
                }
            }
        }
    }

    /// The owner holds: what it waits for elsewhere is a re-entry now, or needless.
    fn holds_now(&mut self, owner: &[u8], limits: Limits, told: &mut Told) {
        self.withdraw_ticket(owner);
        loop {
            let enters = |one: &Waiting| {
                one.owner == owner && (self.has(owner, Mode::Write) || self.has(owner, one.mode))
            };
            let Some(place) = self.queue.iter().position(enters) else { return };
            let one = self.queue.remove(place);
            self.hand_over(&one, limits, told);
        }
    }

    fn hand_over(&mut self, one: &Waiting, limits: Limits, told: &mut Told) {
        let before = self.of(&one.owner, one.mode).map_or(0, |hold| hold.depth);
        let said = self.enter(&one.owner, one.mode, one.lease, one.depth, limits, told);
        let Kind::Blocked(waiter) = one.kind else { return };
        if let Said::Granted { token, .. } = said {
            let adds = self.of(&one.owner, one.mode).is_some_and(|hold| hold.depth > before);
            self.unheard.push(Unheard { waiter, token, adds });
            self.tie(token, Some(waiter), one.session, one.lease);
        }
        told.wakes.push((waiter, said));
    }
}

/// The first whole millisecond at which no less than `ms` have passed.
fn after(now_us: u64, ms: u64) -> u64 {
    (now_us + ms * 1000).div_ceil(1000)
}

/// Whole milliseconds, of which the last is told to its end.
fn left(until: u64, now_us: u64) -> u64 {
    ((until * 1000 - now_us) / 1000).max(1)
}

/// A session is renewed every third of its lease.
fn third(lease: LeaseMs) -> u64 {
    if lease.get() < 3 { lease.get() } else { lease.get() / 3 }
}
