//! The steps that the core takes for one operation, with one other client and with ten thousand.
//! Callgrind counts their instructions, without a server.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::process::Command;
use std::rc::Rc;

use rlock_core::OwnerNames;
use rlock_core::slow::Slow;
use rlock_core::{
    Acquire, Effects, Input, LeaseMs, Levels, Lock, Mode, Now, Parking, Patience, Release, Renew,
    Step, StepContext, Tokens, Volatile, WaiterId,
};

const MANY: u64 = 10_000;
const ROUNDS: u64 = 1000;
/// A lease that is longer than any run here.
const LEASE: LeaseMs = LeaseMs::MAX;
const TICKET: Patience = Patience::Ticket(LEASE);
const A_MOMENT: LeaseMs = match LeaseMs::new(1) {
    Some(lease) => lease,
    None => LEASE,
};
/// The functions whose instructions callgrind counts.
const COUNTED: &str = "*steps*counted_rounds*";

/// The name; how the other clients are set up; the counted work; its result, which is the same each
/// time.
type Operation = (&'static str, fn(u64) -> Town, fn(&mut Town, u64) -> Told, Told);

/// The number of changes to the lock, and of blocked connections that got replies.
type Told = [usize; 2];

/// How many holders the slow log names for a wait; with fewer holders it has less work.
const NAMED: u64 = 100;

const OPERATIONS: [Operation; 10] = [
    (
        "hand-off, and back into the queue, waiters",
        Town::blocked,
        |town, round| {
            let owner = name(round % (town.others + 1));
            let told = town.release(&owner);
            town.park(&owner);
            told
        },
        [2, 1],
    ),
    (
        "a poll of a ticket in the middle, tickets",
        Town::tickets,
        |town, _| town.acquire(&name(town.others / 2 + 1), Mode::Write, TICKET),
        [0, 0],
    ),
    (
        "a newcomer is refused, waiters",
        Town::blocked,
        |town, _| town.acquire(b"newcomer", Mode::Read, Patience::None),
        [0, 0],
    ),
    (
        "one is blocked and departs, waiters",
        Town::blocked,
        |town, _| {
            let waiter = town.park(b"leaver");
            assert!(town.volatile.leave(waiter));
            town.ask(Input::Tick)
        },
        [0, 0],
    ),
    (
        "READ and its release, readers",
        Town::readers,
        |town, _| {
            let [changes, _] = town.acquire(b"newcomer", Mode::Read, Patience::None);
            let [more, woken] = town.release(b"newcomer");
            [changes + more, woken]
        },
        [2, 0],
    ),
    (
        "RENEW of one, readers",
        Town::readers,
        |town, round| {
            let owner = name(round * 7 % town.others);
            town.ask(Input::Renew(Renew {
                owner: &owner,
                mode: None,
                token: None,
                lease: LEASE,
                acks: 0,
            }))
        },
        [1, 0],
    ),
    (
        "a lease ends, readers",
        Town::readers,
        |town, _| {
            let ask = acquire(b"newcomer", Mode::Read, Patience::None);
            let [changes, _] = town.ask(Input::Acquire(Acquire { lease: A_MOMENT, ..ask }));
            town.now_ms += A_MOMENT.get();
            let [more, woken] = town.ask(Input::Tick);
            [changes + more, woken]
        },
        [2, 0],
    ),
    (
        "a permit and its release, permits",
        Town::readers,
        |town, _| {
            let limit = permits(town.others + 1);
            let ask = acquire(b"newcomer", Mode::Read, Patience::None);
            let [changes, _] = town.ask(Input::Acquire(Acquire { limit, ..ask }));
            let [more, woken] = town.release(b"newcomer");
            [changes + more, woken]
        },
        [2, 0],
    ),
    (
        "hand-off of a permit, waiters",
        |others| {
            let mut town = Town { others, ..Town::readers(1) };
            (1..=others).for_each(|number| town.waits_for(&name(number), 1));
            town
        },
        |town, round| {
            let owner = name(round % (town.others + 1));
            let told = town.release(&owner);
            town.waits_for(&owner, 1);
            told
        },
        [2, 1],
    ),
    (
        "hand-off of a permit, permits",
        |others| {
            let mut town = Town::readers(others + NAMED);
            town.waits_for(&name(town.others), town.others);
            town
        },
        |town, round| {
            let owner = name(round % (town.others + 1));
            let told = town.release(&owner);
            town.waits_for(&owner, town.others);
            told
        },
        [2, 1],
    ),
];

fn permits(limit: u64) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(limit).unwrap())
}

/// Counts each operation; returns whether the cost of none of them grows.
pub fn gate() -> bool {
    let mut is_passed = true;
    println!("{:<46} {:>9} {:>9}", "instructions of the core, with", 1, MANY);
    for (number, (name, ..)) in OPERATIONS.iter().enumerate() {
        let [one, many] = [1, MANY].map(|others| count(number, others));
        // The trees have four levels instead of one. Visiting every other client would cost more
        // than this.
        let is_flat = many < one + MANY as f64;
        is_passed &= is_flat;
        println!("  {name:<44} {one:>9.0} {many:>9.0} {}", if is_flat { "" } else { "RED" });
    }
    is_passed
}

