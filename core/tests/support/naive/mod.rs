//! One lock and those who wait for it, written as naively as possible: two lists, searched from end
//! to end. The model follows the contract, not the core; if the two differ, one of them is wrong.
//! It does not model acknowledgments, portions, or the limit of sessions.

mod entering;
mod leaving;
mod ties;
pub mod told;
mod waiting;

use std::num::NonZeroU32;

use rlock_core::{
    Acquire, ClientId, End, EpochMs, Event, Input, Kind, LeaseMs, Mode, Now, Patience, Refusal,
    Token, WaiterId,
};

use super::laws::Held;
use entering::Asked;
use ties::Claim;
use told::{Said, Told, error, name};

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
    /// Whether it came to the front, as an upgrade.
    is_in_front: bool,
    lease: LeaseMs,
    depth: Option<u16>,
    session: Option<ClientId>,
    /// The parked connection.
    client: Option<ClientId>,
}

/// A grant of this hold.
#[derive(Clone, Copy, Debug)]
struct Unheard {
    waiter: WaiterId,
    token: u64,
    /// The depth of the hold before the grant.
    before: i32,
    /// The depth to reach; `None` means one level more.
    depth: Option<i32>,
    /// The greatest depth that remained after the owner's releases since, until the next grant.
    most: i32,
}

/// Limits from the server's configuration and from its other locks.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub max_depth: u16,
    pub tickets_left: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Naive {
    pub holds: Vec<Hold>,
    /// In order of arrival; waiters with a turn are served before the others.
    pub queue: Vec<Waiting>,
    now: u64,
    now_us: u64,
    last_token: u64,
    /// Grants to connections that have not read their replies yet.
    unheard: Vec<Unheard>,
    /// Grants to connections that departed before they read their replies.
    revoked: Vec<u64>,
    /// The sessions of tied holds, in no particular order.
    claims: Vec<Claim>,
    /// Holds whose connections ended.
    orphans: Vec<u64>,
}

impl Naive {
    pub fn ask(&mut self, now: Now, limits: Limits, input: &Input<'_>) -> Told {
        (self.now, self.now_us) = (now.ms().get(), now.us());
        let mut told = Told::default();
        self.come_due(&mut told);
        let loses_at_once = match input {
            Input::Acquire(ask) => ask.patience == Patience::Take,
            Input::Force(_) => true,
            _ => false,
        };
        if !loses_at_once {
            self.serve(limits, &mut told);
        }
        let reply = match input {
            Input::Acquire(ask) => self.acquire(ask, limits, &mut told),
            Input::Park(ask, parking) => {
                let reply = self.acquire(ask, limits, &mut told);
                if matches!(reply, Said::MustWait { .. }) {
                    let ends_at = parking.ends_at.map(|at| at.get());
                    let kind = match ask.patience {
                        Patience::Tell => Kind::Told(parking.waiter),
                        _ => Kind::Blocked(parking.waiter),
                    };
                    self.stand(ask, kind, parking.client, ends_at);
                }
                reply
            }
            Input::Release(ask) => self.release(ask, &mut told),
            Input::ReleaseAll(owner, token) => {
                let before = self.holds.len();
                for mode in [Mode::Read, Mode::Write] {
                    let is_it = |hold: &Hold| {
                        (hold.owner.as_slice(), hold.mode) == (owner, mode)
                            && token.is_none_or(|token| token.get() == hold.token)
                    };
                    self.end(is_it, End::Released, &mut told);
                }
                Said::Count((before - self.holds.len()) as u64)
            }
            Input::Enter { ask, token, .. } => self.enter_unit(ask, *token, limits, &mut told),
            Input::Join(_) | Input::Withdraw(_) => {
                panic!("groups wait in the engine's tests")
            }
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
            Input::Tick | Input::Changed => Said::Count(0),
        };
        told.reply = Some(reply);
        self.serve(limits, &mut told);
        told.sorted()
    }

    pub fn disconnect(&mut self, client: ClientId) {
        self.end_ties(client);
    }

    /// Sees a token of another lock.
    pub fn saw(&mut self, token: u64) {
        self.last_token = self.last_token.max(token);
    }

