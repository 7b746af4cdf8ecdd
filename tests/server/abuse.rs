//! Whatever is sent, however long, odd or often: the server keeps running, changes no lock that was
//! not named, and keeps no memory that its limits do not allow. The long forms are `make abuse`.

use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;

use fastrand::Rng;
use rlock_testkit::{Client, LockView, Server, Waiter, until};

/// How often to do it, in a short run and in a long one (`RLOCK_ABUSE` times as often).
fn times(short: usize) -> usize {
    let factor = std::env::var("RLOCK_ABUSE").map_or(1, |factor| factor.parse().unwrap());
    short * factor
}

/// What the server itself has taken from its heap, in bytes.
fn used(client: &mut Client) -> i64 {
    client.info_number("memory", "used_memory")
}

// --- any words ----------------------------------------------------------------------------------

const COMMANDS: [&[u8]; 15] = [
    b"ACQUIRE", b"RELEASE", b"RENEW", b"CANCEL", b"FORCE", b"HOLDS", b"CHECK", b"INFO", b"PLACE",
    b"QUEUES", b"SLOWLOG", b"HELP", b"APPLY", b"AWAIT", b"TAKE",
];

const NAMES: [&[u8]; 10] = [
    b"a",
    b"b",
    b"",
    b"\0",
    b"a\0b",
    b"a\r\n+OK\r\n",
    b"%s%n%x%p",
    b"\xff\xfe\x80",
    b"READ",
    b"{a}b",
];

/// `SESSION` is left out, because it closes the connection when its hold ends.
const WORDS: [&[u8]; 26] = [
    b"READ",
    b"LIMIT",
    b"maxqueue",
    b"GET",
    b"write",
    b"LEASE",
    b"BLOCK",
    b"QUEUE",
    b"UPGRADE",
    b"DEPTH",
    b"WITHTTL",
    b"TOKEN",
    b"ALL",
    b"WAITERS",
    b"COUNT",
    b"0",
    b"1",
    b"2",
    b"3",
    b"1000",
    b"-1",
    b"9007199254740991",
    b"9007199254740992",
    b"99999999999999999999",
    b"\r\n",
    b"%s",
];

/// Options with valid values, so that more than the grammar is tested.
const OPTIONS: [&[&[u8]]; 12] = [
    &[b"READ"],
    &[b"WRITE"],
    &[b"LEASE", b"1"],
    &[b"LEASE", b"1000"],
    &[b"BLOCK", b"1"],
    &[b"QUEUE", b"2"],
    &[b"UPGRADE"],
    &[b"DEPTH", b"1"],
    &[b"DEPTH", b"2"],
    &[b"WITHTTL"],
    &[b"ALL"],
    &[b"TOKEN", b"7"],
];

fn any_command(rng: &mut Rng) -> Vec<Vec<u8>> {
    let commands = if rng.usize(..3) == 0 { &COMMANDS[..] } else { &COMMANDS[..5] };
    let command = commands[rng.usize(..commands.len())];
    let mut words = vec![[b"RLOCK.", command].concat()];
    for _ in 0..rng.usize(..12).clamp(1, 2) {
        words.push(NAMES[rng.usize(..NAMES.len())].to_vec());
    }
    for _ in 0..rng.usize(..4) {
        if rng.usize(..4) == 0 {
            words.push(WORDS[rng.usize(..WORDS.len())].to_vec());
        } else {
            words.extend(OPTIONS[rng.usize(..OPTIONS.len())].iter().map(|word| word.to_vec()));
        }
    }
    // A wait forever would end the test.
    let waits = |pair: &[Vec<u8>]| pair[0].eq_ignore_ascii_case(b"BLOCK") && pair[1] != b"1";
    if words.windows(2).any(waits) {
        words.truncate(3);
    }
    words
}

