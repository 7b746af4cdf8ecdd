//! Counts the instructions and allocations of a pair, a hand-off and a single command.

use redis::Value;

use crate::book::Book;
use crate::callgrind::{Counted, Profile};
use crate::rivals::{self, LEASE_MS, OWNER, Rival};
use rlock_testkit::{Server, Waiter};

pub const SECTION: &str = "instructions";
pub const INSTRUCTIONS: &str = "instructions";
pub const REPLICATE: &str = "of these in RM_Replicate";
const ALLOCATIONS: &str = "allocations";
const OURS: &str = "of these the module's";
pub const HAND_OFF: &str = "hand-off, RLOCK: RELEASE, ACQUIRE BLOCK";
/// Compared with the other hand-off; each grants one request.
pub const HAND_OFF_LIMIT: &str = "the same hand-off, LIMIT 1";
pub const LIMIT_1: &str = "LIMIT 1 ";
pub const CLIENTS: &str = "the clients' pair: LEASE, DEPTH, TOKEN";
/// Compared with [`CLIENTS`].
pub const CLIENTS_FLOOR: &str = "the floor, with the words of the clients' pair";
/// Compared with separate pairs on the same ten locks, sent in one write.
pub const TEN: &str = "RLOCK.MACQUIRE + RLOCK.MRELEASE of ten locks";
pub const TEN_SINGLE: &str = "ten pairs of RLOCK.ACQUIRE + RLOCK.RELEASE in one write";
pub const PUBLISH_AND_RETRY: &str = "hand-off, DEL + PUBLISH, SET NX PX twice";

const PAIRS: usize = 2048;
/// How many commands are sent at once.
const PIPELINED: usize = 16;
/// The same locks are used again and again, so that the server's tables do not grow.
const LOCKS: usize = 512;
const HAND_OFFS: usize = 1000;
const TENS: usize = 500;
/// A day, which is longer than any run.
const LONG_MS: u64 = 86_400_000;

/// The counts per repetition of the counted work.
#[derive(Clone)]
pub struct Count {
    pub instructions: f64,
    pub cache_misses: f64,
    pub mispredictions: f64,
    pub module_allocations: f64,
    pub allocations: f64,
    pub replicate_instructions: f64,
}

impl Count {
    fn of(profile: &Profile, times: usize) -> Count {
        let each = |sum: u64| sum as f64 / times as f64;
        Count {
            instructions: each(profile.instructions),
            cache_misses: each(profile.cache_misses),
            mispredictions: each(profile.mispredictions),
            module_allocations: each(profile.module_allocations()),
            allocations: each(profile.allocations()),
            replicate_instructions: each(profile.replicate_instructions()),
        }
    }
}

/// Counts the instructions of every rival's pair, and of the hand-offs.
pub fn measure(book: &mut Book) {
    let mut counted = Counted::start();
    let mut note = |row: &str, count: &Count| {
        book.put_value(SECTION, row, INSTRUCTIONS, count.instructions.round());
        book.put_value(SECTION, row, ALLOCATIONS, count.allocations.round());
        if row.contains("RLOCK") || row.contains("same") || row == CLIENTS {
            let ours = (count.module_allocations * 100.0).round() / 100.0;
            book.put_value(SECTION, row, OURS, ours);
            let replicate = count.replicate_instructions.round();
            book.put_value(SECTION, row, REPLICATE, replicate);
        }
    };
    let (mut admin, version) = (counted.server.client(), counted.server.version());
    for rival in rivals::all(&mut admin, version) {
        note(rival.name, &pair(&mut counted, &rival));
    }
    note(CLIENTS, &clients_pair(&mut counted, "RLOCK"));
    if std::env::var_os("RLOCK_FLOOR").is_some() {
        note(CLIENTS_FLOOR, &clients_pair(&mut counted, "FLOOR"));
    }
    note(TEN, &ten(&mut counted, true));
    note(TEN_SINGLE, &ten(&mut counted, false));
    note(HAND_OFF, &hand_off(&mut counted, ""));
    note(HAND_OFF_LIMIT, &hand_off(&mut counted, LIMIT_1));
    note(PUBLISH_AND_RETRY, &publish_and_retry(&mut counted));
}

