//! A real Redis Cluster on loopback: each node is a [`Server`] of its own, and is removed when the
//! test ends.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use redis::Value;

use crate::port::Port;
use crate::program::cli_program;
use crate::{Client, Server, Version, integer, items, text, until};

/// The longest time until the cluster is complete: a node waits two seconds before it first says
/// so, and longer under load.
const FORM_MS_MAX: u64 = 60_000;
/// The nodes of one cluster.
pub struct Cluster {
    /// The nodes, by their numbers.
    pub nodes: Vec<Server>,
    /// The port at which each node talks to the others.
    bus_ports: Vec<Port>,
}

impl Cluster {
    /// Two primaries without replicas: node 0 has the lower half of the slots, node 1 the upper.
    #[track_caller]
    pub fn of_two() -> Cluster {
        Cluster::of_two_with(&[])
    }

    /// The same with settings of `redis.conf`: name, value, name, value. A later one counts.
    #[track_caller]
    pub fn of_two_with(settings: &[&str]) -> Cluster {
        let cluster = Cluster::apart(2, settings);
        let (mut low, mut high) = (cluster.client(0), cluster.client(1));
        low.ask("CLUSTER ADDSLOTSRANGE 0 8191");
        high.ask("CLUSTER ADDSLOTSRANGE 8192 16383");
        // Otherwise, both begin with the same epoch, and settle it while the test runs.
        high.ask("CLUSTER SET-CONFIG-EPOCH 2");
        let (port, bus_port) = (cluster.nodes[0].tcp_port(), cluster.bus_ports[0].number);
        high.ask(&format!("CLUSTER MEET 127.0.0.1 {port} {bus_port}"));
        cluster.until_all_agree();
        cluster
    }

    /// Three primaries (nodes 0 to 2) and a replica of each, as `redis-cli --cluster create` makes
    /// them. A primary that does not answer for `timeout_ms` is replaced.
    #[track_caller]
    pub fn of_six(timeout_ms: u32, settings: &[&str]) -> Cluster {
        let timeout_ms = timeout_ms.to_string();
        let mut all = vec!["cluster-node-timeout", &timeout_ms];
        all.extend(["cluster-replica-validity-factor", "0"]);
        all.extend(settings);
        let cluster = Cluster::created(6, 1, &all);
        until(FORM_MS_MAX, || {
            let link = |node| cluster.client(node).info("replication", "master_link_status");
            (3..6).all(|node| link(node).as_deref() == Some("up"))
        });
        cluster
    }

    /// Three primaries without replicas, each with a third of the slots.
    #[track_caller]
    pub fn of_three() -> Cluster {
        Cluster::created(3, 0, &[])
    }

    #[track_caller]
    fn created(nodes: usize, replicas: usize, settings: &[&str]) -> Cluster {
        let cluster = Cluster::apart(nodes, settings);
        let ports = cluster.nodes.iter().zip(&cluster.bus_ports);
        let addresses = ports.map(|(node, bus)| {
            let (port, bus_port) = (node.tcp_port(), bus.number);
            format!("127.0.0.1:{port}@{bus_port}")
        });
        let addresses = addresses.collect::<Vec<String>>().join(" ");
        cluster.cli(&format!("create {addresses} --cluster-replicas {replicas} --cluster-yes"));
        cluster.until_all_agree();
        cluster
    }

    /// The output of `redis-cli --cluster` with these words; it must succeed.
    #[track_caller]
    pub fn cli(&self, words: &str) -> String {
        let mut command = Command::new(cli_program());
        let output = command.arg("--cluster").args(words.split_whitespace()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "--cluster {words}: {said}");
        said
    }

    /// The server of this node.
    pub fn node(&self, node: usize) -> &Server {
        &self.nodes[node]
    }

    /// The server of this node, to kill and to start again.
    pub fn node_mut(&mut self, node: usize) -> &mut Server {
        &mut self.nodes[node]
    }

    /// A new connection to this node.
    #[track_caller]
    pub fn client(&self, node: usize) -> Client {
        self.nodes[node].client()
    }

    /// The cluster's name for this node.
    #[track_caller]
    pub fn id(&self, node: usize) -> String {
        self.client(node).text("CLUSTER MYID")
    }

    /// The node at `host:port`, as redirections name it.
    #[track_caller]
    pub fn node_at(&self, address: &str) -> usize {
        let is_there = |node: &Server| address.ends_with(&format!(":{}", node.tcp_port()));
        let found = self.nodes.iter().position(is_there);
        found.unwrap_or_else(|| panic!("no node is at {address}"))
    }

    /// The primary that serves this slot, as node `asked` sees it.
    #[track_caller]
    pub fn owner_of(&self, slot: u16, asked: usize) -> Option<usize> {
        let ranges = self.client(asked).ask("CLUSTER SLOTS");
        let has_slot = |range: &&Value| {
            let range = items(range);
            (integer(&range[0])..=integer(&range[1])).contains(&i64::from(slot))
        };
        let range = items(&ranges).iter().find(has_slot)?;
        let port = integer(&items(&items(range)[2])[1]);
        self.nodes.iter().position(|node| i64::from(node.tcp_port()) == port)
    }