#[test]
fn any_words_get_one_reply_and_leave_sound_locks() {
    const CODES: [&str; 5] = ["ERR ", "NOTHELD ", "DEADLOCK ", "TOOMANY ", "WRONGTYPE "];
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE bystander ann LEASE 600000");
    let before = client.dump("bystander");
    let (mut rng, mut taken) = (Rng::with_seed(0x9e37_79b9_7f4a_7c15), 0);
    for round in 0..times(10_000) {
        let words = any_command(&mut rng);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match client.attempt_bytes(&words) {
            Ok(_) => taken += 1,
            Err(error) => {
                let is_known = CODES.iter().any(|code| error.starts_with(code));
                let is_line = error.bytes().all(|byte| (b' '..=b'~').contains(&byte));
                assert!(is_known && is_line && error.len() < 1000, "round {round}: {error:?}");
            }
        }
        if round % 100 == 0 {
            for name in NAMES {
                LockView::read(&client.ask_bytes(&[b"RLOCK.INFO", name]));
            }
        }
    }
    assert!(taken > times(1_000), "only {taken} were taken");
    assert_eq!(client.dump("bystander"), before);
    for name in NAMES {
        client.ask_bytes(&[b"RLOCK.FORCE", name]);
    }
    // The last tickets end by themselves.
    until(5_000, || client.info_number("rlock", "rlock_tickets") == 0);
    assert_eq!(client.info_number("rlock", "rlock_waiters"), 0);
    assert_eq!(client.info_number("rlock", "rlock_locks"), 1);
}

#[test]
fn options_mean_the_same_in_any_order() {
    let server = Server::start();
    let mut client = server.client();
    let options = ["READ", "LEASE 60000", "DEPTH 1", "QUEUE 5", "WITHTTL", "UPGRADE"];
    let mut orders = vec![Vec::new()];
    for option in options {
        let longer = |order: Vec<&'static str>| {
            (0..=order.len()).map(move |at| {
                let mut order = order.clone();
                order.insert(at, option);
                order
            })
        };
        orders = orders.into_iter().flat_map(longer).collect();
    }
    assert_eq!(orders.len(), 720);
    for order in orders {
        let line = format!("RLOCK.ACQUIRE door ann {}", order.join(" "));
        client.ask(&line);
        assert_eq!(client.shows("door"), "read: ann read 1", "{line}");
        assert!(client.lock("door").hold("ann", "read").ttl_ms > 50_000, "{line}");
        client.ask("RLOCK.RELEASE door ann");
    }
}

// --- long words ---------------------------------------------------------------------------------

/// The longest argument that a server accepts by default, in bytes.
const WORD_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Sends a command whose last word is as long as possible, and reads one line of the reply.
fn with_long_word(server: &Server, words: &[&str]) -> String {
    let mut socket = UnixStream::connect(server.socket()).unwrap();
    let mut head = format!("*{}\r\n", words.len() + 1);
    words.iter().for_each(|word| head.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    head.push_str(&format!("${WORD_BYTES_MAX}\r\n"));
    socket.write_all(head.as_bytes()).unwrap();
    let part = vec![b'%'; 1 << 20];
    for _ in 0..WORD_BYTES_MAX / part.len() {
        socket.write_all(&part).unwrap();
    }
    socket.write_all(b"\r\n").unwrap();
    let (mut reply, mut byte) = (Vec::new(), [0]);
    while !reply.ends_with(b"\r\n") {
        socket.read_exact(&mut byte).unwrap();
        reply.push(byte[0]);
    }
    String::from_utf8(reply).unwrap().trim_end().to_owned()
}

/// One command after the other, because each takes half a gigabyte of the server's memory while it
/// lasts.
#[test]
fn a_word_of_512_megabytes_is_refused_in_a_short_line_and_kept_nowhere() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let before = (client.dump("door"), used(&mut client));
    for words in [
        &["RLOCK.ACQUIRE", "door"][..],
        &["RLOCK.RELEASE", "door", "ann"],
        &["RLOCK.ACQUIRE", "door", "ann", "LEASE"],
        &["RLOCK.CHECK", "door"],
        &["RLOCK.APPLY", "door"],
    ] {
        let reply = with_long_word(&server, words);
        assert!(reply.starts_with("-ERR ") && reply.len() < 500, "{words:?}: {reply}");
    }
    assert_eq!(client.dump("door"), before.0);
    until(10_000, || used(&mut client) < before.1 + (1 << 20));
}

