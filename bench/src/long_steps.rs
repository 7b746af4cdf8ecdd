//! How long the server's loop stalls: the slowest PING while a great deal happens at once, compared
//! with the same amount of the server's own work.

mod waits;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::Profile;
use crate::book::Book;
use crate::crowd::{blocked, connected, exchange_all};
use crate::sample::Sample;
use crate::stage::{may_open, on_its_core, server, server_for, us_since};
use rlock_testkit::{Client, Server, Waiter, now_ms, until};

/// The section of all these figures.
pub const SECTION: &str = "long steps: the slowest PING meanwhile, ms";
const RLOCK: &str = "RLOCK";
const CORE: &str = "the server alone";

const IDLE: &str = "nothing happens";
const GROWTH: &str = "locks get their first ticket, vs new keys";
const LEASES: &str = "many locks, with one ticket each, all end at once, vs keys that expire";
const DEMOTION: &str = "the primary becomes a replica, with blocked connections, vs BLPOP";
const PROMOTION: &str = "a replica with held locks becomes the primary, vs keys with a TTL";
const FLUSH: &str = "FLUSHALL of locks with a ticket each, vs lists with a TTL";
const SESSIONS: &str = "sessions are renewed, vs idle connections";
const CLOSING: &str = "all of these connections close";
const INFO: &str = "INFO rlock with the queues, vs INFO with as many keys";
const QUEUES: &str = "RLOCK.QUEUES with the queues, vs KEYS with one match";

/// Makes a primary a replica; of whom does not matter.
const DEMOTE: &str = "REPLICAOF 127.0.0.1 1";

/// A step may take at most this many milliseconds longer than the server's own work does.
const MORE_MS: f64 = 5.0;

/// The slowest PING of a step in milliseconds, with the module and with the server alone, and
/// whether ours is short enough; `None` if it was not measured.
pub fn figure(book: &Book, step: &str) -> Option<(f64, f64, bool)> {
    let ms = |step, column| book.value(SECTION, step, column);
    let (ours, alone, idle) = (ms(step, RLOCK)?, ms(step, CORE)?, ms(IDLE, CORE)?);
    Some((ours, alone, step == IDLE || ours <= alone.max(idle) + MORE_MS))
}

/// How often a step that takes seconds is repeated: its slowest PING varies by half.
const ROUNDS: usize = 3;

/// The slowest PING of each step in milliseconds, one value per round.
#[derive(Default)]
struct Slowest(Vec<(&'static str, &'static str, Sample)>);

impl Slowest {
    fn note(&mut self, step: &'static str, column: &'static str, ms: f64) {
        let place = self.0.iter().position(|(known, at, _)| (*known, *at) == (step, column));
        let place = place.unwrap_or_else(|| {
            self.0.push((step, column, Sample::default()));
            self.0.len() - 1
        });
        self.0[place].2.add(ms);
    }
}

/// The number of objects of each kind.
struct Sizes {
    locks: usize,
    queues: usize,
    held: usize,
    connections: usize,
}

/// Measures all steps.
pub fn measure(book: &mut Book, profile: Profile) {
    let (part, rounds) = if profile == Profile::Quick { (10, 1) } else { (1, ROUNDS) };
    let sizes = Sizes {
        locks: 1_000_000 / part,
        queues: 250_000 / part,
        held: 100_000 / part,
        connections: 10_000 / part,
    };
    let is_open = may_open(sizes.connections);
    if !is_open {
        book.miss(format!("{} connections: `ulimit -n` is too low", sizes.connections));
    }
    let mut slowest = Slowest::default();
    idle(&mut slowest);
    leases(&mut slowest, sizes.locks);
    for _ in 0..rounds {
        if is_open {
            demotion(&mut slowest, sizes.connections);
            sessions(&mut slowest, sizes.connections);
        }
        promotion(&mut slowest, sizes.held);
        queues(&mut slowest, sizes.queues);
        waits::measure(&mut slowest, sizes.held);
    }
    for (step, column, sample) in &slowest.0 {
        book.put(SECTION, step, column, sample);
    }
}

