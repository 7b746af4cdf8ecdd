//! A cluster: a slot in use moves to another primary and back, or a primary dies and its replica
//! takes over. Clients find locks as cluster clients do, by the nodes' slot map, and get
//! redirections when the map is old.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use redis::Value;

use super::{Blow, Fault, Kind, SETTINGS, Shard};
use crate::actor::Site;
use crate::clock::{now_ns, ns};
use crate::history::{FULL_PROMISE, Mark, Promise};
use crate::words::packed;
use rlock_testkit::{Cluster, Server, integer, items, until};

const PATIENCE_MS: u64 = 30_000;
/// How long clients use their map.
const MAP_NS: u64 = ns(20);
/// A primary that is silent for this long is replaced; with less, other work on this machine would
/// look like its death.
const DOWN_AFTER_MS: u32 = 1500;
/// One key in each third of the slots, held at the end on every primary.
const LEFT: [&str; 3] = ["left:{hall}", "left:{lock}", "left:{order:1}"];

const PROMISE: Promise = Promise {
    one_primary: false,
    may_close: true,
    errors: &["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"],
    ..FULL_PROMISE
};

const ORDERS: (&str, &str) = ("orders", "a cycle of waits through two nodes is not looked for");

pub const SLOTS: Kind = Kind {
    name: "slots",
    start: || Box::new(Nodes::of_two()),
    promise: PROMISE,
    every_ms: 150,
    in_processes: false,
    left_out: &[ORDERS],
};

pub const FAILOVER: Kind = Kind {
    name: "cluster-kill",
    start: || Box::new(Nodes::of_six()),
    promise: Promise {
        holds_at_once: false,
        errors: &["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY", "UNBLOCKED"],
        ..PROMISE
    },
    every_ms: 500,
    in_processes: false,
    left_out: &[ORDERS, ("counter", "a count that was not replicated is lost, as Redis documents")],
};

struct Nodes {
    cluster: Cluster,
    map: Arc<Mutex<Map>>,
    has_replicas: bool,
}

impl Nodes {
    fn of_two() -> Nodes {
        let patient = ["cluster-node-timeout", "60000"];
        Nodes::new(Cluster::of_two_with(&[SETTINGS, patient].concat()), false)
    }

    fn of_six() -> Nodes {
        let apart = ["cluster-require-full-coverage", "no"];
        Nodes::new(Cluster::of_six(DOWN_AFTER_MS, &[SETTINGS, apart].concat()), true)
    }

    fn new(cluster: Cluster, has_replicas: bool) -> Nodes {
        let urls = cluster.nodes.iter().map(|node| (node.tcp_port(), node.url("")));
        let map =
            Map { urls: urls.collect(), read_ns: 0, ranges: Vec::new(), used: BTreeSet::new() };
        Nodes { cluster, map: Arc::new(Mutex::new(map)), has_replicas }
    }

    /// The primary of this slot, as a running node sees it.
    fn owner_of(&self, slot: u16) -> Option<usize> {
        let asked = self.cluster.nodes.iter().position(Server::is_running);
        self.cluster.owner_of(slot, asked.unwrap())
    }

    /// Moves one of the slots in use.
    fn move_a_slot(&mut self, blow: &mut Blow<'_>) {
        let used: Vec<u16> = self.map.lock().unwrap().used.iter().copied().collect();
        let Some(slot) = blow.rng.choice(used) else { return };
        let from = self.owner_of(slot).unwrap();
        // Waiters get an error and take a new place; holds stay.
        blow.marked(Mark::Restart, |_| self.cluster.move_slot(slot, from, 1 - from));
    }

    /// Kills the primary of a third of the slots.
    fn kill_a_primary(&mut self, blow: &mut Blow<'_>) {
        let slot = slot_of(blow.rng.choice(LEFT).unwrap());
        let primary = self.owner_of(slot).unwrap();
        let replica = self.cluster.replica_of(primary);
        blow.marked(Mark::Failover, |_| {
            self.cluster.node_mut(primary).kill_9();
            until(PATIENCE_MS, || self.cluster.owner_of(slot, replica) == Some(replica));
            self.cluster.until_all_agree();
        });
        self.cluster.node_mut(primary).start_again();
        self.cluster.until_all_agree();
        let mut client = self.cluster.client(primary);
        until(PATIENCE_MS, || {
            client.info("replication", "master_link_status").as_deref() == Some("up")
        });
    }
}

impl Fault for Nodes {
    fn site(&self) -> Site {
        let map = self.map.clone();
        let url_of = Box::new(move |key: &str, _| map.lock().unwrap().url_of(key));
        let lease_ms = if self.has_replicas { 5000 } else { 30_000 };
        let waits_for_replica = self.has_replicas;
        Site { url_of, waits_for_replica, lease_ms, ..Site::fixed(String::new()) }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        if self.has_replicas {
            self.kill_a_primary(blow);
        } else {
            self.move_a_slot(blow);
        }
    }

    /// The last checks restart each primary alone, so it is then in no cluster.
    fn heal(&mut self) {
        for key in LEFT {
            let owner = self.owner_of(slot_of(key)).unwrap();
            self.cluster.client(owner).granted(&format!("RLOCK.ACQUIRE {key} end LEASE 600000"));
        }
        for node in &self.cluster.nodes {
            node.client().ask("CONFIG SET cluster-node-timeout 60000");
            node.configure("cluster-enabled", "no");
        }
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        // A replica answers for its primary's slots with -MOVED, so it is not compared here; the
        // other faults with replicas do that.
        let is_primary = |node: &&mut Server| {
            node.client().info("replication", "role").as_deref() == Some("master")
        };
        let primaries = self.cluster.nodes.iter_mut().filter(is_primary);
        primaries.map(|primary| Shard { primary, replicas: Vec::new() }).collect()
    }
}

/// The slot map, as a cluster client remembers it.
struct Map {
    urls: Vec<(u16, String)>,
    read_ns: u64,
    /// First slot, last slot, port.
    ranges: Vec<(i64, i64, i64)>,
    /// The slots in use.
    used: BTreeSet<u16>,
}

impl Map {
    fn url_of(&mut self, key: &str) -> String {
        let slot = slot_of(key);
        // A command without a key has no slot.
        if !key.is_empty() {
            self.used.insert(slot);
        }
        if now_ns() > self.read_ns + MAP_NS {
            self.read();
        }
        let slot = i64::from(slot);
        let range = self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let port = range.map_or(0, |(_, _, port)| *port);
        let found = self.urls.iter().find(|(known, _)| i64::from(*known) == port);
        // No node serves the slot, so any node will reply with that error.
        found.unwrap_or(&self.urls[0]).1.clone()
    }

    /// From the first node that answers.
    fn read(&mut self) {
        // One may die between any two of these.
        let slots = |url: &String| {
            let mut node = redis::Client::open(url.as_str()).ok()?.get_connection().ok()?;
            packed("CLUSTER SLOTS").query::<Value>(&mut node).ok()
        };
        let Some(ranges) = self.urls.iter().find_map(|(_, url)| slots(url)) else { return };
        let range = |range| {
            let range = items(range);
            let port = integer(&items(&range[2])[1]);
            (integer(&range[0]), integer(&range[1]), port)
        };
        self.ranges = items(&ranges).iter().map(range).collect();
        self.read_ns = now_ns();
    }
}

/// The slot of a key: CRC-16/XMODEM of its hash tag, or of all of it.
fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}
