//! The steps of the core for one operation, beside one other and beside ten thousand: its
//! instructions, counted by callgrind, without a server.

use std::hint::black_box;
use std::process::Command;

use rlock_core::{
    Acquire, Effects, Input, LeaseMs, Levels, Lock, Memory, Mode, Moment, Now, Parking, Patience,
    Release, Renew, Tokens, WaiterId,
};

const MANY: u64 = 10_000;
const ROUNDS: u64 = 1000;
/// Longer than anything here takes.
const LEASE: LeaseMs = LeaseMs::MAX;
const TICKET: Patience = Patience::Ticket(LEASE);
const A_MOMENT: LeaseMs = match LeaseMs::new(1) {
    Some(lease) => lease,
    None => LEASE,
};
/// Where callgrind counts.
const COUNTED: &str = "*steps*counted_rounds*";

/// Its name; how the others got there; what is counted; what comes of it each time.
type Operation = (&'static str, fn(u64) -> Town, fn(&mut Town, u64) -> Told, Told);

/// Changes of the lock, and parked connections that were answered.
type Told = [usize; 2];

const OPERATIONS: [Operation; 7] = [
    (
        "hand-off and queueing again, waiters",
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
        "a ticket asks again in the midst, tickets",
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
        "one parks and leaves, waiters",
        Town::blocked,
        |town, _| {
            let waiter = town.park(b"leaver");
            assert!(town.memory.leave(waiter));
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
            town.ask(Input::Renew(Renew { owner: &owner, mode: None, token: None, lease: LEASE }))
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
];

/// Asks callgrind for each operation; whether none grows.
pub fn gate() -> bool {
    let mut is_passed = true;
    println!("{:<46} {:>9} {:>9}", "instructions of the core, beside", 1, MANY);
    for (number, (name, ..)) in OPERATIONS.iter().enumerate() {
        let [one, many] = [1, MANY].map(|others| count(number, others));
        // The trees have four levels instead of one. A look at each takes more than this.
        let is_flat = many < one + MANY as f64;
        is_passed &= is_flat;
        println!("  {name:<44} {one:>9.0} {many:>9.0} {}", if is_flat { "" } else { "RED" });
    }
    is_passed
}

/// What this very program takes for the operation, under callgrind, a round.
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

/// Does what is to be counted, by the operation's number.
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

/// One lock, and so many others at it.
struct Town {
    lock: Lock,
    memory: Memory,
    tokens: Tokens,
    now_ms: u64,
    last_waiter: u64,
    others: u64,
}

impl Town {
    fn new(others: u64) -> Town {
        let (lock, memory, tokens) = (Lock::default(), Memory::default(), Tokens::default());
        Town { lock, memory, tokens, now_ms: 1_700_000_000_000, last_waiter: 0, others }
    }

    /// All but the first wait, parked.
    fn blocked(others: u64) -> Town {
        let mut town = Town::new(others);
        town.acquire(&name(0), Mode::Write, Patience::None);
        for number in 1..=others {
            town.park(&name(number));
        }
        town
    }

    /// All but the first wait with a ticket.
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

    /// As the module does it, but that who is let in hears of it at once.
    fn ask(&mut self, input: Input<'_>) -> Told {
        let (now, max_depth, tickets_left) = (self.now(), u16::MAX, usize::MAX);
        let (tokens, sessions_max, portion) = (&mut self.tokens, usize::MAX, Moment::PORTION);
        let mut moment = Moment { now, tokens, max_depth, tickets_left, sessions_max, portion };
        let mut effects = Effects::default();
        self.lock.apply(&mut self.memory, &mut moment, input, &mut effects);
        black_box(self.lock.next_alarm(&self.memory));
        for wake in &effects.wakes {
            self.memory.answered(wake.waiter);
        }
        [effects.changes.len(), effects.wakes.len()]
    }

    fn acquire(&mut self, owner: &[u8], mode: Mode, patience: Patience) -> Told {
        self.ask(Input::Acquire(acquire(owner, mode, patience)))
    }

    fn park(&mut self, owner: &[u8]) -> WaiterId {
        self.last_waiter += 1;
        let waiter = WaiterId::from(self.last_waiter);
        let ask = acquire(owner, Mode::Write, Patience::Block);
        let ends_at = Some(self.now().after(LEASE));
        self.ask(Input::Park(ask, Parking { waiter, client: None, ends_at }));
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
    Acquire { owner, mode, lease, upgrade, limit, depth, session, patience, max_queue }
}

fn name(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}
