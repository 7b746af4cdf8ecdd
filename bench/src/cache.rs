//! How much locks cost a server that also serves a cache. `GET` and `SET` arrive at a fixed rate,
//! together with a thousand pairs of acquire and release per second. The time of a reply counts
//! from the moment at which its command was due, even if the command was sent late.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::Profile;
use crate::book::Book;
use crate::play::{Game, Room, Table};
use crate::rivals::{self, LEASE_MS, Rival};
use crate::sample::Sample;
use crate::stage::{self, CpuClock};
use crate::wire;
use rlock_testkit::Client;

const SECTION: &str = "cache: 20 000 GET and SET a second, and 1000 locks a second";
const REQUESTS_PER_S: u32 = 20_000;
const PAIRS_PER_S: u32 = 1000;
/// Of a hundred requests, this many are GET.
const GETS: usize = 90;
const KEYS: usize = 100_000;
const VALUE_LEN: usize = 100;
/// Connections that use the cache, and connections that use locks.
const VISITORS: usize = 50;
const OWNERS: usize = 50;
/// How many owners want the lock that is handed over.
const CONTENDERS: usize = 11;
const HANDED_OVER: &str = "RLOCK, one lock, ten wait with TELL";
const NO_LOCKS: &str = "no locks";

/// Measures all kinds of locks in turn, several times.
pub fn measure(book: &mut Book, profile: Profile) {
    let (rounds, time) = match profile {
        Profile::Quick => (1, Duration::from_secs(1)),
        Profile::Full => (5, Duration::from_secs(3)),
    };
    let server = stage::server(&["notify-keyspace-events", "KEd"]);
    let mut admin = server.client();
    fill(&mut admin);
    let pairs = rivals::all(&mut admin, server.version());
    let is_one = |rival: &Rival| {
        [rivals::SET_DEL, rivals::SET_SCRIPT, rivals::REDISSON_NOW].contains(&rival.name)
    };
    let mut kinds = vec![Kind::None];
    kinds.extend(pairs.into_iter().filter(is_one).map(Kind::Free));
    kinds.push(Kind::Free(rivals::clients_pair()));
    kinds.push(Kind::HandedOver);
    let cpu = CpuClock::of(&mut admin);
    let mut costs = vec![[(); 4].map(|()| Sample::default()); kinds.len()];
    for round in 0..rounds {
        for (kind, cost) in kinds.iter().zip(&mut costs) {
            let measured = one(server.tcp_port(), kind, round, &cpu, time);
            cost.iter_mut().zip(measured).for_each(|(sample, value)| sample.add(value));
        }
    }
    for (kind, cost) in kinds.iter().zip(&costs) {
        for (column, sample) in COLUMNS.into_iter().zip(cost) {
            book.put(SECTION, kind.name(), column, sample);
        }
    }
    stage::say_kept_off(&mut admin);
}

const COLUMNS: [&str; 4] =
    ["GET or SET p50, µs", "p99, µs", "server CPU, % of a core", "locks per second"];

/// The values of the columns, measured for this long.
fn one(port: u16, kind: &Kind, round: usize, cpu: &CpuClock, time: Duration) -> [f64; 4] {
    let mut room = Room::open(port, VISITORS + OWNERS);
    room.greet_in_resp3(|seat| (seat >= VISITORS).then(|| channel(seat)));
    let mut served = Served { cache: Cache::new(), locks: kind.locks(round) };
    served.locks.begin(&mut room.table);
    room.play(&mut served, time / 8);
    served.cache.taken_us = Sample::default();
    let (began, began_ns, before) = (Instant::now(), cpu.now_ns(), served.locks.done());
    room.play(&mut served, time);
    let (seconds, cpu_ns) = (began.elapsed().as_secs_f64(), cpu.now_ns() - began_ns);
    let locks = (served.locks.done() - before) as f64;
    served.locks.end();
    room.play_until(&mut served, |served| served.locks.is_over());
    let taken_us = &served.cache.taken_us;
    let percent = cpu_ns as f64 / 1e7 / seconds;
    [taken_us.median(), taken_us.percentile(99), percent, locks / seconds]
}

fn fill(admin: &mut Client) {
    let value = "x".repeat(VALUE_LEN);
    for key in 0..KEYS {
        admin.ask(&format!("SET cache:{key} {value}"));
    }
}