/// Stops another thread, even if this one panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The slowest PING, in milliseconds, that one connection sends while `work` runs. It sends one
/// PING after another.
fn slowest_ping(server: &Server, work: impl FnOnce()) -> f64 {
    let is_over = AtomicBool::new(false);
    let mut connection = Waiter::connect(server);
    thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let mut slowest_us = 0_f64;
            while !is_over.load(Relaxed) {
                let begin = Instant::now();
                connection.ask("PING");
                slowest_us = slowest_us.max(us_since(begin));
            }
            slowest_us / 1e3
        });
        let over = Over(&is_over);
        work();
        drop(over);
        pings.join().unwrap()
    })
}

/// The lease in milliseconds of a hold that begins now and ends at this time.
fn lease_until(ends_ms: i64) -> i64 {
    (ends_ms - now_ms()).max(1)
}

fn for_s(seconds: u64) {
    thread::sleep(Duration::from_secs(seconds));
}

/// Sends the line that `make` returns for each number.
fn all(server: &Server, count: usize, make: impl Fn(usize) -> String) {
    exchange_all(&mut Waiter::connect(server), count, make);
}

fn idle(slowest: &mut Slowest) {
    let server = server(&[]);
    let ms = slowest_ping(&server, || for_s(5));
    slowest.note(IDLE, RLOCK, ms);
    let alone = on_its_core(Server::without_module());
    let ms = slowest_ping(&alone, || for_s(5));
    slowest.note(IDLE, CORE, ms);
}

/// All leases expire within the same few milliseconds, after all of them have been granted.
fn leases(slowest: &mut Slowest, count: usize) {
    // This is less than the 60 seconds for which a ticket lasts.
    let fill_ms = i64::try_from(count).unwrap() / 20;
    let server = server(&["rlock.max-tickets", &count.to_string()]);
    let ends_ms = now_ms() + fill_ms;
    all(&server, count, |n| {
        format!("RLOCK.ACQUIRE lock:{n} holder LEASE {}", lease_until(ends_ms))
    });
    let ms = slowest_ping(&server, || {
        all(&server, count, |n| format!("RLOCK.ACQUIRE lock:{n} next QUEUE 60000"));
    });
    slowest.note(GROWTH, RLOCK, ms);
    assert!(now_ms() < ends_ms, "the machine was too slow to hold them all at once");
    let mut admin = server.client();
    until(600_000, || now_ms() > ends_ms - 1000);
    let ms = slowest_ping(&server, || {
        until(600_000, || {
            for_s(1);
            admin.counted("expired") == count as i64
        });
    });
    slowest.note(LEASES, RLOCK, ms);
    drop(server);
    let alone = self::server(&[]);
    let ends_ms = now_ms() + fill_ms / 2;
    let ms = slowest_ping(&alone, || {
        all(&alone, count, |n| format!("SET lock:{n} holder PXAT {ends_ms}"));
    });
    slowest.note(GROWTH, CORE, ms);
    assert!(now_ms() < ends_ms, "the machine was too slow to have them all at once");
    let mut admin = alone.client();
    until(600_000, || now_ms() > ends_ms - 1000);
    let ms = slowest_ping(&alone, || {
        until(600_000, || {
            for_s(1);
            admin.number("DBSIZE") == 0
        });
    });
    slowest.note(LEASES, CORE, ms);
}

