//! Memory is short, and the server evicts by its policy. An evicted lock is lost; the only promise
//! is one `rlock.evicted` for each of them, and the count. Those holds count as ended, and no
//! others. Under `noeviction` nobody acquires, and nobody loses a lock.

use super::{Alone, Blow, Fault, Kind, Shard};
use crate::actor::Site;
use crate::clock::now_ns;
use crate::history::{Event, FULL_PROMISE, Mark, Promise};
use rlock_testkit::Client;

pub const KIND: Kind = Kind {
    name: "evict",
    start: || Box::new(Evict::start()),
    promise: Promise { may_close: true, errors: &["OOM"], ..FULL_PROMISE },
    every_ms: 60,
    in_processes: false,
    left_out: &[("counter", "the count may be evicted")],
};

const POLICIES: [&str; 8] = [
    "noeviction",
    "volatile-ttl",
    "volatile-random",
    "volatile-lru",
    "volatile-lfu",
    "allkeys-random",
    "allkeys-lru",
    "allkeys-lfu",
];

/// Keys beside the locks, so that there is something else to evict.
const FILLERS: u32 = 20;
const FILLER_BYTES: usize = 4096;
/// The memory limit: more than all locks, less than all fillers.
const EXCESS_BYTES: i64 = 30_000;

const EVICTED: &str = "__keyevent@0__:rlock.evicted";
const MARKS: &str = "marks";

struct Evict {
    alone: Alone,
    client: Client,
    ears: redis::Connection,
    /// The published evictions.
    told: i64,
    blows: usize,
}

impl Evict {
    fn start() -> Evict {
        let alone = Alone::with(&[]);
        let ears = redis::Client::open(alone.0.url("")).unwrap().get_connection().unwrap();
        Evict { client: alone.0.client(), alone, ears, told: 0, blows: 0 }
    }

    fn fill(&mut self) {
        let filler = "x".repeat(FILLER_BYTES);
        for number in 0..FILLERS {
            self.client.ask(&format!("SET filler:{number} {filler} EX 1000"));
        }
    }
}

impl Fault for Evict {
    fn site(&self) -> Site {
        Site { lease_ms: 2000, ..self.alone.site() }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        self.fill();
        let policy = POLICIES[self.blows % POLICIES.len()];
        self.blows += 1;
        self.client.ask(&format!("CONFIG SET maxmemory-policy {policy}"));
        let mut ears = self.ears.as_pubsub();
        ears.subscribe(EVICTED).unwrap();
        ears.subscribe(MARKS).unwrap();
        let used = self.client.info_number("memory", "used_memory");
        let from_ns = now_ns();
        self.client.ask(&format!("CONFIG SET maxmemory {}", used - EXCESS_BYTES));
        blow.rest(5);
        self.client.ask("CONFIG SET maxmemory 0");
        // The event comes one loop iteration after its cause, and each of these commands takes one.
        (0..20).for_each(|_| drop(self.client.ask("PING")));
        self.client.ask(&format!("PUBLISH {MARKS} end"));
        let to_ns = now_ns();
        loop {
            let message = ears.get_message().unwrap();
            if message.get_channel_name() == MARKS {
                break;
            }
            self.told += 1;
            let mark = Mark::Wiped(Some(message.get_payload().unwrap()));
            blow.events.push(Event { mark, from_ns, to_ns });
        }
        drop(ears);
        assert_eq!(self.client.counted("evicted"), self.told, "as many told as counted");
    }

    fn heal(&mut self) {
        for number in 0..FILLERS {
            self.client.ask(&format!("DEL filler:{number}"));
        }
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.alone.shards()
    }
}
