//! A world for one lock: a clock that only the test moves, tokens, a replica that gets the changes
//! as bytes, and a naive model. Every test drives the core through [`World`], which checks every
//! step against the laws.

pub mod acks;
pub mod cost;
pub mod laws;
pub mod line;
#[allow(dead_code, reason = "the fuzz targets use the rest")]
pub mod naive;
pub mod server;
pub mod story;

use std::collections::BTreeMap;
use std::rc::Rc;

use rlock_core::{
    Acquire, Change, Dismissed, Effects, FastStep, Input, Kind, LeaseMs, Levels, Lock, Mode, Now,
    OpenLock, OwnerNames, Parking, Patience, Refusal, Release, Renew, Reply, Right, Rights, Step,
    StepContext, Token, Tokens, Volatile, WaiterId,
    slow::Slow,
    snapshot::{self, Effect, Malformed, Start},
};

use laws::Held;
use naive::{Limits, Naive, told::Told};

/// Reads an effect of one lock.
pub fn load_effect(bytes: &[u8]) -> Result<Effect<Vec<Change<'_>>>, Malformed> {
    snapshot::load_effects(bytes, 1).map(|mut one| one.remove(0))
}

/// Where the time of every test begins, in microseconds since the Unix epoch.
pub const START_US: u64 = 1_700_000_000_000_000;

pub struct World {
    pub lock: Lock,
    pub now: Now,
    pub max_depth: u16,
    pub volatile: Volatile,
    pub tickets_left: usize,
    pub sessions_max: usize,
    pub portion: usize,
    /// The parked owners that have no reply yet, by the number of their waits.
    pub parked: BTreeMap<WaiterId, Vec<u8>>,
    last_waiter: u64,
    /// The expensive laws are checked only every this many steps, the cheap ones always.
    pub check_every: u64,
    steps: u64,
    /// How many of the steps were plain requests.
    pub plain_steps: u64,
    /// How many waits were predicted without a decision.
    pub waits_seen: u64,
    /// Every token that was issued, in order.
    pub issued: Vec<Token>,
    /// A new token must be greater than this one: the greatest that this process issued, saw or
    /// found.
    floor: u64,
    /// The greatest token that ever was in the replication stream.
    replicated: u64,
    tokens: Tokens,
    names: Rc<OwnerNames>,
    replica: Lock,
    replica_tokens: Tokens,
    naive: Naive,
}

impl World {
    pub fn new() -> Self {
        Self {
            lock: Lock::default(),
            now: Now::from_us(START_US),
            max_depth: u16::MAX,
            volatile: Volatile::default(),
            tickets_left: usize::MAX,
            sessions_max: usize::MAX,
            portion: StepContext::PORTION,
            parked: BTreeMap::new(),
            last_waiter: 0,
            check_every: 1,
            steps: 0,
            plain_steps: 0,
            waits_seen: 0,
            issued: Vec::new(),
            floor: 0,
            replicated: 0,
            tokens: Tokens::default(),
            names: Rc::default(),
            replica: Lock::default(),
            replica_tokens: Tokens::default(),
            naive: Naive::default(),
        }
    }

    /// A copy of the world, to try another continuation.
    pub fn fork(&self) -> Self {
        Self {
            lock: self.lock.clone(),
            now: self.now,
            max_depth: self.max_depth,
            volatile: self.volatile.clone(),
            tickets_left: self.tickets_left,
            sessions_max: self.sessions_max,
            portion: self.portion,
            parked: self.parked.clone(),
            last_waiter: self.last_waiter,
            check_every: self.check_every,
            steps: self.steps,
            plain_steps: self.plain_steps,
            waits_seen: self.waits_seen,
            issued: self.issued.clone(),
            floor: self.floor,
            replicated: self.replicated,
            tokens: tokens_after(self.floor),
            names: Rc::default(),
            replica: self.replica.clone(),
            replica_tokens: tokens_after(self.replicated),
            naive: self.naive.clone(),
        }
    }

