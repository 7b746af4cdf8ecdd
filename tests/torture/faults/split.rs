//! The primary is cut off from its replicas: one of them is promoted, and the old primary is a
//! second one, which the clients of its side still use, until the partition ends and it becomes a
//! replica. With `min-replicas-to-write 1`, it stops granting and renewing by itself; so two owners
//! hold a lock only as long as the server counts the lost replicas, and one lease more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use super::failover::{primary_by, sentinel_of, until_known_to};
use super::proxy::Proxy;
use super::{Blow, Fault, Kind, SETTINGS, Shard};
use crate::actor::Site;
use crate::clock::{Stop, ms, now_ns, ns};
use crate::history::{Event, FULL_PROMISE, Mark, Promise};
use crate::words::{self, Words};
use rlock_testkit::{Client, Server, until};

/// Sentinel takes up to 20 s to make the old primary a replica.
const PATIENCE_MS: u64 = 60_000;
/// The shortest lease of a session.
const LEASE_MS: u64 = 1000;
/// `min-replicas-max-lag` is a second, and the server counts in whole seconds, once a second.
const GOES_ON_MS: u64 = 3000;
/// How much longer the partition lasts than the errors that it can cause.
const LONGER_MS: u64 = 2500;

pub const KIND: Kind = Kind {
    name: "split",
    start: || Box::new(Split::start("1", GOES_ON_MS, false)),
    promise: Promise {
        holds_at_once: false,
        may_close: true,
        errors: &["NOREPLICAS", "LOADING", "READONLY", "MASTERDOWN", "UNBLOCKED"],
        goes_on_ms: GOES_ON_MS,
        ..FULL_PROMISE
    },
    every_ms: 800,
    in_processes: false,
    left_out: &[("counter", "a count that was not replicated is lost, as Redis documents")],
};

/// Sentinel is on the other side, and does the promotion.
pub const SENTINEL: Kind = Kind {
    name: "split-sentinel",
    start: || Box::new(Split::start("1", GOES_ON_MS, true)),
    left_out: &[
        KIND.left_out[0],
        ("nested", SLOW),
        ("readers", SLOW),
        ("fifo", SLOW),
        ("tickets", SLOW),
        ("leases", SLOW),
        ("orders", SLOW),
        ("resend", SLOW),
        ("windows", SLOW),
    ],
    ..KIND
};

const SLOW: &str = "a blow takes half a minute, and split has it";

/// Without the setting that limits it, two owners hold for as long as the partition lasts.
pub const UNBOUNDED: Kind = Kind {
    name: "unbounded",
    start: || Box::new(Split::start("0", 0, false)),
    promise: Promise { goes_on_ms: 0, ..KIND.promise },
    ..KIND
};

/// Clients believe that they ask for acknowledgments, but nobody waits for any. Without a limit,
/// too, so that both sides grant for long enough to be seen.
pub const UNCONFIRMED: Kind = Kind {
    name: "unconfirmed",
    start: || {
        Box::new(Split { words: words::without_acks, ..Split::start("0", GOES_ON_MS, false) })
    },
    ..KIND
};

/// A server, and its proxies for the other side.
struct Node {
    server: Server,
    for_servers: Proxy,
    for_clients: Proxy,
}

impl Node {
    fn of(server: Server) -> Node {
        let [for_servers, for_clients] = [(); 2].map(|()| Proxy::of(server.tcp_port()));
        // So others, such as Sentinel, find it behind the proxy.
        let port = for_servers.port();
        server.client().ask("CONFIG SET replica-announce-ip 127.0.0.1");
        server.client().ask(&format!("CONFIG SET replica-announce-port {port}"));
        Node { server, for_servers, for_clients }
    }

    fn far_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.for_clients.port())
    }

    fn follow(&self, primary: &Node) {
        let port = primary.for_servers.port();
        self.server.client().ask(&format!("REPLICAOF 127.0.0.1 {port}"));
    }

    /// Whether a field of `INFO replication` has this value. Sentinel closes the connections of a
    /// server whose role it changes: then it is asked again.
    fn has(&self, field: &str, value: &str) -> bool {
        let client = Client::connect(&self.server.url(""));
        let answer = client.map(|mut client| client.try_info("replication", field));
        matches!(answer, Ok(Ok(Some(answer))) if answer == value)
    }

    fn is_primary(&self) -> bool {
        self.has("role", "master")
    }

    fn is_replica(&self) -> bool {
        self.has("role", "slave")
    }

    fn has_link(&self) -> bool {
        self.has("master_link_status", "up")
    }

    fn offset(&self) -> i64 {
        self.server.client().info_number("replication", "slave_repl_offset")
    }
}

/// Where the clients of both sides find their primary.
struct Map {
    /// The remainder modulo two of the client numbers that are on the primary's side.
    near: u32,
    near_url: String,
    far_url: String,
}

struct Split {
    /// The nodes; the first is the primary.
    nodes: Vec<Node>,
    map: Arc<RwLock<Map>>,
    goes_on_ms: u64,
    sentinel: Option<Server>,
    words: Words,
    is_cut: Arc<AtomicBool>,
}

