//! A hundred thousand requests from a hundred connections wait for one lock: how much memory they
//! take, in which order they are served, how much a hand-off costs among them, and what happens to
//! the requests of a connection that is killed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::Profile;
use crate::book::{Book, column};
use crate::memory::used_memory;
use crate::play::{Game, Room, Table};
use crate::rivals;
use crate::sample::Sample;
use crate::stage::{self, CpuClock};
use crate::wire;
use rlock_testkit::{Client, Server, until};

pub const SECTION: &str = "TELL: many wait at one lock over 100 RESP3 connections";
pub const ROW: &str = "requests that wait with TELL, names of 39 bytes";
pub const BYTES: &str = "bytes each";
pub const MEGABYTES: &str = "MB of used_memory in all";
pub const SERVED: &str = "served in order";
pub const CPU: &str = "TELL: server CPU of a hand-off while so many wait, µs";
pub const HAND_OFF: &str = "RELEASE, and the message to the next";

const CONNECTIONS: usize = 100;
/// One connection sends this many requests in a row.
const BATCH: usize = 10;
/// The hand-off is measured while about this many requests wait.
pub const SIZES: [usize; 3] = [1000, 10_000, 100_000];
/// A window is this many hand-offs, which are measured together. Each size has [`WINDOWS`] of them.
const WINDOW: usize = 200;
const WINDOWS: usize = 5;
const READY_MS_MAX: u64 = 20_000;

const KEY: &str = "lock:0f9a7c3e-5d0b-4c57-9c51-2f6c4c1f7a";

/// Measures the requests' memory, the order in which they are served, and the hand-off.
pub fn measure(book: &mut Book, profile: Profile) {
    let count = if profile == Profile::Quick { 10_000 } else { 100_000 };
    let server = stage::server(&[]);
    let mut admin = server.client();
    let mut room = Room::open(server.tcp_port(), CONNECTIONS);
    room.greet_in_resp3(|seat| Some(channel(seat)));
    let holder = rivals::owner(count);
    admin.granted(&format!("RLOCK.ACQUIRE {KEY} {holder} LEASE 3600000"));
    until_settled(&mut admin);
    let before = used_memory(&mut admin);
    let mut queue = Queue::default();
    queue.ask(count, &mut room.table);
    let begin = Instant::now();
    room.play_until(&mut queue, |queue| queue.asked == count && queue.owed == 0);
    println!("  ({count} asked in {:.1} s)", begin.elapsed().as_secs_f64());
    until_settled(&mut admin);
    let taken = (used_memory(&mut admin) - before) as f64;
    assert_eq!(admin.info_number("rlock", "rlock_tells"), count as i64);
    book.put_value(SECTION, ROW, "how many", count as f64);
    book.put_value(SECTION, ROW, BYTES, taken / count as f64);
    book.put_value(SECTION, ROW, MEGABYTES, taken / 1e6);
    serve(book, &mut room, &mut admin, &server, queue);
}

fn serve(book: &mut Book, room: &mut Room, admin: &mut Client, server: &Server, queue: Queue) {
    let count = queue.line.len();
    let cpu = CpuClock::of(&mut server.client());
    let mut game = Serving::new(queue.line, &cpu);
    admin.ask(&format!("RLOCK.RELEASE {KEY} {}", rivals::owner(count)));
    let begin = Instant::now();
    room.play_until(&mut game, |game| game.served >= count / 2);
    // Choose a connection that is far from the one that holds the lock now.
    let killed = (game.seat + CONNECTIONS / 2) % CONNECTIONS;
    room.leave(killed);
    let listens = format!("PUBSUB SHARDNUMSUB {}", channel(killed));
    until(READY_MS_MAX, || format!("{:?}", admin.ask(&listens)).contains("int(0)"));
    let before = game.line.len();
    game.line.retain(|(seat, _)| *seat != killed);
    let lost = before - game.line.len();
    room.play_until(&mut game, |game| game.line.is_empty() && game.owed == 0);
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(admin.info_number("rlock", "rlock_untold"), lost as i64, "one each, no other");
    assert_eq!(admin.info_number("rlock", "rlock_tells"), 0);
    assert_eq!(game.served + lost, count);
    println!("  ({:.0} hand-offs a second, {lost} killed)", game.served as f64 / seconds);
    book.put_value(SECTION, ROW, SERVED, game.served as f64);
    book.put_value(SECTION, ROW, "of a killed connection, passed", lost as f64);
    for (size, sample) in SIZES.into_iter().zip(&game.windows_us) {
        if sample.len() > 0 {
            book.put(CPU, HAND_OFF, &column(size), sample);
        }
    }
}