// --- often --------------------------------------------------------------------------------------

/// In one script, so that a million repetitions do not take a million round trips.
fn script(client: &mut Client, body: &str, numbers: Range<usize>) {
    let script = format!("for i = ARGV[1], ARGV[2] do {body} end");
    for first in numbers.clone().step_by(10_000) {
        let last = (numbers.end - 1).min(first + 9_999);
        let (first, last) = (first.to_string(), last.to_string());
        let words: [&[u8]; 5] =
            [b"EVAL", script.as_bytes(), b"0", first.as_bytes(), last.as_bytes()];
        client.ask_bytes(&words);
    }
}

/// How many more bytes are in use after something was done this often; it was done once before, so
/// that what grows only once has grown.
fn growth(client: &mut Client, body: &str, count: usize) -> i64 {
    script(client, body, 0..count.div_ceil(10));
    let before = used(client);
    script(client, body, 0..count);
    used(client) - before
}

const PAIR: &str = "redis.call('RLOCK.ACQUIRE', 'k' .. i % 97, 'a', 'LEASE', '600000') \
                    redis.call('RLOCK.RELEASE', 'k' .. i % 97, 'a')";
/// Replies, statistics and buffers of the server vary, too.
const SLACK_BYTES: i64 = 100_000;

#[test]
fn pairs_of_acquire_and_release_leave_no_memory_behind() {
    let server = Server::start();
    let mut client = server.client();
    let count = times(20_000);
    // A script that forgets one release in twenty must be noticed, or the test proves nothing.
    let leaky =
        format!("{PAIR} if i % 20 == 0 then redis.call('RLOCK.ACQUIRE', 'leak' .. i, 'a') end");
    let leaked = growth(&mut client, &leaky, count);
    assert!(leaked > SLACK_BYTES, "a planted leak is not seen: {leaked} bytes");
    client.ask("FLUSHALL");
    let grown = growth(&mut client, PAIR, count);
    println!("{count} pairs: {grown} bytes more; with a planted leak {leaked}");
    assert!(grown < SLACK_BYTES, "{count} pairs left {grown} bytes behind");
}

#[test]
fn waiters_that_come_and_go_leave_no_memory_behind() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let come_and_go = |rounds: usize| {
        let mut waiters: Vec<Waiter> = (0..50).map(|_| Waiter::connect(&server)).collect();
        for round in 0..rounds {
            for (number, waiter) in waiters.iter_mut().enumerate() {
                waiter.say(&match number % 4 {
                    0 => format!("RLOCK.ACQUIRE door w{number} BLOCK 1"),
                    1 => format!("RLOCK.ACQUIRE door w{number} READ QUEUE 1"),
                    2 => format!("RLOCK.ACQUIRE door w{number}.{round} READ BLOCK 1"),
                    _ => format!("RLOCK.ACQUIRE other{round} w{number} BLOCK 5 LEASE 1"),
                });
            }
            waiters.iter_mut().for_each(|waiter| drop(waiter.answer()));
            // Some disconnect while they wait.
            let gone = round % waiters.len();
            waiters[gone].say("RLOCK.ACQUIRE door gone BLOCK 0");
            waiters[gone] = Waiter::connect(&server);
        }
    };
    come_and_go(10);
    let mut settled = || {
        until(20_000, || {
            let gauges = ["rlock_waiters", "rlock_tickets"];
            gauges.iter().all(|gauge| client.info_number("rlock", gauge) == 0)
                && client.number("DBSIZE") == 1
                // The buffers of the other connections belong to the server.
                && client.info_number("clients", "connected_clients") == 1
        });
        used(&mut client)
    };
    let before = settled();
    let rounds = times(40);
    come_and_go(rounds);
    // A busy server stops counting a connection before it has freed all of its buffers.
    until(20_000, || {
        let grown = settled() - before;
        println!("{} waiters: {grown} bytes more", rounds * 51);
        grown < SLACK_BYTES
    });
}

