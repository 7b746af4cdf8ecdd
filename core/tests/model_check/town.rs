//! A few locks with one clock, and their owners: a [`World`] for each lock.

use rlock_core::waits_for::{Search, Seen, Stand, Steps, WaitGraph, search};
use rlock_core::{
    Acquire, ClientId, Effects, Input, Levels, Owner, Patience, Refusal, Release, Renew, Reply,
    Token, WaiterId,
};

use super::kinds::Kinds;
use super::steps::{Ask, LEASE_MS, OWNERS, Profile, SESSION_LEASE_MS, Step, Wait};
use super::waits;
use crate::support::laws::picture;
use crate::support::{World, acquire, lease, release, renew, take};

/// At most this many grants of one lock are unread before something else happens.
const UNHEARD_MAX: usize = 3;

pub struct Town<'p> {
    pub profile: &'p Profile,
    pub locks: Vec<World>,
    /// For each lock: grants that were sent to parked connections and not read yet.
    pub unheard: Vec<Vec<(WaiterId, Token)>>,
}

/// The view of one deadlock search.
struct Looking<'t> {
    locks: &'t [World],
    seen: Vec<Seen>,
}

impl WaitGraph for Looking<'_> {
    type Wait = (usize, WaiterId);

    fn of(&mut self, owner: &Owner, most: usize) -> Vec<Self::Wait> {
        let at = |(lock, world): (usize, &World)| {
            let own = world.parked.iter().filter(|(_, other)| *other == owner.as_bytes());
            own.map(|(waiter, _)| (lock, *waiter)).collect::<Vec<_>>()
        };
        self.locks.iter().enumerate().flat_map(at).take(most).collect()
    }

    fn blockers(&mut self, wait: &Self::Wait, steps: &mut Steps) -> Vec<Owner> {
        let (lock, waiter) = wait;
        self.look(*lock, Stand::Parked(*waiter), steps)
    }
}

impl Looking<'_> {
    fn look(&mut self, lock: usize, who: Stand<'_>, steps: &mut Steps) -> Vec<Owner> {
        let world = &self.locks[lock];
        world.lock.blockers(&world.volatile, who, world.now, &mut self.seen[lock], steps)
    }
}

impl<'p> Town<'p> {
    pub fn new(profile: &'p Profile) -> Self {
        let world = |_| {
            let mut world = World::new();
            world.max_depth = profile.max_depth;
            world
        };
        let locks: Vec<World> = (0..profile.locks).map(world).collect();
        Self { profile, unheard: vec![Vec::new(); locks.len()], locks }
    }

    pub fn fork(&self) -> Self {
        Self {
            profile: self.profile,
            locks: self.locks.iter().map(World::fork).collect(),
            unheard: self.unheard.clone(),
        }
    }

    /// Sets whether each step is checked against the laws.
    pub fn check(&mut self, is_checked: bool) {
        self.locks.iter_mut().for_each(|world| {
            world.check_every = if is_checked { 1 } else { u64::MAX };
        });
    }

    fn has_parked(&self, owner: usize) -> bool {
        self.locks.iter().any(|world| parked(world, owner).next().is_some())
    }

