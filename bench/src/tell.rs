//! `TELL` sends the late reply as a message to a shard channel. The hand-off by `TELL`, those by
//! the other ways to wait, and a `PING` are measured in the same rounds.

use std::time::Instant;

use redis::Value;

use crate::book::Book;
use crate::sample::Sample;
use crate::stage::{self, server, until_all_is_read, us_since};
use crate::{Profile, tell_acks, tell_crowd};
use rlock_testkit::{Server, Waiter, items, text};

pub const SECTION: &str = "TELL: hand-off from the release to the next owner's reply, µs";
pub const PING: &str = "PING to its reply";
pub const TELL: &str = "TELL: the message with the token";
pub const BLOCK: &str = "BLOCK: the reply with the token";
pub const QUEUE: &str = "QUEUE: the event of the turn, then the token";

/// The first rounds are not counted: they warm caches and buffers.
const ROUNDS_BEFORE: usize = 200;

/// Measures all ways to wait.
pub fn measure(book: &mut Book, profile: Profile) {
    book.measure("TELL: hand-off", |book| hand_off(book, profile));
    book.measure("TELL: acknowledged", |book| tell_acks::measure(book, profile));
    book.measure("TELL: crowd", |book| tell_crowd::measure(book, profile));
}

fn hand_off(book: &mut Book, profile: Profile) {
    let rounds = if profile == Profile::Quick { 1000 } else { 5000 };
    let plain = server(&[]);
    // The server announces the turns of tickets by events. Tickets have their own server, so that
    // the other ways do not pay for events.
    let with_events = server(&["notify-keyspace-events", "Kd"]);
    let mut watcher = Waiter::connect(&plain);
    let mut ways = [Tell::between(&plain), Block::between(&plain), Queue::between(&with_events)];
    let mut samples: [Sample; 4] = Default::default();
    for round in 0..ROUNDS_BEFORE + rounds {
        ways.iter_mut().for_each(|way| way.prepare());
        let begin = Instant::now();
        until_all_is_read(&mut watcher);
        let mut taken = [us_since(begin), 0.0, 0.0, 0.0];
        // Each way comes first as often as the others.
        for turn in 0..ways.len() {
            let way = (round + turn) % ways.len();
            taken[way + 1] = ways[way].go();
        }
        if round >= ROUNDS_BEFORE {
            samples.iter_mut().zip(taken).for_each(|(sample, us)| sample.add(us));
        }
    }
    for (row, sample) in [PING, TELL, BLOCK, QUEUE].into_iter().zip(&samples) {
        book.put_percentiles(SECTION, row, sample);
    }
    stage::say_kept_off(&mut plain.client());
}

/// Two owners: one holds a lock, and the other waits for it.
trait Way {
    /// Has the other owner wait, and waits until the server has read its request.
    fn prepare(&mut self);
    /// The holder releases the lock. Returns after how many microseconds the other owner has it.
    fn go(&mut self) -> f64;
}

const OWNERS: [&str; 2] = ["ann", "bob"];

/// Each owner has a connection for its commands and one for its messages.
struct Tell([(Waiter, Waiter, &'static str); 2]);

impl Tell {
    fn between(server: &Server) -> Box<dyn Way> {
        let mut pair = OWNERS.map(|owner| {
            let [says, mut hears] = [(); 2].map(|()| Waiter::connect(server));
            hears.ask(&format!("SSUBSCRIBE to:{owner}"));
            (says, hears, owner)
        });
        pair[0].0.ask("RLOCK.ACQUIRE told ann");
        Box::new(Tell(pair))
    }
}

impl Way for Tell {
    fn prepare(&mut self) {
        let (waiter, _, owner) = &mut self.0[1];
        let said = waiter.ask(&format!("RLOCK.ACQUIRE told {owner} BLOCK 10000 TELL to:{owner} 7"));
        assert_eq!(said, Value::SimpleString("WAITING".into()));
    }

    fn go(&mut self) -> f64 {
        let [(holder, _, owner), (_, ears, _)] = &mut self.0;
        let release = format!("RLOCK.RELEASE told {owner}");
        let begin = Instant::now();
        holder.say(&release);
        let message = ears.answer();
        let taken = us_since(begin);
        assert!(text(&items(&message)[2]).starts_with("7 token "), "{message:?}");
        assert_eq!(holder.answer(), Value::Int(0));
        self.0.swap(0, 1);
        taken
    }
}

struct Block([(Waiter, &'static str); 2]);

impl Block {
    fn between(server: &Server) -> Box<dyn Way> {
        let mut pair = OWNERS.map(|owner| (Waiter::connect(server), owner));
        pair[0].0.ask("RLOCK.ACQUIRE blocked ann");
        Box::new(Block(pair))
    }
}

impl Way for Block {
    fn prepare(&mut self) {
        let (waiter, owner) = &mut self.0[1];
        waiter.say(&format!("RLOCK.ACQUIRE blocked {owner} BLOCK 10000"));
    }

    fn go(&mut self) -> f64 {
        let [(holder, owner), (waiter, _)] = &mut self.0;
        let release = format!("RLOCK.RELEASE blocked {owner}");
        let begin = Instant::now();
        holder.say(&release);
        let token = waiter.answer();
        let taken = us_since(begin);
        assert!(matches!(token, Value::Int(_)), "{token:?}");
        assert_eq!(holder.answer(), Value::Int(0));
        self.0.swap(0, 1);
        taken
    }
}

/// Works like `Tell`; an owner that gets the event of its turn asks again.
struct Queue([(Waiter, Waiter, &'static str); 2]);

impl Queue {
    fn between(server: &Server) -> Box<dyn Way> {
        let mut pair = OWNERS.map(|owner| {
            let [says, mut hears] = [(); 2].map(|()| Waiter::connect(server));
            hears.ask("SUBSCRIBE __keyspace@0__:queued");
            (says, hears, owner)
        });
        pair[0].0.ask("RLOCK.ACQUIRE queued ann");
        for (_, ears, _) in &mut pair {
            hear(ears, "rlock.acquired");
        }
        Box::new(Queue(pair))
    }
}

/// Waits for this event.
fn hear(ears: &mut Waiter, event: &str) {
    loop {
        let message = ears.answer();
        if text(&items(&message)[2]) == event {
            return;
        }
    }
}

impl Way for Queue {
    fn prepare(&mut self) {
        let (waiter, _, owner) = &mut self.0[1];
        let said = waiter.ask(&format!("RLOCK.ACQUIRE queued {owner} QUEUE 10000"));
        assert_eq!(said, Value::Nil);
    }

    fn go(&mut self) -> f64 {
        let [(holder, others_ears, owner), (waiter, ears, next)] = &mut self.0;
        let release = format!("RLOCK.RELEASE queued {owner}");
        let ask = format!("RLOCK.ACQUIRE queued {next} QUEUE 10000");
        let turn = format!("rlock.turn:{next}");
        let begin = Instant::now();
        holder.say(&release);
        hear(ears, &turn);
        let token = waiter.ask(&ask);
        let taken = us_since(begin);
        assert!(matches!(token, Value::Int(_)), "{token:?}");
        assert_eq!(holder.answer(), Value::Int(0));
        hear(ears, "rlock.acquired");
        hear(others_ears, "rlock.acquired");
        self.0.swap(0, 1);
        taken
    }
}
