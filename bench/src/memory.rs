//! How much space locks take: bytes of memory, of an RDB file, and of the append-only file. Also
//! measures a keyspace that grows beyond the processor's caches.

use std::fs;
use std::time::Instant;

use redis::Value;

use crate::Profile;
use crate::book::{self, Book};
use crate::play::{Game, Room, Table};
use crate::rivals::{self, OWNER};
use crate::stage::{self, CpuClock};
use crate::wire;
use rlock_testkit::{Client, Server, Waiter};

/// Bytes of each object.
pub const HELD: &str = "memory: bytes of used_memory";
pub const LOCK: &str = "a held lock (RLOCK.ACQUIRE)";
pub const SET: &str = "a key (SET NX PX)";
pub const EACH: &str = "each";
pub const MANY: &str = "memory: many held, saved and loaded";
pub const HOW_MANY: &str = "how many";
const AOF: &str = "memory: bytes of the append-only file per pair";
/// Server CPU in microseconds for each command on a new key.
pub const COLD: &str = "memory: acquire on a growing, cold keyspace, CPU µs";
pub const COLD_ALL: &str = "in all";

const ACQUIRE: &str = "RLOCK.ACQUIRE $K $O LEASE 3600000";
const SET_NX: &str = "SET $K $O NX PX 3600000";
const PIPELINED: usize = 200;

/// Sends `line` for each of these numbers. `$K` stands for a key, `$O` for an owner of 39 bytes,
/// `$N` for the number.
fn say_for_each(server: &Server, line: &str, numbers: std::ops::Range<usize>) {
    let mut fill = Fill { line, numbers, owed: 0 };
    let mut room = Room::open(server.tcp_port(), 1);
    fill.say_some(&mut room.table);
    room.play_until(&mut fill, |fill| fill.owed == 0);
}

struct Fill<'a> {
    line: &'a str,
    numbers: std::ops::Range<usize>,
    owed: usize,
}

impl Fill<'_> {
    fn say_some(&mut self, table: &mut Table) {
        for number in self.numbers.by_ref().take(PIPELINED) {
            let line = self.line.replace("$K", &key(number)).replace("$O", OWNER);
            table.say(0, &wire::line(&line.replace("$N", &number.to_string())));
            self.owed += 1;
        }
    }
}

impl Game for Fill<'_> {
    fn hear(&mut self, _: usize, reply: &[u8], table: &mut Table) {
        let is_done = reply.starts_with(b":") || reply == b"+OK\r\n" || reply == b"$-1\r\n";
        assert!(is_done, "{}", reply.escape_ascii());
        self.owed -= 1;
        if self.owed == 0 {
            self.say_some(table);
        }
    }
}

/// A key as long as usual names are; all keys have the same length.
fn key(number: usize) -> String {
    format!("lock:{number:09}")
}

/// The bytes that the server has in use.
pub fn used_memory(admin: &mut Client) -> i64 {
    admin.info_number("memory", "used_memory")
}

/// Measures bytes per lock, reader and level.
pub fn held(book: &mut Book) {
    const COUNT: usize = 100_000;
    let bytes = |line: &str| {
        let server = stage::server(&[]);
        let mut admin = server.client();
        // The first locks also pay for memory that the server allocates only once.
        say_for_each(&server, line, COUNT..COUNT + PIPELINED);
        let before = used_memory(&mut admin);
        say_for_each(&server, line, 0..COUNT);
        (used_memory(&mut admin) - before) as f64 / COUNT as f64
    };
    book.put_value(HELD, LOCK, EACH, bytes(ACQUIRE));
    book.put_value(HELD, SET, EACH, bytes(SET_NX));
    let read = "RLOCK.ACQUIRE $K $O READ LEASE 3600000";
    book.put_value(HELD, "a lock held by one reader", EACH, bytes(read));
    let reader = "RLOCK.ACQUIRE hot uuid-of-36-bytes-and-a-thread:$N READ LEASE 3600000";
    book.put_value(HELD, "one more reader of the same lock", EACH, bytes(reader));
    let hash = "HSET $K $O 1";
    book.put_value(HELD, "a hash as Redisson has it, without its expiry", EACH, bytes(hash));
}

/// Measures the time to acquire, save and load a million locks.
pub fn many(book: &mut Book, profile: Profile) {
    let count = if profile == Profile::Quick { 100_000 } else { 1_000_000 };
    for (row, line) in [(LOCK, ACQUIRE), (SET, SET_NX)] {
        let mut server = stage::server(&["dbfilename", "dump.rdb"]);
        let begin = Instant::now();
        say_for_each(&server, line, 0..count);
        book.put_value(MANY, row, HOW_MANY, count as f64);
        book.put_value(MANY, row, "taken in s", begin.elapsed().as_secs_f64());
        let begin = Instant::now();
        server.client().ask("SAVE");
        book.put_value(MANY, row, "saved in s", begin.elapsed().as_secs_f64());
        let file = fs::metadata(server.folder().join("dump.rdb")).unwrap();
        book.put_value(MANY, row, "RDB bytes each", file.len() as f64 / count as f64);
        server.kill_9();
        let begin = Instant::now();
        server.start_again();
        book.put_value(MANY, row, "started and loaded in s", begin.elapsed().as_secs_f64());
        assert_eq!(server.client().ask("DBSIZE"), Value::Int(count as i64));
    }
}

/// Measures how much each rival's pair writes to the append-only file.
pub fn append_only_file(book: &mut Book) {
    const PAIRS: i64 = 1000;
    let server = stage::server(&["appendonly", "yes", "auto-aof-rewrite-percentage", "0"]);
    let mut admin = server.client();
    let mut connection = Waiter::connect(&server);
    for rival in rivals::all(&mut admin, server.version()) {
        let before = admin.info_number("persistence", "aof_current_size");
        for number in 0..PAIRS {
            for (line, _) in rival.lines_on(&key(number as usize)) {
                connection.ask(&line);
            }
        }
        let bytes = admin.info_number("persistence", "aof_current_size") - before;
        book.put_value(AOF, rival.name, "bytes", bytes as f64 / PAIRS as f64);
    }
}

/// Measures an acquire while the keyspace grows, alternating with `SET NX PX` on another server.
pub fn cold(book: &mut Book, profile: Profile) {
    let (chunks, keys) = if profile == Profile::Quick { (3, 100_000) } else { (6, 500_000) };
    let servers = [(LOCK, ACQUIRE), (SET, SET_NX)].map(|(row, line)| {
        let server = stage::server(&[]);
        let cpu = CpuClock::of(&mut server.client());
        (row, line, server, cpu)
    });
    let mut sums = [0.0; 2];
    for chunk in 0..chunks {
        for ((row, line, server, cpu), sum) in servers.iter().zip(&mut sums) {
            let begin_ns = cpu.now_ns();
            say_for_each(server, line, chunk * keys..(chunk + 1) * keys);
            let us = (cpu.now_ns() - begin_ns) as f64 / 1e3 / keys as f64;
            *sum += us / chunks as f64;
            let column = format!("up to {}", book::column((chunk + 1) * keys));
            book.put_value(COLD, row, &column, us);
        }
    }
    for ((row, ..), sum) in servers.iter().zip(sums) {
        book.put_value(COLD, row, COLD_ALL, sum);
    }
}
