//! The time of a pair on a free lock: how much it costs the server, and how many pairs fit into a
//! second.

use std::time::{Duration, Instant};

use crate::book::Book;
use crate::play::{Game, Room, Table};
use crate::rivals::{self, Rival};
use crate::sample::Sample;
use crate::stage::{self, CpuClock};
use crate::{Profile, wire};
use rlock_testkit::Server;

/// Commands under way on each connection, and the number of connections.
const SHAPES: [(usize, usize); 3] = [(1, 50), (16, 10), (50, 10)];
/// Locks of each connection. A lock is free again before its next turn comes.
const LOCKS: usize = 500;

/// The settings of the server.
struct SetUp {
    section: &'static str,
    settings: &'static [&'static str],
    has_replica: bool,
}

const SET_UPS: [SetUp; 6] = [
    SetUp { section: "pair, no persistence", settings: &[], has_replica: false },
    SetUp {
        section: "pair, append-only file every second",
        settings: &["appendonly", "yes", "appendfsync", "everysec"],
        has_replica: false,
    },
    SetUp {
        section: "pair, append-only file always",
        settings: &["appendonly", "yes", "appendfsync", "always"],
        has_replica: false,
    },
    SetUp { section: "pair, a replica", settings: &[], has_replica: true },
    SetUp {
        section: "pair, notifications KEd",
        settings: &["notify-keyspace-events", "KEd"],
        has_replica: false,
    },
    SetUp {
        section: "pair, notifications KEA",
        settings: &["notify-keyspace-events", "KEAd"],
        has_replica: false,
    },
];

/// The names of the figures: server CPU in microseconds, pairs per second.
pub fn cpu(depth: usize) -> String {
    format!("CPU µs, P{depth}")
}

/// The settings to which the goals apply.
pub const NO_PERSISTENCE: &str = SET_UPS[0].section;
pub const EVERY_SECOND: &str = SET_UPS[1].section;

/// Measures all rivals alternately, round by round, on the same server, with every set-up.
pub fn measure(book: &mut Book, profile: Profile) {
    let set_ups = if profile == Profile::Quick { &SET_UPS[..2] } else { &SET_UPS[..] };
    for set_up in set_ups {
        book.measure(set_up.section, |book| one_set_up(book, set_up, profile));
    }
}

fn one_set_up(book: &mut Book, set_up: &SetUp, profile: Profile) {
    let server = stage::server(set_up.settings);
    let _replica = set_up.has_replica.then(|| Server::replica_of(&server, &[]));
    let mut admin = server.client();
    admin.ask("CONFIG SET auto-aof-rewrite-percentage 0");
    let rivals = rivals::all(&mut admin, server.version());
    let cpu_clock = CpuClock::of(&mut admin);
    for (depth, connections) in SHAPES {
        let mut costs = vec![(Sample::default(), Sample::default()); rivals.len()];
        for _ in 0..profile.rounds() {
            for (rival, (cpu, rate)) in rivals.iter().zip(&mut costs) {
                let pairs = Pairs::of(rival, "lock", depth, connections);
                let port = server.tcp_port();
                let (cpu_us, per_s) = pairs.measure(port, &cpu_clock, profile.slice());
                cpu.add(cpu_us);
                rate.add(per_s);
                admin.ask("FLUSHALL");
            }
        }
        for (rival, (cpu_us, rate)) in rivals.iter().zip(&costs) {
            book.put(set_up.section, rival.name, &cpu(depth), cpu_us);
            book.put(set_up.section, rival.name, &format!("pairs/s, P{depth}"), rate);
        }
    }
}

/// Connections that each work on their own locks, with this many commands under way.
pub struct Pairs {
    seats: Vec<Seat>,
    depth: usize,
    commands_each: usize,
    /// The number of replies to all connections.
    heard: u64,
}

/// What one connection sends, again and again.
struct Seat {
    commands: Vec<(Vec<u8>, &'static str)>,
    said: usize,
    heard: usize,
}

impl Pairs {
    /// Pairs on locks whose names begin with `begin`.
    pub fn of(rival: &Rival, begin: &str, depth: usize, connections: usize) -> Pairs {
        let name = |seat, lock| format!("{begin}:{seat}:{lock}");
        let seats = (0..connections).map(|seat| {
            let locks = (0..LOCKS).flat_map(|lock| rival.lines_on(&name(seat, lock)));
            let commands = locks.map(|(line, reply)| (wire::line(&line), reply)).collect();
            Seat { commands, said: 0, heard: 0 }
        });
        let commands_each = rival.lines_on("").len();
        Pairs { seats: seats.collect(), depth, commands_each, heard: 0 }
    }

    /// Server CPU per pair in microseconds, and pairs per second, on the server at this port. The
    /// measurement lasts for `time`, after a warm-up of a fifth of that.
    pub fn measure(mut self, port: u16, cpu: &CpuClock, time: Duration) -> (f64, f64) {
        let mut room = Room::open(port, self.seats.len());
        self.begin(&mut room.table);
        room.play(&mut self, time / 5);
        let (began_at, begin_ns, before) = (Instant::now(), cpu.now_ns(), self.done());
        room.play(&mut self, time);
        let done = self.done() - before;
        let us = (cpu.now_ns() - begin_ns) as f64 / 1e3 / done;
        (us, done / began_at.elapsed().as_secs_f64())
    }

    fn done(&self) -> f64 {
        self.heard as f64 / self.commands_each as f64
    }

    fn begin(&mut self, table: &mut Table) {
        for number in 0..self.seats.len() {
            self.say_some(number, table);
        }
    }

    fn say_some(&mut self, number: usize, table: &mut Table) {
        let seat = &mut self.seats[number];
        for _ in 0..self.depth {
            table.say(number, &seat.commands[seat.said].0);
            seat.said = (seat.said + 1) % seat.commands.len();
        }
    }
}

impl Game for Pairs {
    fn hear(&mut self, number: usize, reply: &[u8], table: &mut Table) {
        let seat = &mut self.seats[number];
        let (command, expected) = &seat.commands[seat.heard];
        let is_right = reply.starts_with(expected.as_bytes());
        assert!(is_right, "{}: {}", command.escape_ascii(), reply.escape_ascii());
        seat.heard = (seat.heard + 1) % seat.commands.len();
        self.heard += 1;
        if seat.heard == seat.said {
            self.say_some(number, table);
        }
    }
}

impl Profile {
    /// How often each rival is measured, alternating with the others.
    fn rounds(self) -> usize {
        match self {
            Profile::Quick => 3,
            Profile::Full => 5,
        }
    }

    /// How long each measurement lasts.
    fn slice(self) -> Duration {
        match self {
            Profile::Quick => Duration::from_millis(60),
            Profile::Full => Duration::from_millis(150),
        }
    }
}
