//! Thirty clients want two of twelve locks each, and never pause: how often a client has both, and
//! how long the unluckiest one waits. RLOCK is compared with common ways to do this without it.

use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::book::Book;
use crate::play::{Game, Room, Table};
use crate::rivals::{self, LEASE_MS, todays_or_classic};
use crate::sample::Sample;
use crate::stage::{self, CpuClock};
use crate::{Profile, wire};
use rlock_testkit::Client;

pub const SECTION: &str = "several: two of 12 locks, 30 clients";
pub const GRANTS: &str = "grants of both per second";
pub const WORST: &str = "worst wait, ms";
const P50: &str = "wait p50, ms";
const P99: &str = "wait p99, ms";
const CPU: &str = "server CPU per grant, µs";
pub const TOGETHER: &str = "RLOCK.MACQUIRE BLOCK";
pub const SORTED: &str = "RLOCK.ACQUIRE BLOCK one by one, in key order";
pub const MULTI_LOCK: &str = "Redisson's MultiLock (all subscribed, scripts)";
pub const MULTI_LOCK_SORTED: &str = "the same, in key order";
pub const BACK_OFF: &str = "SET NX on both keys; if one fails, delete, pause, retry";

const CLIENTS: usize = 30;
const LOCKS: usize = 12;
/// How long `RedissonMultiLock` waits for two locks before it releases all of them and starts
/// again.
const PATIENCE: Duration = Duration::from_millis(2 * 1500);
/// How long a client pauses after it found a lock taken, in microseconds.
const PAUSE_US: std::ops::Range<u64> = 1000..10_000;

/// Measures all ways.
pub fn measure(book: &mut Book, profile: Profile) {
    one(book, profile, TOGETHER, CLIENTS, |_| Blocked::new(true));
    one(book, profile, SORTED, CLIENTS, |_| Blocked::new(false));
    one(book, profile, MULTI_LOCK, 2 * CLIENTS, |admin| Raced::new(admin, false));
    one(book, profile, MULTI_LOCK_SORTED, 2 * CLIENTS, |admin| Raced::new(admin, true));
    one(book, profile, BACK_OFF, CLIENTS, |_| Retried::new());
}

/// What the clients observed since the measurement began.
struct Tally {
    rng: Rng,
    /// When each client began to wait for its current pair of locks.
    since: Vec<Instant>,
    waited_ms: Sample,
    /// For each lock, the client that holds it. No client may enter while another one is inside.
    inside: [Option<usize>; LOCKS],
}

impl Tally {
    fn new() -> Tally {
        let (since, waited_ms) = (vec![Instant::now(); CLIENTS], Sample::default());
        Tally { rng: Rng::with_seed(29), since, waited_ms, inside: [None; LOCKS] }
    }

    /// Picks the two locks that a client wants next, in any order.
    fn want(&mut self, client: usize) -> [usize; 2] {
        self.since[client] = Instant::now();
        let first = self.rng.usize(0..LOCKS);
        [first, (first + self.rng.usize(1..LOCKS)) % LOCKS]
    }

    fn enter(&mut self, client: usize, locks: [usize; 2]) {
        self.waited_ms.add(self.since[client].elapsed().as_secs_f64() * 1e3);
        for lock in locks {
            let other = self.inside[lock].replace(client);
            assert_eq!(other, None, "{client} entered lock {lock} beside another one");
        }
    }

    fn leave(&mut self, locks: [usize; 2]) {
        locks.into_iter().for_each(|lock| self.inside[lock] = None);
    }
}

trait Contest: Game {
    /// Every client sends its first command.
    fn begin(&mut self, table: &mut Table);
    fn tally(&mut self) -> &mut Tally;
    /// Whether every client takes part by now.
    fn is_gathered(&self) -> bool {
        true
    }
}

