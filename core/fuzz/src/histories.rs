//! Takes bytes as the history of a lock, and gives it to the core and to the naive model: both must
//! agree.

use std::num::NonZeroU32;
use std::rc::Rc;

use rlock_core::{
    Acquire, ClientId, Effects, EpochMs, Input, LeaseMs, Levels, Lock, Mode, Now, Parking,
    Patience, Refusal, Release, Renew, Reply, Step, StepContext, Token, Tokens, Volatile, WaiterId,
};

use rlock_core::slow::Slow;

use super::naive::told::{Told, wakes};
use super::naive::{Hold, Limits, Naive};

const START_MS: u64 = 1_700_000_000_000;
const OWNERS: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
const MODES: [Option<Mode>; 3] = [None, Some(Mode::Read), Some(Mode::Write)];

/// Short histories, many of them.
const STEPS_MAX: usize = 20;

/// Each step takes three bytes: what happens, and two for its details.
pub fn histories(data: &[u8]) {
    let mut pair = Pair::new();
    for step in data.chunks(3).take(STEPS_MAX) {
        pair.step(step[0], step.get(1).copied().unwrap_or(0), step.get(2).copied().unwrap_or(0));
        pair.agree();
    }
}

/// The core and the naive model, side by side.
struct Pair {
    lock: Lock,
    volatile: Volatile,
    tokens: Tokens,
    naive: Naive,
    now: Now,
    limits: Limits,
    /// Connections that are parked, or were granted and have not got their reply.
    waiters: Vec<WaiterId>,
    last_waiter: u64,
}

impl Pair {
    fn new() -> Self {
        Self {
            lock: Lock::default(),
            volatile: Volatile::default(),
            tokens: Tokens::default(),
            naive: Naive::default(),
            now: Now::from_ms(START_MS),
            limits: Limits { max_depth: 3, tickets_left: usize::MAX },
            waiters: Vec::new(),
            last_waiter: 0,
        }
    }

    fn step(&mut self, what: u8, how: u8, more: u8) {
        let owner = OWNERS[usize::from(how % 4)];
        let mode = MODES[usize::from(how / 4 % 4) % 3];
        let token = self.token(more / 16);
        let input = match what % 16 {
            0..=5 => return self.acquire(owner, how / 4, more),
            6..=8 => {
                let levels = match more % 8 {
                    0 => Levels::All,
                    1 => Levels::DownTo((how / 16 % 4).into()),
                    _ => Levels::One,
                };
                Input::Release(Release { owner, mode, token, levels })
            }
            9 => Input::Renew(Renew { owner, mode, token, lease: lease(more % 16), acks: 0 }),
            10 => Input::Cancel(owner),
            11 => Input::Force(mode),
            12 => return self.now = Now::from_us(self.now.us() + u64::from(how) * 100),
            13 => Input::Tick,
            14 => return self.leave_or_hear(how, more),
            _ => return self.befall(how, more),
        };
        self.ask(input);
    }

    fn acquire(&mut self, owner: &'static [u8], how: u8, more: u8) {
        let patience = match how / 4 % 4 {
            0 => Patience::None,
            1 => Patience::Ticket(lease(more / 16)),
            2 => Patience::Take,
            _ => Patience::Block,
        };
        let ask = Acquire {
            owner,
            mode: if how.is_multiple_of(2) { Mode::Write } else { Mode::Read },
            lease: lease(more % 16),
            upgrade: how / 2 % 2 == 1,
            limit: NonZeroU32::new(u32::from(how / 64)).filter(|_| !how.is_multiple_of(2)),
            max_queue: (more % 16 == 3).then(|| usize::from(more / 64)),
            depth: (how / 16 % 4 == 3).then(|| (more / 16 % 4).max(1).into()),
            session: (how / 16 % 4 == 2).then(|| ClientId::from(u64::from(more % 3) + 1)),
            patience,
            acks: 0,
        };
        let reply = self.ask(Input::Acquire(ask));
        if let Reply::MustWait { .. } = reply {
            self.last_waiter += 1;
            let waiter = WaiterId::from(self.last_waiter);
            self.waiters.push(waiter);
            let ms = u64::from(more / 16);
            let ends_at = (ms > 0).then(|| self.now.after_ms(ms));
            let parking = Parking {
                waiter,
                client: ask.session,
                since: self.now,
                ends_at,
                is_of_several: false,
            };
            self.ask(Input::Park(ask, parking));
        }
    }