    /// Takes the step, if it is possible.
    pub fn step(&mut self, step: Step, kinds: &mut Kinds) -> bool {
        if !self.may(step) || self.is_busy(step) {
            return false;
        }
        kinds.happened(step);
        match step {
            Step::Asks(ask) => self.asks(ask, kinds),
            Step::AsksAll { owner, modes } => self.asks_all(owner, modes, kinds),
            Step::ReleasesAll { owner } => self.releases_all(owner, kinds),
            Step::Releases { lock, owner, mode, levels } => {
                let ask = Release { mode, levels, ..release(OWNERS[owner]) };
                self.input(lock, Input::Release(ask), kinds);
            }
            Step::ReleasesByToken { lock, owner } => {
                let token = picture(&self.locks[lock].lock).first().map(|held| held.token);
                let levels = Levels::One;
                let ask = Release { token, levels, ..release(OWNERS[owner]) };
                self.input(lock, Input::Release(ask), kinds);
            }
            Step::Renews { lock, owner } => {
                let ask = Renew { ..renew(OWNERS[owner], LEASE_MS) };
                self.input(lock, Input::Renew(ask), kinds);
            }
            Step::Cancels { lock, owner } => {
                self.input(lock, Input::Cancel(OWNERS[owner]), kinds);
            }
            Step::Forces { lock, mode } => self.input(lock, Input::Force(mode), kinds),
            Step::Takes { lock, owner } => self.input(lock, take(OWNERS[owner], LEASE_MS), kinds),
            Step::Leaves { lock, owner } => {
                let waiter = parked(&self.locks[lock], owner).next().expect("it is parked");
                self.leaves(lock, waiter, kinds);
            }
            Step::Hears { lock } => {
                let (waiter, _) = self.unheard[lock].pop().expect("it was granted");
                self.locks[lock].volatile.heard(waiter);
            }
            Step::GoesUnheard { lock } => {
                let (waiter, _) = self.unheard[lock].pop().expect("it was granted");
                self.leaves(lock, waiter, kinds);
            }
            Step::Passes { is_late } => self.passes(is_late, kinds),
            Step::Disconnects { client } => {
                for lock in 0..self.locks.len() {
                    self.locks[lock].volatile.disconnect(ClientId::from(client));
                    self.input(lock, Input::Tick, kinds);
                }
            }
            Step::Vanishes { lock } => {
                self.locks[lock].forget_holds();
                self.input(lock, Input::Tick, kinds);
            }
            Step::IsDismissed { lock, by_type } => {
                let why = if by_type { Refusal::WrongType } else { Refusal::TryAgain };
                let dismissed = self.locks[lock].dismiss(&why);
                kinds.woke(&dismissed.wakes);
                kinds.lost(&dismissed.lost);
            }
            Step::TicketsRunOut => {
                let left = &mut self.locks[0].tickets_left;
                *left = if *left == 0 { usize::MAX } else { 0 };
            }
        }
        self.forget_who_has_heard();
        waits::no_cycle_came_to_be(self);
        true
    }

    fn may(&self, step: Step) -> bool {
        let is_free = |owner| !self.profile.one_thing_at_a_time || !self.has_parked(owner);
        match step {
            Step::Asks(ask) => {
                let is_blocking = matches!(ask.wait, Wait::Block(_));
                let count = parked(&self.locks[ask.lock], ask.owner).count();
                is_free(ask.owner) && (!is_blocking || count < self.profile.connections)
            }
            Step::AsksAll { owner, .. }
            | Step::ReleasesAll { owner }
            | Step::Releases { owner, .. }
            | Step::ReleasesByToken { owner, .. }
            | Step::Renews { owner, .. }
            | Step::Takes { owner, .. }
            | Step::Cancels { owner, .. } => is_free(owner),
            Step::Leaves { lock, owner } => parked(&self.locks[lock], owner).next().is_some(),
            Step::Hears { lock } | Step::GoesUnheard { lock } => !self.unheard[lock].is_empty(),
            _ => true,
        }
    }

    /// A loop iteration is short: few replies are unread at any time.
    fn is_busy(&self, step: Step) -> bool {
        let is_about_them = matches!(step, Step::Hears { .. } | Step::GoesUnheard { .. });
        !is_about_them && self.unheard.iter().any(|unheard| unheard.len() >= UNHEARD_MAX)
    }