    /// The replica of this primary.
    #[track_caller]
    pub fn replica_of(&self, primary: usize) -> usize {
        let port = self.nodes[primary].tcp_port().to_string();
        let follows = |node: &usize| {
            let found = self.client(*node).info("replication", "master_port");
            found.as_deref() == Some(&port)
        };
        let found = (0..self.nodes.len()).find(follows);
        found.unwrap_or_else(|| panic!("node {primary} has no replica"))
    }

    /// The first step of moving a slot: both nodes know, no key has moved.
    #[track_caller]
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (self.id(from), self.id(to));
        self.client(to).ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
        self.client(from).ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
    }

    /// The second step: moves the keys of the slot.
    #[track_caller]
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let mut source = self.client(from);
        loop {
            let keys = source.ask(&format!("CLUSTER GETKEYSINSLOT {slot} 100"));
            let keys: Vec<String> = items(&keys).iter().map(text).collect();
            if keys.is_empty() {
                return;
            }
            self.move_key(&keys.join(" "), from, to);
        }
    }

    /// Moves one key, or several with spaces between.
    #[track_caller]
    pub fn move_key(&self, keys: &str, from: usize, to: usize) {
        let port = self.nodes[to].tcp_port();
        let line = format!("MIGRATE 127.0.0.1 {port}  0 20000 KEYS {keys}");
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.client(from).ask_bytes(&words);
    }

    /// The last step: assigns the slot to the target.
    #[track_caller]
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let target = self.id(to);
        for node in [to, from] {
            self.client(node).ask(&format!("CLUSTER SETSLOT {slot} NODE {target}"));
        }
        // Moves that overtake the news of each other would leave a slot that nobody serves.
        self.until_all_agree();
        assert_eq!(self.owner_of(slot, from), Some(to));
    }

    /// Moves a slot key by key, as every server can.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_move(slot, from, to);
    }

    /// Moves a slot in one step, if the server can: Valkey since 9.0, Redis since 8.4. False if it
    /// cannot; then nothing has moved.
    #[track_caller]
    pub fn move_slot_at_once(&self, slot: u16, from: usize, to: usize) -> bool {
        if !self.begin_move_at_once(slot, from, to) {
            return false;
        }
        until(FORM_MS_MAX, || self.owner_of(slot, to) == Some(to));
        self.until_all_agree();
        true
    }

    /// Asks for that move, and does not wait for it.
    #[track_caller]
    pub fn begin_move_at_once(&self, slot: u16, from: usize, to: usize) -> bool {
        match self.nodes[from].version() {
            Version::Valkey(..) if self.nodes[from].version() >= Version::Valkey(9, 0) => {
                let target = self.id(to);
                let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {target}");
                self.client(from).ask(&line);
                true
            }
            Version::Redis(major, minor) if (major, minor) >= (8, 4) => {
                self.client(to).ask(&format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
                true
            }
            _ => false,
        }
    }

    /// Waits until every node that runs sees all slots served, by the same primaries with the same
    /// replicas.
    #[track_caller]
    pub fn until_all_agree(&self) {
        until(FORM_MS_MAX, || {
            let running = self.nodes.iter().filter(|node| node.is_running());
            let maps: Vec<_> = running.map(|node| map_of(&mut node.client())).collect();
            let Some(first) = &maps[0] else { return false };
            let all: BTreeSet<_> = first.1.values().flatten().collect();
            all.len() == maps.len() && maps.iter().all(|map| map.as_ref() == Some(first))
        });
    }

    /// One node that knows of no other.
    #[track_caller]
    pub fn node_alone() -> Server {
        Cluster::apart(1, &[]).nodes.remove(0)
    }

    /// Nodes that do not know of each other. The ports at which they talk to each other are set,
    /// because the server's choice, its port plus 10 000, may be in use by somebody's outgoing
    /// connection.
    #[track_caller]
    fn apart(count: usize, settings: &[&str]) -> Cluster {
        let bus_ports: Vec<Port> = (0..count).map(|_| Port::free()).collect();
        let node = |bus_port: &Port| {
            let bus_port = bus_port.number.to_string();
            let mut all = vec!["cluster-enabled", "yes", "cluster-port", &bus_port];
            all.extend(settings);
            Server::primary(&all)
        };
        Cluster { nodes: bus_ports.iter().map(node).collect(), bus_ports }
    }
}

/// The node's epoch, and for the first slot of each range the ports of the nodes that have it;
/// `None` while the node sees a slot that nobody serves, or loads its data and refuses to say.
fn map_of(client: &mut Client) -> Option<(String, BTreeMap<i64, BTreeSet<i64>>)> {
    let page = text(&client.attempt("CLUSTER INFO").ok()?);
    if !page.contains("cluster_state:ok") || !page.contains("cluster_slots_ok:16384") {
        return None;
    }
    let epoch = page.lines().find(|line| line.starts_with("cluster_current_epoch:"))?;
    let ranges = client.ask("CLUSTER SLOTS");
    let port = |node: &Value| integer(&items(node)[1]);
    let entry = |range| {
        let range = items(range);
        (integer(&range[0]), range[2..].iter().map(port).collect())
    };
    Some((epoch.to_owned(), items(&ranges).iter().map(entry).collect()))
}
