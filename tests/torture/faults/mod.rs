//! What is done to the servers and clients while the load goes on. A fault brings the servers that
//! it needs, says what is promised while it is at work, and strikes again and again; each blow
//! leaves marks in the history. To add one: a file here, a line in `ALL`.

mod calm;
mod clients;
mod cluster;
mod connections;
mod disk;
mod evict;
pub mod failover;
mod kill;
mod pause;
pub mod proxy;
mod reloads;
mod replicas;
mod split;
mod stop;
mod subscribers;
mod wipes;

pub use clients::KILL as CLIENT_KILL;

use fastrand::Rng;

use crate::actor::Site;
use crate::clock::{Stop, now_ns};
use crate::crowd::Crowd;
use crate::history::{Event, Mark, Promise};
use rlock_testkit::Server;

/// Servers, and the faults that they suffer.
pub trait Fault {
    /// Where clients find the primary.
    fn site(&self) -> Site;
    /// Does it once. What that does to holds, queues and connections is marked.
    fn strike(&mut self, blow: &mut Blow<'_>);
    /// Brings everything back up, when the load has ended.
    fn heal(&mut self) {}
    /// The servers as they are after `heal`.
    fn shards(&mut self) -> Vec<Shard<'_>>;
}

/// A primary with its replicas, which must agree in the end.
pub struct Shard<'a> {
    pub primary: &'a mut Server,
    pub replicas: Vec<&'a Server>,
}

/// A kind of fault.
pub struct Kind {
    pub name: &'static str,
    pub start: fn() -> Box<dyn Fault>,
    pub promise: Promise,
    /// The longest time between two blows.
    pub every_ms: u64,
    /// Whether clients are processes of their own.
    pub in_processes: bool,
    /// Workloads with which it is not combined, and why.
    pub left_out: &'static [(&'static str, &'static str)],
}

pub const ALL: &[Kind] = &[
    calm::KIND,
    kill::KIND,
    stop::KIND,
    clients::STOP,
    clients::KILL,
    connections::KIND,
    subscribers::KIND,
    pause::WRITES,
    pause::ALL,
    replicas::PARTIAL,
    replicas::DISK,
    replicas::DISKLESS,
    failover::PROMOTION,
    failover::SENTINEL,
    split::KIND,
    split::SENTINEL,
    cluster::SLOTS,
    cluster::FAILOVER,
    wipes::FLUSH,
    wipes::DEL,
    wipes::RENAME,
    wipes::SWAPDB,
    reloads::RELOAD,
    reloads::REWRITE,
    reloads::REWRITE_PLAIN,
    evict::KIND,
    disk::KIND,
];

/// Kinds with a replica in addition to the primary. (`slots` has none, others have one server.)
const WITH_REPLICAS: [&Kind; 8] = [
    &replicas::PARTIAL,
    &replicas::DISK,
    &replicas::DISKLESS,
    &failover::PROMOTION,
    &failover::SENTINEL,
    &split::KIND,
    &split::UNCONFIRMED,
    &cluster::FAILOVER,
];

impl Kind {
    /// Whether there are replicas to acknowledge.
    pub fn has_replicas(&self) -> bool {
        WITH_REPLICAS.iter().any(|kind| kind.name == self.name)
    }
}

/// Kinds that must be detected; they run only if they are named.
pub const PLANTED: &[Kind] = &[split::UNBOUNDED, split::UNCONFIRMED];

/// What a blow can use.
pub struct Blow<'a> {
    pub rng: &'a mut Rng,
    pub crowd: &'a mut Crowd,
    pub events: &'a mut Vec<Event>,
}

impl Blow<'_> {
    /// Does it, and records when.
    pub fn marked<T>(&mut self, mark: Mark, deed: impl FnOnce(&mut Self) -> T) -> T {
        let from_ns = now_ns();
        let outcome = deed(self);
        self.events.push(Event { mark, from_ns, to_ns: now_ns() });
        outcome
    }

    /// Lets the load go on for a random time.
    pub fn rest(&mut self, ms_max: u64) {
        let ms = self.rng.u64(1..=ms_max);
        Stop::default().within(ms);
    }
}

/// The settings of every server, before those of a fault: tickets need their messages.
const SETTINGS: [&str; 2] = ["notify-keyspace-events", "KEd"];

/// Every change is on disk before its reply.
const ON_DISK: [&str; 4] = ["appendonly", "yes", "appendfsync", "always"];

/// The number of a connection, in its line of `CLIENT LIST`.
fn id_of(line: &str) -> Option<i64> {
    let field = line.split(' ').find_map(|field| field.strip_prefix("id="));
    field?.parse().ok()
}

/// One server that stays, alone.
pub struct Alone(pub Server);

impl Alone {
    pub fn with(settings: &[&str]) -> Alone {
        Alone(Server::with(&[&SETTINGS, settings].concat()))
    }

    pub fn site(&self) -> Site {
        Site::fixed(self.0.url(""))
    }

    pub fn shards(&mut self) -> Vec<Shard<'_>> {
        vec![Shard { primary: &mut self.0, replicas: Vec::new() }]
    }
}