/// The instructions that one round of this operation takes, in this program under callgrind.
fn count(operation: usize, others: u64) -> f64 {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(format!("--toggle-collect={COUNTED}"));
    command.arg(std::env::current_exe().unwrap()).arg("steps");
    let output = command.args([operation.to_string(), others.to_string()]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let total = said.lines().find_map(|line| line.split_once("Collected : "));
    let total: f64 = total.and_then(|(_, total)| total.trim().parse().ok()).expect(&said);
    let each = total / ROUNDS as f64;
    assert!(each > 100.0, "callgrind did not see {COUNTED}: {said}");
    each
}

/// Does the operation with this number, while callgrind counts.
pub fn run(operation: &str, others: &str) {
    let (_, prepare, round, expected) = OPERATIONS[operation.parse::<usize>().unwrap()];
    let mut town = prepare(others.parse().unwrap());
    counted_rounds(&mut town, round, expected);
}

#[inline(never)]
fn counted_rounds(town: &mut Town, round: fn(&mut Town, u64) -> Told, expected: Told) {
    for number in 0..ROUNDS {
        town.now_ms += 1;
        assert_eq!(round(town, number), expected);
    }
}

/// One lock, with this many other clients.
struct Town {
    lock: Lock,
    volatile: Volatile,
    tokens: Tokens,
    names: Rc<OwnerNames>,
    now_ms: u64,
    last_waiter: u64,
    others: u64,
}

impl Town {
    fn new(others: u64) -> Town {
        let (lock, volatile, tokens) = (Lock::default(), Volatile::default(), Tokens::default());
        Town {
            lock,
            volatile,
            tokens,
            names: Rc::default(),
            now_ms: 1_700_000_000_000,
            last_waiter: 0,
            others,
        }
    }

    /// The first client holds the lock, and all others are blocked.
    fn blocked(others: u64) -> Town {
        let mut town = Town::new(others);
        town.acquire(&name(0), Mode::Write, Patience::None);
        for number in 1..=others {
            town.park(&name(number));
        }
        town
    }

    /// The first client holds the lock, and all others wait with a ticket.
    fn tickets(others: u64) -> Town {
        let mut town = Town::new(others);
        town.acquire(&name(0), Mode::Write, Patience::None);
        for number in 1..=others {
            town.acquire(&name(number), Mode::Write, TICKET);
        }
        town
    }

    fn readers(others: u64) -> Town {
        let mut town = Town::new(others);
        for number in 0..others {
            town.acquire(&name(number), Mode::Read, Patience::None);
        }
        town
    }

    fn now(&self) -> Now {
        Now::from_ms(self.now_ms)
    }

    /// Works like the module, except that a granted waiter gets its reply at once.
    fn ask(&mut self, input: Input<'_>) -> Told {
        // These are the module's defaults.
        let slow = Slow { wait_ms: Some(1000), hold_ms: None };
        let moment = StepContext::unlimited(self.now(), &mut self.tokens, &mut self.names);
        let moment = StepContext { slow, ..moment };
        let mut effects = Effects::default();
        let (lock, volatile) = (&mut self.lock, &mut self.volatile);
        Step { lock, volatile, moment, effects: &mut effects }.apply(input);
        black_box(self.lock.next_alarm(&self.volatile));
        for wake in &effects.wakes {
            self.volatile.heard(wake.waiter);
        }
        [effects.changes.len(), effects.wakes.len()]
    }

    fn acquire(&mut self, owner: &[u8], mode: Mode, patience: Patience) -> Told {
        self.ask(Input::Acquire(acquire(owner, mode, patience)))
    }

    fn park(&mut self, owner: &[u8]) -> WaiterId {
        self.park_as(acquire(owner, Mode::Write, Patience::Block))
    }

    /// Waits for a permit; the lock has this many.
    fn waits_for(&mut self, owner: &[u8], limit: u64) {
        let limit = permits(limit);
        self.park_as(Acquire { limit, ..acquire(owner, Mode::Read, Patience::Block) });
    }

    fn park_as(&mut self, ask: Acquire<'_>) -> WaiterId {
        self.last_waiter += 1;
        let waiter = WaiterId::from(self.last_waiter);
        let ends_at = Some(self.now().after(LEASE));
        let parking =
            Parking { waiter, client: None, since: self.now(), ends_at, is_of_several: false };
        self.ask(Input::Park(ask, parking));
        waiter
    }

    fn release(&mut self, owner: &[u8]) -> Told {
        let levels = Levels::One;
        self.ask(Input::Release(Release { owner, mode: None, token: None, levels }))
    }
}

fn acquire(owner: &[u8], mode: Mode, patience: Patience) -> Acquire<'_> {
    let lease = LEASE;
    let (upgrade, limit, depth, session, max_queue) = (false, None, None, None, None);
    Acquire { owner, mode, lease, upgrade, limit, depth, session, patience, max_queue, acks: 0 }
}

fn name(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}
