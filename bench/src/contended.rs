//! Many clients want one lock and never pause: how often it changes hands, how long that takes, how
//! much it costs the server, and whether every client gets a share.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::book::{Book, column};
use crate::play::{Game, Room, Table};
use crate::rivals::{self, LEASE_MS, todays_or_classic};
use crate::sample::Sample;
use crate::stage::{self, CpuClock, may_open};
use crate::{Profile, wire};
use rlock_testkit::Client;

/// A column for each number of clients.
pub const GRANTS: &str = "contended: grants per second, one lock, so many clients";
pub const P50: &str = "contended: release to the next grant, p50 µs";
pub const P99: &str = "contended: release to the next grant, p99 µs";
const CPU: &str = "contended: server CPU per grant, µs";
/// Measured during the same time as the grants.
pub const SHARE: &str = "contended: ratio of most to least served client";
pub const DIFFERENCE: &str = "contended: grants of the best served client, more than the worst";
pub const RLOCK: &str = "RLOCK, deadlock detection off";
pub const RLOCK_SEARCHING: &str = "RLOCK, deadlock detection on";
pub const REDISSON: &str = "Redisson's way (all subscribed, scripts)";

const CLIENTS: [usize; 5] = [1, 10, 100, 1000, 10_000];

/// Measures each row for every number of clients.
pub fn measure(book: &mut Book, profile: Profile) {
    let at_most = |most: usize| CLIENTS.into_iter().filter(move |clients| *clients <= most);
    let is_quick = profile == Profile::Quick;
    for clients in at_most(if is_quick { 1000 } else { 10_000 }) {
        one(book, profile, RLOCK, clients, clients, |admin| {
            admin.ask("CONFIG SET rlock.deadlock-detection no");
            Handed::new(clients)
        });
    }
    for clients in at_most(1000) {
        one(book, profile, RLOCK_SEARCHING, clients, clients, |_| Handed::new(clients));
    }
    for clients in at_most(if is_quick { 100 } else { 1000 }) {
        one(book, profile, REDISSON, clients, 2 * clients, |admin| Raced::new(clients, admin));
    }
}

/// What the clients observed since `begin`.
#[derive(Default)]
struct Tally {
    grants: Vec<u64>,
    released: Option<Instant>,
    taken_us: Sample,
}

impl Tally {
    fn of(clients: usize) -> Tally {
        Tally { grants: vec![0; clients], ..Tally::default() }
    }

    fn grant(&mut self, client: usize) {
        self.grants[client] += 1;
        if let Some(released) = self.released.take() {
            self.taken_us.add(stage::us_since(released));
        }
    }

    fn sum(&self) -> u64 {
        self.grants.iter().sum()
    }
}

trait Contest: Game {
    /// Every client sends its first command.
    fn begin(&mut self, table: &mut Table);
    fn tally(&mut self) -> &mut Tally;
    /// Whether every client takes part by now.
    fn is_gathered(&self) -> bool;
}

fn one<C: Contest>(
    book: &mut Book,
    profile: Profile,
    row: &str,
    clients: usize,
    connections: usize,
    contest: impl FnOnce(&mut Client) -> C,
) {
    let column = column(clients);
    if !may_open(connections) {
        return book.miss(format!("{row}, {column} clients: `ulimit -n` is too low"));
    }
    let server = stage::server_for(connections);
    let mut admin = server.client();
    let mut contest = contest(&mut admin);
    let mut room = Room::open(server.tcp_port(), connections);
    contest.begin(&mut room.table);
    room.play_until(&mut contest, C::is_gathered);
    let warm_up = if profile == Profile::Quick { 100 } else { 500 };
    room.play(&mut contest, Duration::from_millis(warm_up));
    *contest.tally() = Tally::of(clients);
    let cpu = CpuClock::of(&mut admin);
    let (begin, begin_ns) = (Instant::now(), cpu.now_ns());
    room.play(&mut contest, Duration::from_secs(if profile == Profile::Quick { 1 } else { 4 }));
    let (seconds, cpu_us) = (begin.elapsed().as_secs_f64(), (cpu.now_ns() - begin_ns) as f64 / 1e3);
    let tally = contest.tally();
    let grants = tally.sum() as f64;
    book.put_value(GRANTS, row, &column, grants / seconds);
    book.put_value(CPU, row, &column, cpu_us / grants);
    if tally.taken_us.len() > 0 {
        book.put_value(P50, row, &column, tally.taken_us.median());
        book.put_value(P99, row, &column, tally.taken_us.percentile(99));
    }
    let (least, most) = (tally.grants.iter().min().unwrap(), tally.grants.iter().max().unwrap());
    book.put_value(DIFFERENCE, row, &column, (most - least) as f64);
    // If there were fewer grants than clients, their shares say nothing.
    if grants >= clients as f64 {
        book.put_value(SHARE, row, &column, *most as f64 / (*least).max(1) as f64);
    }
    let unserved = tally.grants.iter().filter(|grants| **grants == 0).count();
    println!("  {row}, {clients}: {unserved} got nothing in {seconds:.1} s");
}