    fn asks(&mut self, ask: Ask, kinds: &mut Kinds) {
        let patience = match ask.wait {
            Wait::No => Patience::None,
            Wait::Block(_) => Patience::Block,
            Wait::Ticket(ms) => Patience::Ticket(lease(ms)),
        };
        let lease_ms = if ask.client.is_some() { SESSION_LEASE_MS } else { LEASE_MS };
        let request = Acquire {
            upgrade: ask.upgrade,
            limit: ask.limit,
            max_queue: ask.max_queue,
            depth: ask.depth,
            session: ask.client.map(ClientId::from),
            patience,
            ..acquire(OWNERS[ask.owner], ask.mode, lease_ms)
        };
        let effects = self.locks[ask.lock].step(Input::Acquire(request));
        self.carry_out(ask.lock, &effects, kinds);
        let (Reply::MustWait { .. }, Wait::Block(ms)) = (&effects.reply, ask.wait) else { return };
        if self.would_close_a_cycle(ask.lock, &request) {
            kinds.replied(&Reply::Refused(Refusal::Cycle(2)));
            return;
        }
        let (effects, _) = self.locks[ask.lock].park(request, ms);
        self.carry_out(ask.lock, &effects, kinds);
    }

    /// The result of the search, which must agree with a naive search.
    fn would_close_a_cycle(&self, lock: usize, ask: &Acquire<'_>) -> bool {
        let seen = self.locks.iter().map(|_| Seen::default()).collect();
        let mut looking = Looking { locks: &self.locks, seen };
        let mut steps = Steps::default();
        let who = Stand::Asking(*ask);
        let first = looking.look(lock, who, &mut steps);
        let (owner, wait) = (Owner::from(ask.owner), (lock, WaiterId::from(u64::MAX)));
        let found = search(&mut looking, &owner, wait, first, &mut steps);
        waits::is_true(self, lock, ask, &found);
        matches!(found, Search::Cycle(_))
    }

    fn leaves(&mut self, lock: usize, waiter: WaiterId, kinds: &mut Kinds) {
        self.locks[lock].leave(waiter);
        self.input(lock, Input::Tick, kinds);
    }

    /// A lock without waiters has no alarm: what has expired there is found when the lock is next
    /// examined.
    fn passes(&mut self, is_late: bool, kinds: &mut Kinds) {
        for lock in 0..self.locks.len() {
            self.locks[lock].advance_ms(1);
            let world = &self.locks[lock];
            let alarm = world.lock.next_alarm(&world.volatile);
            if !is_late && alarm.is_some_and(|at| at.is_over_at(world.now)) {
                self.input(lock, Input::Tick, kinds);
            }
        }
    }

    fn input(&mut self, lock: usize, input: Input<'static>, kinds: &mut Kinds) {
        let effects = self.locks[lock].step(input);
        self.carry_out(lock, &effects, kinds);
    }

    pub fn carry_out(&mut self, lock: usize, effects: &Effects<'_>, kinds: &mut Kinds) {
        kinds.came_of_it(effects);
        let new = std::mem::take(&mut self.locks[lock].issued);
        for (_, world) in self.locks.iter_mut().enumerate().filter(|(other, _)| *other != lock) {
            new.iter().for_each(|token| world.see(*token));
        }
        for wake in &effects.wakes {
            match wake.reply {
                Reply::Granted { token, .. } if self.profile.is_slow => {
                    self.unheard[lock].push((wake.waiter, token));
                }
                _ => self.locks[lock].volatile.heard(wake.waiter),
            }
        }
    }

    /// Forgets waiters whose departure would no longer make a difference.
    fn forget_who_has_heard(&mut self) {
        for (world, unheard) in self.locks.iter().zip(&mut self.unheard) {
            unheard.retain(|(waiter, _)| world.volatile.clone().leave(*waiter));
        }
    }
}

/// The owner's parked connections at a lock, in the order of arrival.
pub fn parked(world: &World, owner: usize) -> impl Iterator<Item = WaiterId> {
    let is_it = move |(_, other): &(&WaiterId, &Vec<u8>)| other.as_slice() == OWNERS[owner];
    world.parked.iter().filter(is_it).map(|(waiter, _)| *waiter)
}