fn one<C: Contest>(
    book: &mut Book,
    profile: Profile,
    row: &str,
    connections: usize,
    contest: impl FnOnce(&mut Client) -> C,
) {
    let server = stage::server_for(connections);
    let mut admin = server.client();
    let mut contest = contest(&mut admin);
    let mut room = Room::open(server.tcp_port(), connections);
    contest.begin(&mut room.table);
    room.play_until(&mut contest, C::is_gathered);
    room.play(&mut contest, Duration::from_millis(500));
    contest.tally().waited_ms = Sample::default();
    let cpu = CpuClock::of(&mut admin);
    let (begin, begin_ns) = (Instant::now(), cpu.now_ns());
    room.play(&mut contest, Duration::from_secs(if profile == Profile::Quick { 2 } else { 10 }));
    let (seconds, cpu_us) = (begin.elapsed().as_secs_f64(), (cpu.now_ns() - begin_ns) as f64 / 1e3);
    let tally = contest.tally();
    // Include the clients that are still waiting.
    let waiting = tally.since.iter().map(|since| since.elapsed().as_secs_f64() * 1e3);
    let longest = waiting.fold(0.0, f64::max);
    let grants = tally.waited_ms.len() as f64;
    let mut put = |column: &str, value: f64| {
        book.put_value(SECTION, row, column, (value * 100.0).round() / 100.0);
    };
    put(GRANTS, (grants / seconds).round());
    put(P50, tally.waited_ms.median());
    put(P99, tally.waited_ms.percentile(99));
    put(WORST, tally.waited_ms.max().max(longest));
    put(CPU, cpu_us / grants);
}

/// RLOCK: a client blocks for both locks in one request, or for one after the other in key order.
struct Blocked {
    tally: Tally,
    is_together: bool,
    wants: Vec<[usize; 2]>,
    /// How many replies each client has received since it began to want its current locks.
    heard: Vec<usize>,
}

impl Blocked {
    fn new(is_together: bool) -> Blocked {
        let (wants, heard) = (vec![[0; 2]; CLIENTS], vec![0; CLIENTS]);
        Blocked { tally: Tally::new(), is_together, wants, heard }
    }

    fn ask(&mut self, client: usize, table: &mut Table) {
        let mut wants = self.tally.want(client);
        wants.sort_unstable();
        (self.wants[client], self.heard[client]) = (wants, 0);
        let ([one, other], owner) = (wants, rivals::owner(client));
        let line = if self.is_together {
            format!("RLOCK.MACQUIRE 2 {} {} {owner} BLOCK 0", name(one), name(other))
        } else {
            format!("RLOCK.ACQUIRE {} {owner} BLOCK 0", name(one))
        };
        table.say(client, &wire::line(&line));
    }
}

fn name(lock: usize) -> String {
    format!("lock:{lock:02}")
}