fn channel(seat: usize) -> String {
    format!("to:{seat}")
}

/// Moments at equal intervals.
struct Clock {
    next: Instant,
    gap: Duration,
}

impl Clock {
    fn of(per_s: u32) -> Clock {
        Clock { next: Instant::now(), gap: Duration::from_secs(1) / per_s }
    }

    /// The next moment, if it has passed.
    fn due(&mut self) -> Option<Instant> {
        let due = self.next;
        (due <= Instant::now()).then(|| {
            self.next = due + self.gap;
            due
        })
    }
}

/// The requests to the cache.
struct Cache {
    clock: Clock,
    rng: Rng,
    /// For each connection, when its unanswered requests were due.
    due: Vec<VecDeque<Instant>>,
    asked: usize,
    taken_us: Sample,
}

impl Cache {
    fn new() -> Cache {
        let due = vec![VecDeque::new(); VISITORS];
        let clock = Clock::of(REQUESTS_PER_S);
        Cache { clock, rng: Rng::with_seed(11), due, asked: 0, taken_us: Sample::default() }
    }

    fn ask(&mut self, table: &mut Table) {
        while let Some(due) = self.clock.due() {
            let seat = self.asked % VISITORS;
            let key = self.rng.usize(..KEYS);
            let line = match self.rng.usize(..100) < GETS {
                true => format!("GET cache:{key}"),
                false => format!("SET cache:{key} {}", "y".repeat(VALUE_LEN)),
            };
            table.say(seat, &wire::line(&line));
            self.due[seat].push_back(due);
            self.asked += 1;
        }
    }

    fn hear(&mut self, seat: usize) {
        let due = self.due[seat].pop_front().expect("a reply without a request");
        self.taken_us.add(stage::us_since(due));
    }
}

/// The kind of lock that is used while the cache is served.
enum Kind {
    None,
    /// Locks that nobody waits for.
    Free(Rival),
    /// One lock that others wait for.
    HandedOver,
}

impl Kind {
    fn name(&self) -> &str {
        match self {
            Kind::None => NO_LOCKS,
            Kind::Free(rival) => rival.name,
            Kind::HandedOver => HANDED_OVER,
        }
    }

    fn locks(&self, round: usize) -> Box<dyn Locks> {
        match self {
            Kind::None => Box::new(Nobody),
            Kind::Free(rival) => Box::new(Free::of(rival)),
            Kind::HandedOver => Box::new(HandedOver::of(&format!("handed:{round}"))),
        }
    }
}

trait Locks {
    /// Called before the first lock is due.
    fn begin(&mut self, _: &mut Table) {}
    fn tick(&mut self, table: &mut Table);
    fn hear(&mut self, owner: usize, reply: &[u8], table: &mut Table);
    /// How many locks were acquired and released.
    fn done(&self) -> usize;
    /// Stops acquiring locks.
    fn end(&mut self);
    fn is_over(&self) -> bool;
}

struct Served {
    cache: Cache,
    locks: Box<dyn Locks>,
}

impl Game for Served {
    const TICK: Option<Duration> = Some(Duration::ZERO);

    fn tick(&mut self, table: &mut Table) {
        self.cache.ask(table);
        self.locks.tick(table);
    }

    fn hear(&mut self, seat: usize, reply: &[u8], table: &mut Table) {
        match seat.checked_sub(VISITORS) {
            None => self.cache.hear(seat),
            Some(owner) => self.locks.hear(owner, reply, table),
        }
    }
}

struct Nobody;

impl Locks for Nobody {
    fn tick(&mut self, _: &mut Table) {}

    fn hear(&mut self, _: usize, reply: &[u8], _: &mut Table) {
        panic!("nobody asked: {}", reply.escape_ascii());
    }

    fn done(&self) -> usize {
        0
    }

    fn end(&mut self) {}

    fn is_over(&self) -> bool {
        true
    }
}

/// Each owner has its own lock. An idle owner takes the next acquisition that is due.
struct Free {
    /// `None` once no more locks are to be acquired.
    clock: Option<Clock>,
    commands: Vec<Vec<(String, &'static str)>>,
    idle: Vec<usize>,
    /// How many commands of the current pair each owner has sent.
    said: Vec<usize>,
    done: usize,
}

impl Free {
    fn of(rival: &Rival) -> Free {
        let commands = (0..OWNERS).map(|owner| rival.lines_on(&format!("lock:{owner}"))).collect();
        let (idle, said) = ((0..OWNERS).collect(), vec![0; OWNERS]);
        Free { clock: Some(Clock::of(PAIRS_PER_S)), commands, idle, said, done: 0 }
    }