    fn leave_or_hear(&mut self, which: u8, how: u8) {
        if self.waiters.is_empty() {
            return;
        }
        let waiter = self.waiters.remove(usize::from(which) % self.waiters.len());
        if self.volatile.queue.blocked(waiter).is_none() && how.is_multiple_of(2) {
            self.volatile.heard(waiter);
            self.naive.answered(waiter);
        } else {
            self.volatile.leave(waiter);
            self.naive.leave(waiter);
        }
        if (how / 2).is_multiple_of(2) {
            self.ask(Input::Tick);
        }
    }

    /// Events that are not commands.
    fn befall(&mut self, what: u8, how: u8) {
        match what % 8 {
            0..=2 => {
                let client = ClientId::from(u64::from(how % 3) + 1);
                self.volatile.disconnect(client);
                self.naive.disconnect(client);
            }
            3 => self.limits.max_depth = (how % 4).max(1).into(),
            4 => self.limits.tickets_left = (how % 2).into(),
            5 => {
                self.lock = Lock::default();
                let mut lost = self.lock.lost_sessions(&mut self.volatile, self.now);
                let mut expected = self.naive.forget_holds();
                lost.sort();
                expected.sort();
                assert_eq!(lost, expected, "connections whose session is lost");
            }
            6 => {
                let why =
                    if how.is_multiple_of(2) { Refusal::TryAgain } else { Refusal::WrongType };
                let dismissed = self.volatile.dismiss(&why, Slow::default(), self.now, usize::MAX);
                let (wakes, lost) = (wakes(&dismissed.wakes), dismissed.lost);
                let told = Told { wakes, lost, ..Told::default() }.sorted();
                assert_eq!(told, self.naive.dismiss(self.now, &why), "everybody goes home");
            }
            _ => {
                let ahead = Token::new(self.now.us() + u64::from(how) * 1000);
                self.tokens.saw(ahead.expect("a token of this millennium"));
                self.naive.saw(ahead.expect("a token of this millennium").get());
            }
        }
    }

    /// A token that some hold has, one that no hold has, or none.
    fn token(&self, which: u8) -> Option<Token> {
        match which {
            0 => Token::new(7),
            1..=4 => self.lock.holds().nth(usize::from(which - 1)).map(|(_, _, hold)| hold.token),
            _ => None,
        }
    }

    fn ask(&mut self, input: Input<'_>) -> Reply {
        let expected = self.naive.ask(self.now, self.limits, &input);
        let Limits { max_depth, tickets_left } = self.limits;
        let names = &mut Rc::default();
        let moment = StepContext::unlimited(self.now, &mut self.tokens, names);
        let moment = StepContext { max_depth, tickets_left, ..moment };
        let mut effects = Effects::default();
        let (lock, volatile) = (&mut self.lock, &mut self.volatile);
        Step { lock, volatile, moment, effects: &mut effects }.apply(input);
        self.volatile.sessions.take_touched();
        self.volatile.check().expect("every index agrees");
        self.lock.check().expect("every index agrees");
        assert_eq!(Told::of(&effects), expected, "what the core says, and the contract: {input:?}");
        effects.reply
    }

    /// Both are in the same state, as far as that is visible.
    fn agree(&self) {
        let held = |(owner, mode, hold): (&[u8], Mode, rlock_core::Hold)| {
            let session = self.volatile.sessions.get(hold.token);
            Hold {
                owner: owner.to_vec(),
                mode,
                token: hold.token.get(),
                depth: hold.depth,
                deadline: hold.deadline.get(),
                session: session.map(|tie| super::naive::Tie {
                    client: tie.client,
                    lease: tie.lease,
                    renew_at: tie.renew_at.get(),
                }),
            }
        };
        let holds: Vec<Hold> = self.lock.holds().map(held).collect();
        assert_eq!(holds, self.naive.holds, "who holds");
        let waiting: Vec<_> = self
            .volatile
            .queue
            .iter()
            .map(|(one, turn)| {
                let ends_at = one.ends_at.map(EpochMs::get);
                (one.owner.as_bytes(), one.mode, one.kind, ends_at, turn)
            })
            .collect();
        let (turns, line): (Vec<_>, Vec<_>) = self
            .naive
            .queue
            .iter()
            .map(|one| (one.owner.as_slice(), one.mode, one.kind, one.ends_at, one.is_turn))
            .partition(|(.., is_turn)| *is_turn);
        assert_eq!(waiting, [turns, line].concat(), "who waits");
    }
}

fn lease(ms: u8) -> LeaseMs {
    LeaseMs::new(u64::from(ms) + 1).expect("a lease")
}