    /// The open lock, to be judged.
    pub fn open(&self) -> OpenLock<'_> {
        let Self { lock, volatile, tokens, now, .. } = self;
        OpenLock { lock, volatile, tokens, now: *now, grace: None, is_unswept: false }
    }

    /// A token for holds of several locks.
    pub fn issue(&mut self) -> Token {
        self.tokens.issue(self.now).expect("there is one left")
    }

    /// This token will be that of a new hold here.
    pub fn reserve(&mut self, token: Token) {
        self.tokens.saw(token);
    }

    /// Sets the clock to this many microseconds after [`START_US`], forward or backward.
    pub fn set_clock(&mut self, us: u64) {
        self.now = Now::from_us(START_US + us);
    }

    pub fn advance_ms(&mut self, ms: u64) {
        self.now = Now::from_us(self.now.us() + ms * 1000);
    }

    /// The only place that calls the core. It checks nothing: for tests that measure.
    pub fn drive<'a>(&mut self, input: Input<'a>) -> Effects<'a> {
        let moment = StepContext {
            max_depth: self.max_depth,
            tickets_left: self.tickets_left,
            sessions_max: self.sessions_max,
            portion: self.portion,
            ..StepContext::unlimited(self.now, &mut self.tokens, &mut self.names)
        };
        let mut effects = Effects::default();
        let (lock, volatile) = (&mut self.lock, &mut self.volatile);
        Step { lock, volatile, moment, effects: &mut effects }.apply(input);
        self.volatile.sessions.take_touched();
        effects
    }

    /// The same step on a copy, in which each permission is checked and granted.
    fn drive_checked<'a>(&self, input: Input<'a>) -> (Lock, Volatile, Effects<'a>) {
        let (mut lock, mut volatile) = (self.lock.clone(), self.volatile.clone());
        let (mut tokens, mut names) = (self.tokens.clone(), self.names.clone());
        let (mut rights, mut effects) = (Vec::new(), Effects::default());
        loop {
            let moment = StepContext {
                max_depth: self.max_depth,
                tickets_left: self.tickets_left,
                sessions_max: self.sessions_max,
                portion: self.portion,
                rights: Rights::Checked(&rights),
                ..StepContext::unlimited(self.now, &mut tokens, &mut names)
            };
            let (lock, volatile) = (&mut lock, &mut volatile);
            Step { lock, volatile, moment, effects: &mut effects }.apply(input);
            let Some(unchecked) = &effects.unchecked else { break };
            let known = |waiter: &WaiterId| rights.iter().any(|(other, _)| other == waiter);
            assert!(!known(&unchecked.waiters[0]), "{input:?} asks twice for the same right");
            let missing: Vec<WaiterId> =
                unchecked.waiters.iter().copied().filter(|waiter| !known(waiter)).collect();
            rights.extend(missing.into_iter().map(|waiter| (waiter, Right::May)));
        }
        volatile.sessions.take_touched();
        (lock, volatile, effects)
    }

    /// Takes one step, and checks it against every law.
    pub fn step<'a>(&mut self, input: Input<'a>) -> Effects<'a> {
        self.steps += 1;
        if !self.steps.is_multiple_of(self.check_every) {
            return self.light_step(input);
        }
        let before = (self.lock.clone(), laws::picture(&self.lock));
        let (line, was_alone) = (line::Line::of(&self.volatile), self.volatile.is_empty());
        let plain = was_alone.then(|| self.try_fast(&input)).flatten();
        let waits = match &input {
            Input::Acquire(ask) => self.lock.must_wait(&self.volatile, ask, self.now),
            _ => None,
        };
        let waits = waits.map(|reply| (reply, self.volatile.clone()));
        let checked = (self.volatile.queue.blocked_count() > 0).then(|| self.drive_checked(input));
        let effects = self.drive(input);
        if let Some((lock, volatile, stopped)) = checked {
            laws::checking_changes_nothing(&stopped, &effects);
            assert_eq!((&lock, &volatile), (&self.lock, &self.volatile), "{input:?}");
        }
        let after = laws::picture(&self.lock);
        if let Some((lock, plain)) = plain {
            laws::plain_is_the_same(&lock, plain, &self.lock, &effects);
            self.plain_steps += 1;
        }
        if let Some((reply, mut volatile)) = waits {
            volatile.sessions.take_touched();
            laws::a_wait_changes_nothing(&reply, &effects);
            assert_eq!((&before.0, &volatile), (&self.lock, &self.volatile), "{input:?}");
            self.waits_seen += 1;
        }
        laws::well_formed(&self.lock);
        self.volatile.check().unwrap();
        laws::readers_agree(&self.lock, &after, self.now);
        laws::transition(&before.1, &after, &effects, self.now, self.floor);
        laws::every_change_changes(&before.0, &self.lock, &input, &effects);
        self.replicate(&input, &effects);
        line::answers(self, &line, &input, &effects);
        line::order(self, &line, &before.1, &input, &effects);
        line::permits(&line, &before.1, &input, &effects);
        line::rest(self);
        // The fuzz target `histories` compares waiters, too.
        let asks_session = matches!(&input, Input::Acquire(ask) if ask.session.is_some());
        if was_alone && self.volatile.is_empty() && !asks_session {
            laws::a_refusal_changes_nothing(&effects);
            let limits = Limits { max_depth: self.max_depth, tickets_left: self.tickets_left };
            let expected = self.naive.ask(self.now, limits, &input);
            assert_eq!(Told::of(&effects), expected, "the core, and the contract: {input:?}");
            assert_eq!(after, self.naive.picture(), "who holds: {input:?}");
        } else {
            self.naive.learn(&after, self.floor);
        }
        effects
    }

    /// The lock after a plain request, and the request's result.
    fn try_fast<'a>(&self, input: &Input<'a>) -> Option<(Lock, FastStep<'a>)> {
        let mut lock = self.lock.clone();
        let plain = lock.try_fast(input, self.now, &mut self.tokens.clone(), Slow::default());
        if plain.is_none() {
            assert_eq!(lock, self.lock, "another request changed the lock");
        }
        plain.map(|plain| (lock, plain))
    }

    fn light_step<'a>(&mut self, input: Input<'a>) -> Effects<'a> {
        let effects = self.drive(input);
        self.replicate(&input, &effects);
        self.issued.clear();
        self.naive.learn(&laws::picture(&self.lock), self.floor);
        for wake in &effects.wakes {
            assert!(self.parked.remove(&wake.waiter).is_some(), "{wake:?} was not due");
        }
        if !effects.lost.is_empty() {
            let queue = &self.volatile.queue;
            self.parked.retain(|waiter, _| queue.blocked(*waiter).is_some());
        }
        effects
    }

    /// Asks as a connection that can be parked: returns what happened at once, and the number of
    /// the wait if it was parked.
    pub fn block<'a>(
        &mut self,
        ask: Acquire<'a>,
        block_ms: Option<u64>,
    ) -> (Effects<'a>, Option<WaiterId>) {
        let ask = Acquire { patience: Patience::Block, ..ask };
        let effects = self.step(Input::Acquire(ask));
        if !matches!(effects.reply, Reply::MustWait { .. }) {
            return (effects, None);
        }
        let (parked, waiter) = self.park(ask, block_ms);
        // The effects of both steps are reported together: a turn may have been given up in the
        // first.
        (
            Effects {
                reply: parked.reply,
                wakes: [effects.wakes, parked.wakes].concat(),
                ..effects
            },
            Some(waiter),
        )
    }

    /// Parks a request whose reply was `MustWait`.
    pub fn park<'a>(&mut self, ask: Acquire<'a>, block_ms: Option<u64>) -> (Effects<'a>, WaiterId) {
        self.last_waiter += 1;
        let waiter = WaiterId::from(self.last_waiter);
        let ends_at = block_ms.map(|ms| self.now.after_ms(ms));
        self.parked.insert(waiter, ask.owner.to_vec());
        let parking =
            Parking { waiter, client: ask.session, since: self.now, ends_at, is_of_several: false };
        let parked = self.step(Input::Park(ask, parking));
        let is_answered = parked.wakes.iter().any(|wake| wake.waiter == waiter);
        assert!(!is_answered, "one who had to wait was answered at once: {parked:?}");
        (parked, waiter)
    }

    /// Something outside of RLOCK removes the key, on this server and on every replica.
    pub fn forget_holds(&mut self) {
        self.lock = Lock::default();
        self.replica = Lock::default();
        self.lock.lost_sessions(&mut self.volatile, self.now);
        let queue = &self.volatile.queue;
        self.parked.retain(|waiter, _| queue.blocked(*waiter).is_some());
        self.naive.learn(&[], self.floor);
    }

    /// Nobody can be granted here any more: the lock remains as it is, and all waiters are refused.
    pub fn dismiss(&mut self, why: &Refusal) -> Dismissed {
        let waits: Vec<_> = self.volatile.queue.iter().map(|(one, _)| one.clone()).collect();
        let dismissed = self.volatile.dismiss(why, Slow::default(), self.now, usize::MAX);
        for one in
            waits.iter().filter(|one| dismissed.lost.iter().any(|lost| one.client == Some(*lost)))
        {
            if let Kind::Blocked(waiter) | Kind::Told(waiter) = one.kind {
                self.parked.remove(&waiter);
            }
        }
        for wake in &dismissed.wakes {
            assert!(!matches!(wake.reply, Reply::Granted { .. }), "{wake:?}");
            assert!(self.parked.remove(&wake.waiter).is_some(), "{wake:?} was not due");
        }
        assert!(self.parked.is_empty(), "somebody is forgotten: {:?}", self.parked);
        assert!(self.volatile.queue.is_empty() && self.volatile.sessions.is_empty());
        dismissed
    }

    /// A parked connection departs, as the server reports it: between two steps.
    pub fn leave(&mut self, waiter: WaiterId) {
        self.parked.remove(&waiter);
        self.volatile.leave(waiter);
    }

    /// Sends the changes as bytes: the replica that replays them has the same lock and reports the
    /// same. So does a replica that gets the request instead, if that is enough.
    fn replicate(&mut self, input: &Input<'_>, effects: &Effects<'_>) {
        let (mut bytes, mut events) = (Vec::new(), Vec::new());
        let by_request = effects.is_request_enough.then(|| {
            let Input::Release(ask) = input else { panic!("{input:?} reads the clock") };
            let mut replica = self.replica.clone();
            let event = replica.replay_release(ask);
            let once = replica.clone();
            assert_eq!(replica.replay_release(ask), None, "{input:?} twice");
            assert_eq!(replica, once, "{input:?} twice");
            (event, replica)
        });
        let arrived = if effects.changes.is_empty() {
            Vec::new()
        } else {
            snapshot::save_effect(Start::Existing, &effects.changes, &mut bytes);
            load_effect(&bytes).expect("an effect is readable").changes
        };
        assert_eq!(arrived, effects.changes.to_vec(), "an effect came differently");
        for change in &arrived {
            events.extend(self.replica.replay(change));
            if let Change::Granted { token, .. } = change {
                self.issued.push(*token);
                self.went_along(*token);
            }
        }
        assert_eq!(self.replica, self.lock, "a replica that replays the changes differs");
        assert_eq!(events, effects.events.to_vec(), "a replica tells subscribers something else");
        if let Some((event, replica)) = by_request {
            assert_eq!(replica, self.lock, "a replica that gets {input:?} differs");
            assert_eq!(
                event,
                effects.events.first().copied(),
                "{input:?}: it tells something else"
            );
        }
    }

    /// This process starts, or becomes the primary.
    pub fn begin_tokens(&mut self) {
        self.tokens.begin(self.now);
        self.naive.saw(self.now.us() + Tokens::CLOCK_SKEW_US);
        self.floor = self.floor.max(self.now.us() + Tokens::CLOCK_SKEW_US);
    }

    /// A token of another lock was found in loaded data or in the replication stream.
    pub fn see(&mut self, token: Token) {
        self.tokens.saw(token);
        self.naive.saw(token.get());
        self.went_along(token);
    }

    fn went_along(&mut self, token: Token) {
        self.replica_tokens.saw(token);
        self.floor = self.floor.max(token.get());
        self.replicated = self.replicated.max(token.get());
    }

    /// The primary dies, and the replica takes over.
    pub fn fail_over(&mut self) {
        self.volatile = Volatile::default();
        self.lock = self.replica.clone();
        self.tokens = std::mem::take(&mut self.replica_tokens);
        self.replica_tokens = tokens_after(self.replicated);
        self.floor = self.replicated;
        self.naive.knows_tokens_to(self.replicated);
        self.begin_tokens();
    }

    /// The process ends, and starts again from its data. It remembers only what the data contains.
    pub fn restart(&mut self) {
        self.volatile = Volatile::default();
        if !self.lock.is_free() {
            let mut bytes = Vec::new();
            snapshot::save(&self.lock, &mut bytes);
            self.lock = snapshot::load(&bytes).expect("what was saved can be loaded");
        }
        self.tokens = Tokens::default();
        self.naive.knows_tokens_to(0);
        self.floor = 0;
        for token in laws::picture(&self.lock).iter().map(|held| held.token) {
            self.see(token);
        }
        self.begin_tokens();
    }

    /// Everything on which future steps depend, with times relative to now, and tokens by rank: two
    /// worlds with the same state continue alike, whatever their histories. Owners that hold are
    /// named by their rank, too.
    pub fn state(&self) -> Vec<(usize, Mode, u16, i64)> {
        let holds = laws::picture(&self.lock);
        let mut names: Vec<&[u8]> = Vec::new();
        let now_ms = self.now.ms().get().cast_signed();
        let relative = |held: &Held| (held.deadline.get().cast_signed() - now_ms).max(-1);
        holds
            .iter()
            .map(|held| {
                let known = names.iter().position(|name| *name == held.owner.as_slice());
                let rank = known.unwrap_or_else(|| {
                    names.push(&held.owner);
                    names.len() - 1
                });
                (rank, held.mode, held.depth, relative(held))
            })
            .collect()
    }
}