    fn say(&mut self, owner: usize, token: &str, table: &mut Table) {
        let (line, _) = &self.commands[owner][self.said[owner]];
        table.say(VISITORS + owner, &wire::line(&line.replace(rivals::TOKEN, token)));
        self.said[owner] += 1;
    }
}

impl Locks for Free {
    fn tick(&mut self, table: &mut Table) {
        let Some(clock) = &mut self.clock else { return };
        if !self.idle.is_empty() && clock.due().is_some() {
            let owner = self.idle.remove(0);
            self.said[owner] = 0;
            self.say(owner, "", table);
        }
    }

    fn hear(&mut self, owner: usize, reply: &[u8], table: &mut Table) {
        let reply = str::from_utf8(reply).unwrap().trim_end();
        let (line, begin) = &self.commands[owner][self.said[owner] - 1];
        // RESP3 has its own representation of nil.
        let is_it = reply.starts_with(begin) || (*begin == "$-1" && reply == "_");
        assert!(is_it, "{line}: {reply}");
        if self.said[owner] < self.commands[owner].len() {
            self.say(owner, reply.trim_start_matches(':'), table);
        } else {
            self.done += 1;
            self.idle.push(owner);
        }
    }

    fn done(&self) -> usize {
        self.done
    }

    fn end(&mut self) {
        self.clock = None;
    }

    fn is_over(&self) -> bool {
        self.idle.len() == OWNERS
    }
}

/// When a release is due, the holder releases the lock and asks for it again in the same write.
struct HandedOver {
    clock: Option<Clock>,
    key: String,
    holder: Option<usize>,
    done: usize,
    /// How many owners wait for the lock or hold it.
    inside: usize,
}

impl HandedOver {
    fn of(key: &str) -> HandedOver {
        let (clock, key) = (Some(Clock::of(PAIRS_PER_S)), key.to_owned());
        HandedOver { clock, key, holder: None, done: 0, inside: 0 }
    }

    fn ask(&mut self, owner: usize, table: &mut Table) {
        let (key, name, channel) = (&self.key, rivals::owner(owner), channel(VISITORS + owner));
        let ask = format!("RLOCK.ACQUIRE {key} {name} WRITE LEASE {LEASE_MS} DEPTH 1");
        let line = format!("{ask} BLOCK {LEASE_MS} TELL {channel} 7");
        table.say(VISITORS + owner, &wire::line(&line));
        self.inside += 1;
    }

    fn release(&mut self, owner: usize, table: &mut Table) {
        let line = format!("RLOCK.RELEASE {} {} WRITE", self.key, rivals::owner(owner));
        table.say(VISITORS + owner, &wire::line(&line));
        self.inside -= 1;
        self.done += 1;
    }
}

impl Locks for HandedOver {
    fn begin(&mut self, table: &mut Table) {
        (0..CONTENDERS).for_each(|owner| self.ask(owner, table));
    }

    fn tick(&mut self, table: &mut Table) {
        let Some(owner) = self.holder else { return };
        if self.clock.is_none() {
            self.release(owner, table);
        } else if self.clock.as_mut().is_some_and(|clock| clock.due().is_some()) {
            self.release(owner, table);
            self.ask(owner, table);
        } else {
            return;
        }
        self.holder = None;
    }

    fn hear(&mut self, owner: usize, reply: &[u8], _: &mut Table) {
        let is_message = reply[0] == b'>';
        assert!(
            !is_message || wire::message(reply).starts_with(b"7 token "),
            "{}",
            reply.escape_ascii()
        );
        if is_message || (reply[0] == b':' && reply != b":0\r\n") {
            assert_eq!(self.holder.replace(owner), None, "two hold the lock");
        } else {
            assert!([&b":0\r\n"[..], b"+WAITING\r\n"].contains(&reply), "{}", reply.escape_ascii());
        }
    }

    fn done(&self) -> usize {
        self.done
    }

    fn end(&mut self) {
        self.clock = None;
    }

    fn is_over(&self) -> bool {
        self.inside == 0
    }
}