/// Demotes the primary: every blocked connection gets `-UNBLOCKED`.
fn demotion(slowest: &mut Slowest, count: usize) {
    let demote = |server: &Server| {
        let mut admin = server.client();
        slowest_ping(server, || {
            admin.ask(DEMOTE);
            until(60_000, || admin.info_number("clients", "blocked_clients") == 0);
            for_s(1);
        })
    };
    let server = server_for(count);
    server.client().granted("RLOCK.ACQUIRE hot holder LEASE 600000");
    let waiters = blocked(&server, count, |n| format!("RLOCK.ACQUIRE hot waiter:{n} BLOCK 0"));
    slowest.note(DEMOTION, RLOCK, demote(&server));
    drop(waiters);
    let alone = server_for(count);
    let waiters = blocked(&alone, count, |_| "BLPOP nothing 0".to_owned());
    slowest.note(DEMOTION, CORE, demote(&alone));
    drop(waiters);
}

fn promotion(slowest: &mut Slowest, count: usize) {
    let promote = |line: &dyn Fn(usize) -> String| {
        let primary = server(&[]);
        all(&primary, count, line);
        let replica = on_its_core(Server::replica_of(&primary, &[]));
        replica.until_in_sync_with(&primary);
        let mut admin = replica.client();
        slowest_ping(&replica, || {
            admin.ask("REPLICAOF NO ONE");
            for_s(2);
        })
    };
    let ms = promote(&|n| format!("RLOCK.ACQUIRE lock:{n} holder LEASE 600000"));
    slowest.note(PROMOTION, RLOCK, ms);
    let ms = promote(&|n| format!("SET lock:{n} holder PX 600000"));
    slowest.note(PROMOTION, CORE, ms);
}

/// Sessions are renewed at least twice; then all of them end at once.
fn sessions(slowest: &mut Slowest, count: usize) {
    let renew_and_close = |slowest: &mut Slowest, column, line: &dyn Fn(usize) -> String| {
        let server = server_for(count);
        let mut waiters = connected(&server, count);
        for (number, waiter) in waiters.iter_mut().enumerate() {
            waiter.ask(&line(number));
        }
        slowest.note(SESSIONS, column, slowest_ping(&server, || for_s(5)));
        let mut admin = server.client();
        let ms = slowest_ping(&server, || {
            drop(waiters);
            until(60_000, || admin.info_number("clients", "connected_clients") <= 2);
            for_s(1);
        });
        slowest.note(CLOSING, column, ms);
    };
    renew_and_close(slowest, RLOCK, &|n| format!("RLOCK.ACQUIRE lock:{n} o{n} LEASE 6000 SESSION"));
    renew_and_close(slowest, CORE, &|n| format!("SET lock:{n} o{n} PX 600000"));
}

/// Many locks have a queue: `RLOCK.QUEUES` and `INFO` list them, and then all those waits end.
fn queues(slowest: &mut Slowest, count: usize) {
    let often = |server: &Server, line: &str| {
        let mut admin = server.client();
        let ask = |admin: &mut Client| (0..20).for_each(|_| drop(admin.ask(line)));
        slowest_ping(server, || ask(&mut admin))
    };
    let flush = |server: &Server| {
        let mut admin = server.client();
        slowest_ping(server, || {
            admin.ask("FLUSHALL SYNC");
            for_s(3);
        })
    };
    let ours = server(&["rlock.max-tickets", &count.to_string()]);
    all(&ours, count, |n| format!("RLOCK.ACQUIRE lock:{n} holder LEASE 600000"));
    all(&ours, count, |n| format!("RLOCK.ACQUIRE lock:{n} next QUEUE 60000"));
    let alone = server(&[]);
    all(&alone, count, |n| format!("RPUSH lock:{n} next"));
    all(&alone, count, |n| format!("PEXPIRE lock:{n} 600000"));
    slowest.note(INFO, RLOCK, often(&ours, "INFO rlock"));
    slowest.note(INFO, CORE, often(&alone, "INFO"));
    slowest.note(QUEUES, RLOCK, often(&ours, "RLOCK.QUEUES"));
    slowest.note(QUEUES, CORE, often(&alone, "KEYS lock:1"));
    slowest.note(FLUSH, RLOCK, flush(&ours));
    slowest.note(FLUSH, CORE, flush(&alone));
}