#[test]
fn very_many_locks_cost_a_bounded_number_of_bytes_and_give_them_back() {
    /// A lock's bytes, including the server's own share of a key.
    const LOCK_BYTES_MAX: i64 = 400;
    let server = Server::start();
    let mut client = server.client();
    let count = times(20_000);
    let before = used(&mut client);
    let acquire = "redis.call('RLOCK.ACQUIRE', 'lock' .. i, 'a', 'LEASE', '600000')";
    script(&mut client, acquire, 0..count);
    let number = i64::try_from(count).unwrap();
    assert_eq!(client.info_number("rlock", "rlock_locks"), number);
    let each = (used(&mut client) - before) / number;
    assert!(each < LOCK_BYTES_MAX, "{each} bytes per lock");
    script(&mut client, "redis.call('RLOCK.RELEASE', 'lock' .. i, 'a')", 0..count);
    assert_eq!(client.number("DBSIZE"), 0);
    assert_eq!(client.info_number("rlock", "rlock_locks"), 0);
    println!("{count} locks: {each} bytes each");
    until(20_000, || used(&mut client) - before < number * 20 + SLACK_BYTES);
}

#[test]
fn thousands_of_re_entries_cost_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    script(&mut client, "redis.call('RLOCK.ACQUIRE', 'door', 'ann')", 0..10_000);
    let before = (used(&mut client), client.dump("door").len());
    script(&mut client, "redis.call('RLOCK.ACQUIRE', 'door', 'ann')", 0..50_000);
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 60_001);
    assert!(used(&mut client) - before.0 < SLACK_BYTES);
    // The number of levels takes a byte more.
    assert!(client.dump("door").len() <= before.1 + 1);
}

// --- limits -------------------------------------------------------------------------------------

#[test]
fn tickets_take_no_more_than_their_limit_allows() {
    /// Documented: a ticket takes about 330 bytes, without the name.
    const TICKET_BYTES_MAX: i64 = 330;
    let server = Server::with_arguments("max-tickets 5000");
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let before = used(&mut client);
    let ticket = "redis.pcall('RLOCK.ACQUIRE', 'door', 'w' .. i, 'QUEUE', '60000')";
    script(&mut client, ticket, 0..20_000);
    assert_eq!(client.info_number("rlock", "rlock_tickets"), 5_000);
    let grown = used(&mut client) - before;
    assert!(grown < 5_000 * TICKET_BYTES_MAX + SLACK_BYTES, "{grown} bytes");
    assert!(client.error("RLOCK.ACQUIRE door late QUEUE 1000").starts_with("TOOMANY "));
}

#[test]
fn under_maxmemory_locks_are_refused_and_let_go() {
    let server = Server::start();
    let mut client = server.client();
    let limit = used(&mut client) + 2_000_000;
    client.ask(&format!("CONFIG SET maxmemory {limit}"));
    let acquire = "redis.pcall('RLOCK.ACQUIRE', 'lock' .. i, 'a', 'LEASE', '600000')";
    let mut first = 0;
    let refused = loop {
        script(&mut client, acquire, first..first + 200);
        first += 200;
        if let Err(error) = client.attempt("RLOCK.ACQUIRE another a") {
            break error;
        }
        assert!(first < 100_000, "nothing was refused");
    };
    assert!(refused.starts_with("OOM "), "{refused}");
    assert!(used(&mut client) < limit + SLACK_BYTES);
    assert_eq!(client.number("RLOCK.RENEW lock0 a LEASE 700000"), 1);
    assert_eq!(client.number("RLOCK.RELEASE lock0 a"), 0);
    assert_eq!(client.number("RLOCK.FORCE lock2"), 1);
}
