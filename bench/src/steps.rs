//! The steps of the core for one operation, beside one other and beside ten thousand: its
//! instructions, counted by callgrind, without a server.

use std::process::Command;

use rlock_core::{
    Acquire, Effects, Input, LeaseMs, Levels, Lock, Memory, Mode, Moment, Now, Patience, Release,
    Renew, Tokens, WaiterId,
};

/// From one to ten thousand a B-tree grows from one level to four. A scan would make it thousands.
const AT_MOST: f64 = 4.0;
const MANY: u64 = 10_000;
const ROUNDS: u64 = 1000;
/// In milliseconds: longer than anything here takes, and shorter.
const LEASE_MS: u64 = 600_000;
const A_MOMENT: u64 = 1;
/// Where callgrind counts.
const COUNTED: &str = "*steps*counted_rounds*";

/// How the others got there, and what is counted.
type Operation = (&'static str, fn(u64) -> Town, fn(&mut Town, u64));

const OPERATIONS: [Operation; 7] = [
    ("hand-off and queueing again, waiters", Town::blocked, |town, round| {
        let owner = name(round % (town.others + 1));
        town.release(&owner);
        town.park(&owner);
    }),
    ("a ticket asks again in the midst, tickets", Town::tickets, |town, _| {
        let owner = name(town.others / 2 + 1);
        town.acquire(&owner, Mode::Write, Patience::Ticket(lease(LEASE_MS)));
    }),
    ("a newcomer is refused, waiters", Town::blocked, |town, _| {
        town.acquire(b"newcomer", Mode::Read, Patience::None);
    }),
    ("one parks and leaves, waiters", Town::blocked, |town, _| {
        let waiter = town.park(b"leaver");
        assert!(town.memory.leave(waiter));
    }),
    ("READ and its release, readers", Town::readers, |town, _| {
        town.acquire(b"newcomer", Mode::Read, Patience::None);
        town.release(b"newcomer");
    }),
    ("RENEW of one, readers", Town::readers, |town, round| {
        let owner = name(round * 7 % town.others);
        let lease = lease(LEASE_MS);
        town.ask(Input::Renew(Renew { owner: &owner, mode: None, token: None, lease }));
    }),
    ("a lease ends, readers", Town::readers, |town, _| {
        town.acquire_for(A_MOMENT, b"newcomer", Mode::Read, Patience::None);
        town.now_ms += A_MOMENT;
        town.ask(Input::Tick);
    }),
];

/// Asks callgrind for each operation; whether none grows.
pub fn gate() -> bool {
    let mut is_passed = true;
    println!("{:<46} {:>9} {:>9}", "instructions of the core, beside", 1, MANY);
    for (number, (name, ..)) in OPERATIONS.iter().enumerate() {
        let [one, many] = [1, MANY].map(|others| count(number, others));
        let is_flat = many <= one * AT_MOST;
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
    total / ROUNDS as f64
}

/// Does what is to be counted, by the operation's number.
pub fn run(operation: &str, others: &str) {
    let (_, prepare, round) = OPERATIONS[operation.parse::<usize>().unwrap()];
    let mut town = prepare(others.parse().unwrap());
    counted_rounds(&mut town, round);
}

#[inline(never)]
fn counted_rounds(town: &mut Town, round: fn(&mut Town, u64)) {
    (0..ROUNDS).for_each(|number| round(town, number));
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
            town.acquire(&name(number), Mode::Write, Patience::Ticket(lease(LEASE_MS)));
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

    /// Each who is let in has heard of it at once.
    fn ask(&mut self, input: Input<'_>) {
        let now = Now::from_ms(self.now_ms);
        let (max_depth, tickets_left) = (u16::MAX, usize::MAX);
        let mut moment = Moment { now, tokens: &mut self.tokens, max_depth, tickets_left };
        let mut effects = Effects::default();
        self.lock.apply(&mut self.memory, &mut moment, input, &mut effects);
        for wake in &effects.wakes {
            self.memory.answered(wake.waiter);
        }
    }

    fn acquire(&mut self, owner: &[u8], mode: Mode, patience: Patience) {
        self.acquire_for(LEASE_MS, owner, mode, patience);
    }

    fn acquire_for(&mut self, lease_ms: u64, owner: &[u8], mode: Mode, patience: Patience) {
        self.ask(Input::Acquire(acquire(lease_ms, owner, mode, patience)));
    }

    fn park(&mut self, owner: &[u8]) -> WaiterId {
        self.last_waiter += 1;
        let waiter = WaiterId::from(self.last_waiter);
        let ask = acquire(LEASE_MS, owner, Mode::Write, Patience::Block);
        self.ask(Input::Park(ask, waiter, None));
        waiter
    }

    fn release(&mut self, owner: &[u8]) {
        let levels = Levels::One;
        self.ask(Input::Release(Release { owner, mode: None, token: None, levels }));
    }
}

fn acquire(lease_ms: u64, owner: &[u8], mode: Mode, patience: Patience) -> Acquire<'_> {
    let lease = lease(lease_ms);
    Acquire { owner, mode, lease, upgrade: false, depth: None, session: None, patience }
}

fn lease(ms: u64) -> LeaseMs {
    LeaseMs::new(ms).unwrap()
}

fn name(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}