impl Split {
    fn start(min_replicas: &str, goes_on_ms: u64, has_sentinel: bool) -> Split {
        let bound = ["min-replicas-to-write", min_replicas, "min-replicas-max-lag", "1"];
        let settings = [&SETTINGS[..], &bound].concat();
        let servers = (0..3).map(|_| Node::of(Server::primary(&settings)));
        let nodes: Vec<Node> = servers.collect();
        let near_url = nodes[0].server.url("");
        let map = Map { near: 0, near_url, far_url: nodes[0].far_url() };
        let sentinel = has_sentinel.then(|| sentinel_of(nodes[0].for_servers.port()));
        let (map, words) = (Arc::new(RwLock::new(map)), words::rlock as Words);
        let split = Split { nodes, map, goes_on_ms, sentinel, words, is_cut: Arc::default() };
        split.nodes[1..].iter().for_each(|node| node.follow(&split.nodes[0]));
        split.until_whole();
        split
    }

    fn until_whole(&self) {
        until(PATIENCE_MS, || self.nodes[1..].iter().all(Node::has_link));
        let mut client = self.nodes[0].server.client();
        until(PATIENCE_MS, || client.attempt("DEL nothing").is_ok());
        self.sentinel.iter().for_each(|sentinel| until_known_to(sentinel, 2));
    }

    /// Clients of the other side have no server for now.
    fn cut(&self, is_told: bool) {
        let primary = &self.nodes[0];
        self.is_cut.store(true, Ordering::Relaxed);
        self.map.write().unwrap().far_url = "redis://127.0.0.1:1".to_owned();
        primary.for_servers.cut();
        primary.for_clients.cut();
        if is_told {
            primary.for_servers.drop_all();
            primary.for_clients.drop_all();
        }
        primary.for_clients.drop_fronts();
    }

    /// From now on, the replica that has received most is first, and the old primary is last.
    fn promote(&mut self) {
        if let Some(sentinel) = &self.sentinel {
            let mut client = sentinel.client();
            let is_new = |node: &Node, port: &str| node.for_servers.port().to_string() == port;
            until(PATIENCE_MS, || !is_new(&self.nodes[0], &primary_by(&mut client)));
            let port = primary_by(&mut client);
            self.nodes[1..].sort_by_key(|node| !is_new(node, &port));
        } else {
            self.nodes[1..].sort_by_key(|node| std::cmp::Reverse(node.offset()));
        }
        self.nodes.rotate_left(1);
        let [new, other, _] = &self.nodes[..] else { panic!("three nodes") };
        if self.sentinel.is_none() {
            new.server.client().ask("REPLICAOF NO ONE");
            other.follow(new);
        }
        until(PATIENCE_MS, || new.is_primary());
        self.map.write().unwrap().far_url = new.server.url("");
    }

    /// Makes the old primary a replica of its successor. Its clients now reach the new one.
    fn mend(&self) {
        self.is_cut.store(false, Ordering::Relaxed);
        let [new, _, old] = &self.nodes[..] else { panic!("three nodes") };
        old.for_servers.mend();
        old.for_clients.mend();
        if self.sentinel.is_none() {
            old.follow(new);
        }
        until(PATIENCE_MS, || old.is_replica());
        {
            let mut map = self.map.write().unwrap();
            map.near = 1 - map.near;
            map.near_url = new.server.url("");
            map.far_url = new.far_url();
        }
        self.until_whole();
    }
}

impl Fault for Split {
    fn site(&self) -> Site {
        let map = self.map.clone();
        let url_of = Box::new(move |_: &str, actor: u32| {
            let map = map.read().unwrap();
            let is_near = actor % 2 == map.near;
            if is_near { map.near_url.clone() } else { map.far_url.clone() }
        });
        let (words, is_cut) = (self.words, self.is_cut.clone());
        Site { url_of, waits_for_replica: true, lease_ms: LEASE_MS, words, is_cut }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        let is_told = blow.rng.u8(..3) == 0;
        blow.marked(Mark::Failover, |blow| {
            blow.marked(Mark::Cut, |_| self.cut(is_told));
            let cut_ns = now_ns();
            blow.rest(1500);
            self.promote();
            let stops_ns = cut_ns + ns(self.goes_on_ms);
            let ends_ns = stops_ns + ns(LEASE_MS + LONGER_MS);
            Stop::default().within(ms(ends_ns.saturating_sub(now_ns())) as u64);
            let mark = Mark::Shut(Some(self.map.read().unwrap().near));
            blow.events.push(Event { mark, from_ns: stops_ns, to_ns: now_ns() });
            self.mend();
        });
    }

    /// The last checks restart the primary, which has no replica for a moment then.
    fn heal(&mut self) {
        // Sentinel would take the restart for a failure.
        self.sentinel = None;
        for node in &self.nodes {
            node.server.client().ask("CONFIG SET min-replicas-to-write 0");
            node.server.configure("min-replicas-to-write", "0");
        }
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        let (primary, replicas) = self.nodes.split_at_mut(1);
        let replicas = replicas.iter().map(|node| &node.server).collect();
        vec![Shard { primary: &mut primary[0].server, replicas }]
    }
}