    /// Another process takes over, which knows all tokens up to this one.
    pub fn knows_tokens_to(&mut self, token: u64) {
        self.last_token = token;
    }

    /// After steps that the model cannot follow: these are the holds, and nobody waits.
    pub fn learn(&mut self, holds: &[Held], last_token: u64) {
        let hold = |held: &Held| Hold {
            owner: held.owner.clone(),
            mode: held.mode,
            token: held.token.get(),
            depth: held.depth,
            deadline: held.deadline.get(),
            session: None,
        };
        let last_token = self.last_token.max(last_token);
        *self = Self { holds: holds.iter().map(hold).collect(), last_token, ..Self::default() };
    }

    /// The holds, in the order of their tokens.
    pub fn picture(&self) -> Vec<Held> {
        let held = |hold: &Hold| Held {
            owner: hold.owner.clone(),
            mode: hold.mode,
            token: Token::new(hold.token).expect("it was issued"),
            deadline: EpochMs::new(hold.deadline).expect("a deadline of this millennium"),
            depth: hold.depth,
        };
        let mut all: Vec<Held> = self.holds.iter().map(held).collect();
        all.sort_by_key(|held| held.token);
        all
    }

    /// The key was removed.
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
            if let Kind::Blocked(waiter) | Kind::Told(waiter) = one.kind {
                told.wakes.push((waiter, said));
            }
        }
        self.revoked.clear();
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

    /// The connection is going to be closed: it is not granted what it waits for.
    fn close(&mut self, client: ClientId) {
        self.queue.retain(|one| one.client != Some(client));
    }

    fn come_due(&mut self, told: &mut Told) {
        let now = self.now;
        self.end(|hold| hold.deadline <= now, End::Expired, told);
        while let Some(token) = self.revoked.pop() {
            match self.holds.iter_mut().find(|hold| hold.token == token) {
                Some(hold) if hold.depth > 1 => {
                    hold.depth -= 1;
                }
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
            let wait_ms = self.estimated_wait_ms(&one.asked(), false, place);
            self.queue.remove(place.expect("it waits"));
            if let Kind::Blocked(waiter) | Kind::Told(waiter) = one.kind {
                told.wakes.push((waiter, Said::NotNow { wait_ms }));
            }
        }
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
        if present == 0 && ask.patience == Patience::Take {
            self.end(|_| true, End::Forced, told);
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
        if ask.patience == Patience::Take {
            return Ok(());
        }
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
        // A turn was checked when it was given, and is checked again under a smaller limit: then
        // only what is ahead of it counts, and turns behind it are given up if there is no room for
        // both.
        let turn = ticket.filter(|place| self.queue[*place].is_turn);
        let is_judged = turn
            .map(|place| self.queue[place].limit)
            .is_none_or(|given| given.is_none_or(|given| limit.is_some_and(|limit| limit < given)));
        let is_full = |places| {
            let others = self.others(ask.owner, places);
            is_judged && limit.is_some_and(|limit| others >= limit as usize)
        };
        let is_open = self.blocked_until(ask.owner, ask.mode, ask.upgrade).is_none()
            && !is_full(turn.unwrap_or(usize::MAX));
        if self.has(ask.owner, Mode::Write) || is_open && is_next {
            if is_full(usize::MAX)
                && let Some(place) = turn
            {
                self.give_up_turns(place);
            }
            return Ok(());
        }
        let asked = Asked { owner: ask.owner, mode: ask.mode, upgrade: ask.upgrade, limit };
        let is_too_long = ask.max_queue.is_some_and(|max| self.queue.len() >= max);
        let is_refused = waits && ticket.is_none() && is_too_long;
        let upgrades = |one: &Waiting| {
            let is_upgrade = one.upgrade && one.mode == Mode::Write;
            one.owner != ask.owner && is_upgrade && self.has(&one.owner, Mode::Read)
        };
        // A request farther back acquired READ through another connection: it is in the line like
        // any other.
        let first = |is_turn| self.queue.iter().find(|one| one.is_turn == is_turn);
        if is_upgrade && [first(true), first(false)].into_iter().flatten().any(upgrades) {
            let second = Said::Error("DEADLOCK".into());
            return Err(if waits && !is_refused { second } else { Said::NotNow { wait_ms: None } });
        }
        let wait_ms = self.estimated_wait_ms(&asked, is_upgrade, ticket);
        if is_refused {
            return Err(Said::NotNow { wait_ms });
        }
        Err(match ask.patience {
            Patience::None | Patience::Take => Said::NotNow { wait_ms },
            Patience::Block | Patience::Tell => Said::MustWait { wait_ms },
            Patience::Ticket(_) if ticket.is_none() && limits.tickets_left == 0 => {
                Said::Error("TOOMANY".into())
            }
            Patience::Ticket(window) => {
                self.stand(ask, Kind::Ticket, None, Some(after(self.now_us, window.get())));
                Said::NotNow { wait_ms }
            }
        })
    }

    /// Adds a level, or begins a hold.
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
            return Said::Granted { token: hold.token, remaining_ms: left(hold.deadline, now_us) };
        }
        let is_upgrade = mode == Mode::Write && self.has(owner, Mode::Read);
        let token = self.now_us.max(self.last_token + 1);
        if Token::new(token).is_none() {
            return Said::Error("ERR".into());
        }
        told.events.push(name(if is_upgrade { Event::Upgraded } else { Event::Acquired }));
        self.last_token = token;
        let owner = owner.to_vec();
        self.holds.push(Hold { owner, mode, token, depth: 1, deadline, session: None });
        Said::Granted { token, remaining_ms: lease.get() }
    }

    /// One lock of several: a hold that exists gets a later deadline, otherwise one begins.
    fn enter_unit(
        &mut self,
        ask: &Acquire<'_>,
        token: Option<Token>,
        limits: Limits,
        told: &mut Told,
    ) -> Said {
        let (owner, mode, lease) = (ask.owner, ask.mode, ask.lease);
        if !self.has(owner, mode) {
            // The token of all of them, which must also be the next one of this lock.
            self.last_token = token.expect("it has one").get() - 1;
        }
        let said = self.enter(owner, mode, lease, Some(1), limits, told);
        if let Said::Granted { token, .. } = said {
            self.confirm(token);
            self.holds_now(owner, limits, told);
            self.tie(token, None, ask.session, lease);
        }
        said
    }

    fn confirm(&mut self, token: u64) {
        self.unheard.retain(|grant| grant.token != token);
    }

    /// The depth of a hold, counting only these grants.
    fn depth_by(&self, token: u64, counts: impl Fn(&Unheard) -> bool) -> i32 {
        let of_hold = || self.unheard.iter().filter(|grant| grant.token == token);
        let before = of_hold().next().map_or(0, |first| first.before);
        of_hold().fold(before, |depth, grant| {
            let raised = grant.depth.map_or(depth + 1, |asked| depth.max(asked));
            (if counts(grant) { raised } else { depth }).min(grant.most)
        })
    }

    /// The owner released some levels, and `left` remain. After a release of one level, an unheard
    /// request to a depth asks for one level less, but for at least one.
    fn lower(&mut self, token: u64, left: u16, is_one: bool) {
        for grant in self.unheard.iter_mut().filter(|grant| grant.token == token && is_one) {
            grant.before -= 1;
            grant.depth = grant.depth.map(|depth| (depth - 1).max(1));
            grant.most = grant.most.saturating_sub(1);
        }
        if let Some(last) = self.unheard.iter_mut().rev().find(|grant| grant.token == token) {
            last.most = last.most.min(left.into());
        }
    }
}

/// The first whole millisecond at which at least `ms` have passed.
fn after(now_us: u64, ms: u64) -> u64 {
    (now_us + ms * 1000).div_ceil(1000)
}

/// Whole milliseconds, rounded down, but at least 1 until the end.
fn left(until: u64, now_us: u64) -> u64 {
    ((until * 1000 - now_us) / 1000).max(1)
}

/// A session is renewed every third of its lease.
fn third(lease: LeaseMs) -> u64 {
    if lease.get() < 3 { lease.get() } else { lease.get() / 3 }
}