/// Counts a rival's pair on a free lock.
pub fn pair(counted: &mut Counted, rival: &Rival) -> Count {
    let mut connection = Waiter::connect(&counted.server);
    let locks: Vec<_> =
        (0..LOCKS).map(|number| rival.lines_on(&format!("lock:{number}"))).collect();
    let mut go = |pairs: usize| {
        let lines: Vec<_> = locks.iter().flatten().collect();
        let count = pairs * lines.len() / LOCKS;
        let mut next = lines.iter().cycle().take(count).peekable();
        while next.peek().is_some() {
            let batch: Vec<_> = next.by_ref().take(PIPELINED).collect();
            let words: Vec<&str> = batch.iter().map(|(line, _)| line.as_str()).collect();
            connection.say_all(&words);
            for (line, reply) in batch {
                expect(line, reply, &connection.answer());
            }
        }
    };
    go(LOCKS);
    Count::of(&counted.count(|| go(PAIRS)), PAIRS)
}

/// Counts the pair as the client packages send it: each release names the token of its acquisition.
/// The module is `RLOCK` or `FLOOR`.
pub fn clients_pair(counted: &mut Counted, module: &str) -> Count {
    let mut connection = Waiter::connect(&counted.server);
    let keys: Vec<String> = (0..LOCKS).map(|number| format!("lock:{number}")).collect();
    let mut ask = |lines: Vec<String>| -> Vec<Value> {
        connection.say_all(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        lines.iter().map(|_| connection.answer()).collect()
    };
    let mut go = |pairs: usize| {
        let at_once = PIPELINED / 2;
        for batch in keys.chunks(at_once).cycle().take(pairs / at_once) {
            let acquire = |key: &String| {
                format!("{module}.ACQUIRE {key} {OWNER} WRITE LEASE {LEASE_MS} DEPTH 1")
            };
            let tokens = ask(batch.iter().map(acquire).collect());
            let release = |(key, token): (&String, &Value)| {
                let Value::Int(token) = token else { panic!("{token:?} is no token") };
                format!("{module}.RELEASE {key} {OWNER} WRITE TOKEN {token} DEPTH 0")
            };
            let replies = ask(batch.iter().zip(&tokens).map(release).collect());
            assert!(replies.iter().all(|reply| *reply == Value::Int(0)), "{replies:?}");
        }
    };
    go(LOCKS);
    Count::of(&counted.count(|| go(PAIRS)), PAIRS)
}

/// Counts ten free locks that are acquired and released in one write, either together or one by
/// one.
pub fn ten(counted: &mut Counted, is_together: bool) -> Count {
    let mut connection = Waiter::connect(&counted.server);
    let keys: Vec<String> = (0..LOCKS).map(|number| format!("lock:{number}")).collect();
    let batches = keys.chunks_exact(10).map(|keys| match is_together {
        true => {
            let keys = keys.join(" ");
            vec![
                format!("RLOCK.MACQUIRE 10 {keys} {OWNER} LEASE {LEASE_MS}"),
                format!("RLOCK.MRELEASE 10 {keys} {OWNER}"),
            ]
        }
        false => {
            let acquire = |key| format!("RLOCK.ACQUIRE {key} {OWNER} LEASE {LEASE_MS}");
            let release = |key| format!("RLOCK.RELEASE {key} {OWNER}");
            keys.iter().map(acquire).chain(keys.iter().map(release)).collect()
        }
    });
    let batches: Vec<Vec<String>> = batches.collect();
    let mut go = |times: usize| {
        for batch in batches.iter().cycle().take(times) {
            connection.say_all(&batch.iter().map(String::as_str).collect::<Vec<_>>());
            for (number, line) in batch.iter().enumerate() {
                let reply = connection.answer();
                let is_released = [Value::Int(0), Value::Int(10)].contains(&reply);
                assert_eq!(is_released, 2 * number >= batch.len(), "{line}: {reply:?}");
            }
        }
    };
    go(batches.len());
    Count::of(&counted.count(|| go(TENS)), TENS)
}

/// Starts this many groups, which wait without a connection. Each waits for two of a thousand held
/// locks.
pub fn gather_groups(server: &Server, groups: usize) {
    let mut connection = Waiter::connect(server);
    let held = |number: usize| format!("elsewhere:{groups}:{}", number % 1000);
    let lease = format!("LEASE {LONG_MS}");
    let hold = |number| format!("RLOCK.ACQUIRE {} holder {lease}", held(number));
    let queue = |number| {
        let (one, other) = (held(number), held(number * 7 + 1));
        format!("RLOCK.MACQUIRE 2 {one} {other} waits:{number} {lease} BLOCK 0 TELL nobody 1")
    };
    let lines: Vec<String> = (0..1000).map(hold).chain((0..groups).map(queue)).collect();
    for batch in lines.chunks(100) {
        connection.say_all(&batch.iter().map(String::as_str).collect::<Vec<_>>());
        batch.iter().for_each(|line| {
            let reply = connection.answer();
            assert_eq!(matches!(reply, Value::Int(_)), !line.contains("TELL"), "{line}: {reply:?}");
        });
    }
}

fn expect(line: &str, reply: &str, value: &Value) {
    let is_it = match (reply, value) {
        ("$-1", Value::Nil) | ("+OK", Value::Okay) | ("+PONG", Value::SimpleString(_)) => true,
        (":", Value::Int(_)) => true,
        (number, Value::Int(value)) => number == format!(":{value}"),
        _ => false,
    };
    assert!(is_it, "{line}: {value:?} instead of {reply}");
}

/// Counts hand-offs between two clients that take turns: the holder releases and queues again in
/// one write. `words` are additional options of their requests.
pub fn hand_off(counted: &mut Counted, words: &str) -> Count {
    let mut line = ["ann", "bob"].map(|owner| (Waiter::connect(&counted.server), owner));
    let lock = format!("handed{}", words.trim().replace(' ', "-"));
    let block = |owner: &str| format!("RLOCK.ACQUIRE {lock} {owner} {words}BLOCK 10000");
    line[0].0.ask(&format!("DEL {lock}"));
    line[0].0.ask(&block("ann"));
    line[1].0.park(&counted.server, &block("bob"));
    let mut go = |times: usize| {
        for _ in 0..times {
            let [(holder, owner), (waiter, _)] = &mut line;
            holder.say_all(&[&format!("RLOCK.RELEASE {lock} {owner}"), &block(owner)]);
            assert_eq!(holder.answer(), Value::Int(0));
            waiter.answer();
            line.swap(0, 1);
        }
    };
    go(10);
    Count::of(&counted.count(|| go(HAND_OFFS)), HAND_OFFS)
}

/// Counts the same work without the module.
fn publish_and_retry(counted: &mut Counted) -> Count {
    let [mut holder, mut waiter, mut ears] = [(); 3].map(|()| Waiter::connect(&counted.server));
    ears.ask("SUBSCRIBE released");
    let set = format!("SET retried {OWNER} NX PX {LEASE_MS}");
    holder.ask(&set);
    let mut go = |times: usize| {
        for _ in 0..times {
            assert_eq!(waiter.ask(&set), Value::Nil);
            holder.say_all(&["DEL retried", "PUBLISH released now"]);
            ears.answer();
            assert_eq!(waiter.ask(&set), Value::Okay);
            assert_eq!([holder.answer(), holder.answer()], [Value::Int(1), Value::Int(1)]);
            std::mem::swap(&mut holder, &mut waiter);
        }
    };
    go(10);
    Count::of(&counted.count(|| go(HAND_OFFS)), HAND_OFFS)
}

/// Counts each of these commands, sent once for each lock. Returns each name with its count.
pub fn single_commands(counted: &mut Counted) -> Vec<(&'static str, Count)> {
    let commands = [
        ("ACQUIRE of a free lock", format!("RLOCK.ACQUIRE $K {OWNER} LEASE {LEASE_MS}")),
        ("ACQUIRE again, one level more", format!("RLOCK.ACQUIRE $K {OWNER} LEASE 40000")),
        ("RENEW", format!("RLOCK.RENEW $K {OWNER} LEASE 50000")),
        ("ACQUIRE refused", "RLOCK.ACQUIRE $K somebody-else".to_owned()),
        ("RELEASE of one level", format!("RLOCK.RELEASE $K {OWNER}")),
        ("RELEASE of the lock", format!("RLOCK.RELEASE $K {OWNER}")),
        ("ACQUIRE READ of a free lock", format!("RLOCK.ACQUIRE $K {OWNER} READ")),
        ("RELEASE READ of the lock", format!("RLOCK.RELEASE $K {OWNER} READ")),
    ];
    let mut connection = connect_and_warm_up(&counted.server, &commands.each_ref().map(|c| &c.1));
    let counts = commands.iter().map(|(name, line)| {
        let profile = counted.count(|| say_to_each_lock(&mut connection, line));
        (*name, Count::of(&profile, LOCKS))
    });
    counts.collect()
}

fn connect_and_warm_up(server: &Server, lines: &[&String]) -> Waiter {
    let mut connection = Waiter::connect(server);
    lines.iter().for_each(|line| say_to_each_lock(&mut connection, line));
    connection
}

fn say_to_each_lock(connection: &mut Waiter, line: &str) {
    for number in 0..LOCKS {
        connection.ask(&line.replace("$K", &format!("lock:{number}")));
    }
}