fn tokens_after(greatest: u64) -> Tokens {
    let mut tokens = Tokens::default();
    if let Some(token) = Token::new(greatest) {
        tokens.saw(token);
    }
    tokens
}

/// A number from the environment.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// `RLOCK_SEED` repeats a random history, `RLOCK_STEPS` makes it longer.
pub fn random(steps: u64) -> (fastrand::Rng, u64) {
    let seed = number("RLOCK_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("RLOCK_SEED={seed}");
    (fastrand::Rng::with_seed(seed), number("RLOCK_STEPS").unwrap_or(steps))
}

pub fn lease(ms: u64) -> LeaseMs {
    LeaseMs::new(ms).expect("a lease from 1 ms to seven days")
}

/// A plain request to acquire; the tests change what they are about.
pub fn acquire(owner: &[u8], mode: Mode, lease_ms: u64) -> Acquire<'_> {
    let lease = lease(lease_ms);
    let (upgrade, limit, depth) = (false, None, None);
    let (session, patience, max_queue) = (None, Patience::None, None);
    Acquire { owner, mode, lease, upgrade, limit, depth, session, patience, max_queue, acks: 0 }
}

/// A plain request to release one level.
pub fn release(owner: &[u8]) -> Release<'_> {
    Release { owner, mode: None, token: None, levels: Levels::One }
}

/// A plain request to extend all the owner's deadlines.
pub fn renew(owner: &[u8], lease_ms: u64) -> Renew<'_> {
    Renew { owner, mode: None, token: None, lease: lease(lease_ms), acks: 0 }
}

/// What `RLOCK.TAKE` asks for.
pub fn take(owner: &[u8], lease_ms: u64) -> Input<'_> {
    let ask = acquire(owner, Mode::Write, lease_ms);
    Input::Acquire(Acquire { patience: Patience::Take, depth: Some(1), ..ask })
}