/// Waits until the server has trimmed the buffers of the connections, some seconds after they were
/// used.
fn until_settled(admin: &mut Client) {
    std::thread::sleep(Duration::from_secs(6));
    let mut before = 0;
    until(READY_MS_MAX, || {
        std::thread::sleep(Duration::from_secs(2));
        let now = used_memory(admin);
        let is_settled = now.abs_diff(before) < 20_000;
        before = now;
        is_settled
    });
}

/// The name of a channel, which has 39 bytes.
fn channel(seat: usize) -> String {
    format!("to:0f9a7c3e-5d0b-4c57-9c51-{seat:012}")
}

/// Connections send their requests one after another, so that it is known which request came first.
#[derive(Default)]
struct Queue {
    /// The connection and the number of each request, in order.
    line: VecDeque<(usize, usize)>,
    most: usize,
    asked: usize,
    owed: usize,
}

impl Queue {
    fn ask(&mut self, count: usize, table: &mut Table) {
        self.most = count;
        let seat = (self.asked / BATCH) % CONNECTIONS;
        let channel = channel(seat);
        for number in self.asked..(self.asked + BATCH).min(count) {
            let owner = rivals::owner(number);
            let ask = format!("RLOCK.ACQUIRE {KEY} {owner} LEASE 3600000 DEPTH 1 BLOCK 3600000");
            table.say(seat, &wire::line(&format!("{ask} TELL {channel} {number}")));
            self.line.push_back((seat, number));
            self.asked += 1;
            self.owed += 1;
        }
    }
}

impl Game for Queue {
    fn hear(&mut self, _: usize, reply: &[u8], table: &mut Table) {
        assert_eq!(reply, b"+WAITING\r\n");
        self.owed -= 1;
        if self.owed == 0 && self.asked < self.most {
            self.ask(self.most, table);
        }
    }
}

/// A connection that gets the lock releases it at once.
struct Serving<'a> {
    line: VecDeque<(usize, usize)>,
    cpu: &'a CpuClock,
    served: usize,
    owed: usize,
    /// The connection that holds the lock.
    seat: usize,
    /// The size of the window that is measured now, and when it began.
    window: Option<(usize, u64)>,
    windows_us: [Sample; SIZES.len()],
}

impl<'a> Serving<'a> {
    fn new(line: VecDeque<(usize, usize)>, cpu: &'a CpuClock) -> Serving<'a> {
        let (window, windows_us) = (None, Default::default());
        Serving { line, cpu, served: 0, owed: 0, seat: 0, window, windows_us }
    }

    fn measure(&mut self) {
        let waiting = self.line.len();
        let is_in = |size: &usize| waiting < *size && waiting + WINDOW * WINDOWS >= *size;
        let size = SIZES.iter().position(is_in);
        if !waiting.is_multiple_of(WINDOW) {
            return;
        }
        let now_ns = self.cpu.now_ns();
        if let Some((size, began_ns)) = self.window {
            self.windows_us[size].add((now_ns - began_ns) as f64 / 1e3 / WINDOW as f64);
        }
        self.window = size.map(|size| (size, now_ns));
    }
}

impl Game for Serving<'_> {
    fn hear(&mut self, seat: usize, reply: &[u8], table: &mut Table) {
        if reply == b":0\r\n" {
            self.owed -= 1;
            return;
        }
        let first = self.line.pop_front();
        let Some((expected, number)) = first else { panic!("nobody waits any more") };
        let message = wire::message(reply);
        let is_it = expected == seat && message.starts_with(format!("{number} token ").as_bytes());
        assert!(is_it, "{number} of {expected}: {}", message.escape_ascii());
        (self.served, self.owed, self.seat) = (self.served + 1, self.owed + 1, seat);
        self.measure();
        let owner = rivals::owner(number);
        table.say(seat, &wire::line(&format!("RLOCK.RELEASE {KEY} {owner}")));
    }
}