/// RLOCK with one connection per client. The holder releases, gets the reply, and queues again.
struct Handed {
    tally: Tally,
    holders: HashSet<usize>,
    messages: Vec<[Vec<u8>; 2]>,
}

impl Handed {
    fn new(clients: usize) -> Handed {
        let messages = (0..clients).map(|client| {
            let owner = rivals::owner(client);
            [format!("RLOCK.ACQUIRE hot {owner} BLOCK 0"), format!("RLOCK.RELEASE hot {owner}")]
                .map(|line| wire::line(&line))
        });
        Handed { tally: Tally::of(clients), holders: HashSet::new(), messages: messages.collect() }
    }
}

impl Contest for Handed {
    fn begin(&mut self, table: &mut Table) {
        for (client, [acquire, _]) in self.messages.iter().enumerate() {
            table.say(client, acquire);
        }
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn is_gathered(&self) -> bool {
        self.tally.sum() >= self.messages.len() as u64
    }
}

impl Game for Handed {
    fn hear(&mut self, client: usize, reply: &[u8], table: &mut Table) {
        assert_eq!(reply[0], b':', "{}", reply.escape_ascii());
        let [acquire, release] = &self.messages[client];
        if self.holders.remove(&client) {
            assert_eq!(reply, b":0\r\n");
            return table.say(client, acquire);
        }
        // The previous holder sent its release before the server sent this grant, so `released` is
        // the moment of that release.
        self.holders.insert(client);
        self.tally.grant(client);
        table.say(client, release);
        self.tally.released = Some(Instant::now());
    }
}

/// Redisson's way: each client has one connection for commands and one for messages. A refused
/// client waits for the message that a release sends to all clients, and then retries.
struct Raced {
    tally: Tally,
    racers: Vec<Racer>,
    subscribed: usize,
}

struct Racer {
    acquire: Vec<u8>,
    release: Vec<u8>,
    doing: Doing,
    /// Whether a message came while the client was doing something else, which is a reason to
    /// retry.
    heard: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Trying,
    Waiting,
    Releasing,
}

impl Raced {
    fn new(clients: usize, admin: &mut Client) -> Raced {
        let mut script = |text| rivals::load(admin, &todays_or_classic(text, false));
        let acquire = script(include_str!("../redisson/reentrant_acquire.lua"));
        let release = script(include_str!("../redisson/reentrant_release.lua"));
        let racers = (0..clients).map(|client| {
            let owner = rivals::owner(client);
            Racer {
                acquire: wire::line(&format!("EVALSHA {acquire} 1 hot {LEASE_MS} {owner}")),
                release: wire::line(&format!(
                    "EVALSHA {release} 3 hot released latch {owner} {LEASE_MS} 20000"
                )),
                doing: Doing::Trying,
                heard: false,
            }
        });
        Raced { tally: Tally::of(clients), racers: racers.collect(), subscribed: 0 }
    }

    fn listen(&mut self, client: usize, reply: &[u8], table: &mut Table) {
        let racer = &mut self.racers[client];
        if reply.starts_with(b"*3\r\n$9\r\nsubscribe") {
            self.subscribed += 1;
            table.say(2 * client, &racer.acquire);
        } else if racer.doing == Doing::Waiting {
            racer.doing = Doing::Trying;
            table.say(2 * client, &racer.acquire);
        } else {
            racer.heard = true;
        }
    }
}

impl Contest for Raced {
    fn begin(&mut self, table: &mut Table) {
        for client in 0..self.racers.len() {
            table.say(2 * client + 1, &wire::line("SUBSCRIBE released"));
        }
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn is_gathered(&self) -> bool {
        self.subscribed == self.racers.len()
    }
}

impl Game for Raced {
    fn hear(&mut self, seat: usize, reply: &[u8], table: &mut Table) {
        let (client, is_message) = (seat / 2, seat % 2 == 1);
        assert_ne!(reply[0], b'-', "{}", reply.escape_ascii());
        if is_message {
            return self.listen(client, reply, table);
        }
        let racer = &mut self.racers[client];
        match (racer.doing, reply) {
            (Doing::Trying, b"$-1\r\n") => {
                racer.doing = Doing::Releasing;
                racer.heard = false;
                table.say(seat, &racer.release);
                self.tally.grant(client);
                self.tally.released = Some(Instant::now());
            }
            (Doing::Trying, _) if racer.heard => {
                racer.heard = false;
                table.say(seat, &racer.acquire);
            }
            (Doing::Trying, _) => racer.doing = Doing::Waiting,
            (Doing::Releasing, _) => {
                assert_eq!(reply, b":1\r\n");
                racer.doing = Doing::Trying;
                table.say(seat, &racer.acquire);
            }
            (Doing::Waiting, _) => panic!("a reply to nothing: {}", reply.escape_ascii()),
        }
    }
}
