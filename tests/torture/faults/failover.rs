//! The primary dies and its replica takes over, by our REPLICAOF NO ONE or by Sentinel. Clients
//! send WAIT after every grant, and only confirmed holds count, because the contract claims nothing
//! for the rest. In some of Sentinel's cases the primary is only frozen, and goes on for a moment
//! as a second primary: nobody confirms what it grants then.

use std::sync::{Arc, RwLock};

use redis::Value;

use super::{Blow, Fault, Kind, SETTINGS, Shard};
use crate::actor::Site;
use crate::history::{FULL_PROMISE, Mark, Promise};
use rlock_testkit::{Client, Server, flat_map, items, text, until};

const PATIENCE_MS: u64 = 30_000;
/// With less, a server that other work delays would be taken for dead.
const DOWN_AFTER_MS: u32 = 1500;

pub const PROMOTION: Kind = Kind {
    name: "promotion",
    start: || Box::new(Failover::start(|_| None)),
    promise: Promise {
        holds_at_once: false,
        may_close: true,
        errors: &["LOADING", "READONLY", "MASTERDOWN", "UNBLOCKED"],
        ..FULL_PROMISE
    },
    every_ms: 500,
    in_processes: false,
    left_out: &[("counter", "a count that was not replicated is lost, as Redis documents")],
};

pub const SENTINEL: Kind = Kind {
    name: "sentinel",
    start: || Box::new(Failover::start(|primary| Some(sentinel_of(primary.tcp_port())))),
    ..PROMOTION
};

struct Failover {
    primary: Server,
    replica: Server,
    sentinel: Option<Server>,
    url: Arc<RwLock<String>>,
}

impl Failover {
    fn start(sentinel: fn(&Server) -> Option<Server>) -> Failover {
        let primary = Server::primary(&SETTINGS);
        let replica = Server::replica_of(&primary, &SETTINGS);
        let url = Arc::new(RwLock::new(primary.url("")));
        let sentinel = sentinel(&primary);
        let failover = Failover { primary, replica, sentinel, url };
        failover.until_known();
        failover
    }

    /// Whether the sentinel knows the replica and would promote it.
    fn until_known(&self) {
        self.sentinel.iter().for_each(|sentinel| until_known_to(sentinel, 1));
    }

    fn promote(&self) {
        let port = self.replica.tcp_port().to_string();
        if let Some(sentinel) = &self.sentinel {
            let mut client = sentinel.client();
            until(PATIENCE_MS, || primary_by(&mut client) == port);
        } else {
            self.replica.client().ask("REPLICAOF NO ONE");
        }
        let mut client = self.replica.client();
        until(PATIENCE_MS, || client.info("replication", "role").as_deref() == Some("master"));
        *self.url.write().unwrap() = self.replica.url("");
    }
}

impl Fault for Failover {
    fn site(&self) -> Site {
        Site::moving(self.url.clone())
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        let is_frozen = self.sentinel.is_some() && blow.rng.bool();
        blow.marked(Mark::Failover, |_| {
            if is_frozen {
                self.primary.freeze();
            } else {
                self.primary.kill_9();
            }
            self.promote();
        });
        if is_frozen {
            self.primary.thaw();
            blow.rest(100);
            self.primary.kill_9();
        }
        std::mem::swap(&mut self.primary, &mut self.replica);
        let address = format!("127.0.0.1 {}", self.primary.tcp_port());
        self.replica.configure("replicaof", &address);
        self.replica.start_again();
        let mut client = self.replica.client();
        until(PATIENCE_MS, || {
            client.info("replication", "master_link_status").as_deref() == Some("up")
        });
        self.until_known();
    }

    fn heal(&mut self) {
        self.primary.configure("replicaof", "no one");
        // The sentinel would take the restarts of the last checks for a failure.
        self.sentinel = None;
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        vec![Shard { primary: &mut self.primary, replicas: vec![&self.replica] }]
    }
}

/// Waits until the sentinel knows this many replicas that it would promote.
pub fn until_known_to(sentinel: &Server, replicas: usize) {
    let mut client = sentinel.client();
    until(PATIENCE_MS, || {
        let known = client.ask("SENTINEL REPLICAS rlock");
        let is_well = |replica: &&Value| {
            let fields = flat_map(replica);
            text(&fields["flags"]) == "slave" && text(&fields["master-link-status"]) == "ok"
        };
        items(&known).iter().filter(is_well).count() >= replicas
    });
}

/// The port at which a sentinel sends clients to the primary.
pub fn primary_by(sentinel: &mut Client) -> String {
    let address = sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME rlock");
    text(&items(&address)[1])
}

/// A sentinel that decides alone, with the primary at that port.
pub fn sentinel_of(port: u16) -> Server {
    sentinel_under(&[], &format!("127.0.0.1 {port}"))
}

/// The same under another program, with the primary at that address.
pub fn sentinel_under(program: &[&str], address: &str) -> Server {
    let monitor = format!("monitor rlock {address} 1");
    let settings = [
        ["sentinel", &monitor],
        ["sentinel", &format!("down-after-milliseconds rlock {DOWN_AFTER_MS}")],
        ["sentinel", "failover-timeout rlock 1000"],
    ];
    let sentinel = ["sh", "-c", "exec \"$@\" --sentinel", "sh"];
    Server::under(&[program, &sentinel].concat(), settings.as_flattened())
}