impl Contest for Blocked {
    fn begin(&mut self, table: &mut Table) {
        (0..CLIENTS).for_each(|client| self.ask(client, table));
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

impl Game for Blocked {
    fn hear(&mut self, client: usize, reply: &[u8], table: &mut Table) {
        assert_eq!(reply[0], b':', "{}", reply.escape_ascii());
        self.heard[client] += 1;
        let (locks, owner) = (self.wants[client], rivals::owner(client));
        let [one, other] = locks.map(name);
        match (self.is_together, self.heard[client]) {
            (true, 1) | (false, 2) => {
                self.tally.enter(client, locks);
                self.tally.leave(locks);
                let line = match self.is_together {
                    true => wire::line(&format!("RLOCK.MRELEASE 2 {one} {other} {owner}")),
                    false => [one, other]
                        .map(|lock| wire::line(&format!("RLOCK.RELEASE {lock} {owner}")))
                        .concat(),
                };
                table.say(client, &line);
            }
            (false, 1) => {
                table.say(client, &wire::line(&format!("RLOCK.ACQUIRE {other} {owner} BLOCK 0")));
            }
            (true, 2) | (false, 4) => self.ask(client, table),
            _ => {}
        }
    }
}

/// Redisson's way: a client acquires one lock after the other, in the order of the request. If a
/// lock is taken, the client waits for the message of its release. If that takes too long, the
/// client releases the locks it has, and starts again.
struct Raced {
    tally: Tally,
    is_sorted: bool,
    racers: Vec<Racer>,
    subscribed: usize,
    acquire: String,
    release: String,
}

#[derive(Clone, Default)]
struct Racer {
    wants: [usize; 2],
    /// How many of the wanted locks the client has.
    has: usize,
    /// Replies to releases that are still to come.
    releasing: usize,
    /// Whether the client waits for the message of a release.
    waits: bool,
    /// Whether that message came while the client was asking.
    heard: bool,
    ends: Option<Instant>,
}

impl Raced {
    fn new(admin: &mut Client, is_sorted: bool) -> Raced {
        let mut script = |text| rivals::load(admin, &todays_or_classic(text, false));
        let acquire = script(include_str!("../redisson/reentrant_acquire.lua"));
        let release = script(include_str!("../redisson/reentrant_release.lua"));
        let racers = vec![Racer::default(); CLIENTS];
        Raced { tally: Tally::new(), is_sorted, racers, subscribed: 0, acquire, release }
    }

    fn start(&mut self, client: usize, table: &mut Table) {
        let mut wants = self.tally.want(client);
        if self.is_sorted {
            wants.sort_unstable();
        }
        let ends = Some(Instant::now() + PATIENCE);
        self.racers[client] = Racer { wants, ends, ..Racer::default() };
        self.ask(client, table);
    }

    /// Asks for the next lock.
    fn ask(&mut self, client: usize, table: &mut Table) {
        let racer = &mut self.racers[client];
        (racer.waits, racer.heard) = (false, false);
        let (lock, owner) = (name(racer.wants[racer.has]), rivals::owner(client));
        let line = format!("EVALSHA {} 1 {lock} {LEASE_MS} {owner}", self.acquire);
        table.say(2 * client, &wire::line(&line));
    }

    /// Releases the locks that the client has.
    fn release(&mut self, client: usize, table: &mut Table) {
        let (racer, owner) = (&mut self.racers[client], rivals::owner(client));
        (racer.releasing, racer.waits) = (racer.has, false);
        for lock in &racer.wants[..racer.has] {
            let (name, channel) = (name(*lock), channel(*lock));
            let line = format!(
                "EVALSHA {} 3 {name} {channel} latch {owner} {LEASE_MS} 20000",
                self.release
            );
            table.say(2 * client, &wire::line(&line));
        }
    }
}

fn channel(lock: usize) -> String {
    format!("released:{lock:02}")
}

impl Contest for Raced {
    fn begin(&mut self, table: &mut Table) {
        let channels: Vec<String> = (0..LOCKS).map(channel).collect();
        for client in 0..CLIENTS {
            let line = format!("SUBSCRIBE {}", channels.join(" "));
            table.say(2 * client + 1, &wire::line(&line));
        }
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn is_gathered(&self) -> bool {
        self.subscribed == CLIENTS * LOCKS
    }
}

impl Game for Raced {
    const TICK: Option<Duration> = Some(Duration::from_millis(1));

    /// A client that has waited too long starts again with the same locks.
    fn tick(&mut self, table: &mut Table) {
        for client in 0..CLIENTS {
            let racer = &mut self.racers[client];
            if racer.waits && racer.ends.is_some_and(|ends| ends <= Instant::now()) {
                racer.ends = Some(Instant::now() + PATIENCE);
                if racer.has == 0 {
                    self.ask(client, table);
                } else {
                    self.release(client, table);
                    self.racers[client].has = 0;
                }
            }
        }
    }

    fn hear(&mut self, seat: usize, reply: &[u8], table: &mut Table) {
        let (client, is_message) = (seat / 2, seat % 2 == 1);
        assert_ne!(reply[0], b'-', "{}", reply.escape_ascii());
        if is_message {
            if reply.starts_with(b"*3\r\n$9\r\nsubscribe") {
                self.subscribed += 1;
                if self.subscribed.is_multiple_of(LOCKS) {
                    self.start(client, table);
                }
                return;
            }
            let racer = &mut self.racers[client];
            let wanted = channel(racer.wants[racer.has.min(1)]);
            let is_its_own = reply.windows(wanted.len()).any(|part| part == wanted.as_bytes());
            if is_its_own && racer.waits {
                self.ask(client, table);
            } else {
                racer.heard |= is_its_own;
            }
            return;
        }
        let racer = &mut self.racers[client];
        if racer.releasing > 0 {
            racer.releasing -= 1;
            if racer.releasing > 0 {
                return;
            }
            // The client had both locks, or starts again with the same ones.
            if racer.has == 0 { self.ask(client, table) } else { self.start(client, table) }
        } else if reply != b"$-1\r\n" {
            racer.waits = true;
            if racer.heard {
                self.ask(client, table);
            }
        } else if racer.has == 0 {
            racer.has = 1;
            self.ask(client, table);
        } else {
            racer.has = 2;
            let locks = racer.wants;
            self.tally.enter(client, locks);
            self.tally.leave(locks);
            self.release(client, table);
        }
    }
}

/// A client sends `SET NX` for both locks in one write. If it does not get both, it deletes the one
/// it got, and tries again after a pause of 1 to 10 ms.
struct Retried {
    tally: Tally,
    wants: Vec<[usize; 2]>,
    got: Vec<[Option<bool>; 2]>,
    /// For each client, the moment until which it pauses.
    pauses: Vec<Option<Instant>>,
    is_leaving: Vec<bool>,
}

impl Retried {
    fn new() -> Retried {
        Retried {
            tally: Tally::new(),
            wants: vec![[0; 2]; CLIENTS],
            got: vec![[None; 2]; CLIENTS],
            pauses: vec![None; CLIENTS],
            is_leaving: vec![false; CLIENTS],
        }
    }

    fn start(&mut self, client: usize, table: &mut Table) {
        self.wants[client] = self.tally.want(client);
        self.ask(client, table);
    }

    fn ask(&mut self, client: usize, table: &mut Table) {
        self.got[client] = [None; 2];
        let set = |lock| wire::line(&format!("SET {} {client} NX PX {LEASE_MS}", name(lock)));
        table.say(client, &self.wants[client].map(set).concat());
    }

    fn pause(&mut self, client: usize) {
        let us = self.tally.rng.u64(PAUSE_US);
        self.pauses[client] = Some(Instant::now() + Duration::from_micros(us));
    }
}

impl Contest for Retried {
    fn begin(&mut self, table: &mut Table) {
        (0..CLIENTS).for_each(|client| self.start(client, table));
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

impl Game for Retried {
    const TICK: Option<Duration> = Some(Duration::from_millis(1));

    fn tick(&mut self, table: &mut Table) {
        let now = Instant::now();
        for client in 0..CLIENTS {
            if self.pauses[client].take_if(|until| *until <= now).is_some() {
                self.ask(client, table);
            }
        }
    }

    fn hear(&mut self, client: usize, reply: &[u8], table: &mut Table) {
        assert_ne!(reply[0], b'-', "{}", reply.escape_ascii());
        let locks = self.wants[client];
        if reply[0] == b':' {
            // This reply is to the `DEL` of a client that had both locks, or that pauses now.
            if std::mem::take(&mut self.is_leaving[client]) {
                return self.start(client, table);
            }
            return self.pause(client);
        }
        let next = self.got[client].iter().position(Option::is_none).unwrap();
        self.got[client][next] = Some(reply[0] == b'+');
        let held = |is_got: bool, lock: usize| is_got.then(|| name(lock));
        match self.got[client] {
            [Some(true), Some(true)] => {
                self.tally.enter(client, locks);
                self.tally.leave(locks);
                self.is_leaving[client] = true;
                let [one, other] = locks.map(name);
                table.say(client, &wire::line(&format!("DEL {one} {other}")));
            }
            [Some(one), Some(other)] => match held(one, locks[0]).or(held(other, locks[1])) {
                Some(lock) => table.say(client, &wire::line(&format!("DEL {lock}"))),
                None => self.pause(client),
            },
            _ => {}
        }
    }
}
