//! A primary, two replicas and Sentinel, each in a network namespace of its own. Sentinel loses the
//! primary, in one direction or both, and so may replicas. The primary lives on and keeps all its
//! clients: these use unix sockets, which no namespace separates. In every other round, one replica
//! stays with it, and the other one takes over: what a single replica has acknowledged is lost.

use fastrand::Rng;

use super::net::Net;
use super::stage::{Fall, Servers, chosen_by, until_acked};
use super::variants::{Trouble, Variant};
use crate::clock::{Stop, ms, now_ns};
use crate::faults::failover::{sentinel_under, until_known_to};
use rlock_testkit::{Server, until};

const PATIENCE_MS: u64 = 30_000;
/// How long the old primary goes on after another server has taken over.
const BOTH_MS_MAX: u64 = 300;

pub struct Apart {
    /// The servers; each is in the namespace of its index, and Sentinel in the one after them.
    nodes: Vec<Server>,
    sentinel: Option<Server>,
    primary: usize,
    /// Whether a replica stays with the primary in this round.
    is_split: bool,
    /// The last field, because it must outlive the servers.
    net: Net,
}

/// Which direction between the primary and another place is lost.
#[derive(Debug, Clone, Copy)]
enum Lost {
    Nothing,
    ToPrimary,
    FromPrimary,
    Both,
}

const LOSSES: [Lost; 3] = [Lost::ToPrimary, Lost::FromPrimary, Lost::Both];

impl Apart {
    pub fn of(variant: &Variant) -> Result<Apart, String> {
        let net = Net::of(variant.replicas + 2)?;
        let reachable = ["bind", "0.0.0.0", "protected-mode", "no", "repl-diskless-sync", "no"];
        let settings = [&reachable[..], &["notify-keyspace-events", "KEd"]].concat();
        let node =
            |place| Server::under(&net.within(place).each_ref().map(String::as_str), &settings);
        let nodes = (0..=variant.replicas).map(node).collect();
        Ok(Apart { nodes, sentinel: None, primary: 0, is_split: false, net })
    }

    fn replicas(&self) -> impl Iterator<Item = usize> {
        let primary = self.primary;
        (0..self.nodes.len()).filter(move |place| *place != primary)
    }

    /// One replica and the primary on one side; Sentinel and the other replica on the other one.
    fn split(&self, rng: &mut Rng) -> String {
        let mut replicas: Vec<usize> = self.replicas().collect();
        rng.shuffle(&mut replicas);
        let [stays, next] = replicas[..] else { panic!("{replicas:?}") };
        for near in [self.primary, stays] {
            for far in [next, self.nodes.len()] {
                self.net.lose(near, far);
                self.net.lose(far, near);
            }
        }
        format!("replica {stays} stays with the primary")
    }

    fn lose(&self, lost: Lost, place: usize) {
        if matches!(lost, Lost::ToPrimary | Lost::Both) {
            self.net.lose(place, self.primary);
        }
        if matches!(lost, Lost::FromPrimary | Lost::Both) {
            self.net.lose(self.primary, place);
        }
    }

    /// Sentinel always loses the primary, or it would promote nobody.
    fn cut(&self, rng: &mut Rng) -> String {
        let mut said = String::new();
        for place in self.replicas() {
            let lost = *rng.choice(&[&LOSSES[..], &[Lost::Nothing]].concat()).unwrap();
            self.lose(lost, place);
            said += &format!("replica {place}: {lost:?}, ");
        }
        let lost = *rng.choice(&LOSSES).unwrap();
        self.lose(lost, self.nodes.len());
        said + &format!("Sentinel: {lost:?}")
    }
}

impl Servers for Apart {
    fn primary(&self) -> &Server {
        &self.nodes[self.primary]
    }

    fn door(&self) -> String {
        panic!("other locks cannot reach these namespaces")
    }

    fn tag(&self) -> &str {
        "key"
    }

    fn make_whole(&mut self) {
        self.is_split = !self.is_split;
        // What the last Sentinel had sent would arrive now: the next one would wait for its vote.
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            node.client().ask("CLIENT KILL TYPE normal");
        }
        self.net.heal();
        self.nodes.iter_mut().filter(|node| !node.is_running()).for_each(Server::start_again);
        let mut client = self.primary().client();
        client.ask("FLUSHALL");
        let address = format!("{} {}", self.net.address(self.primary), self.primary().tcp_port());
        for replica in self.replicas() {
            self.nodes[replica].client().ask(&format!("REPLICAOF {address}"));
        }
        until_acked(&mut client, self.nodes.len() - 1, "whole");
        let within = self.net.within(self.nodes.len());
        let sentinel = sentinel_under(&within.each_ref().map(String::as_str), &address);
        until_known_to(&sentinel, self.nodes.len() - 1);
        self.sentinel = Some(sentinel);
    }

    fn trouble(&mut self, _: Trouble, _: &mut Rng) {}

    fn fall(&mut self, rng: &mut Rng) -> Fall {
        let begun_ns = now_ns();
        let cut = if self.is_split { self.split(rng) } else { self.cut(rng) };
        let next = chosen_by(self.sentinel.as_ref().unwrap(), &self.nodes, self.primary);
        let mut client = self.nodes[next].client();
        until(PATIENCE_MS, || client.info("replication", "role").as_deref() == Some("master"));
        let offset = |place: usize| {
            self.nodes[place].client().info_number("replication", "master_repl_offset")
        };
        let offsets = self.replicas().map(offset).collect();
        // Both are primaries.
        Stop::default().within(rng.u64(..=BOTH_MS_MAX));
        let (at_ns, cut_ms) = (now_ns(), ms(now_ns() - begun_ns) as u64);
        self.nodes[self.primary].kill_9();
        // Sentinel would take the rest of the round for a failure.
        self.sentinel = None;
        self.primary = next;
        Fall { cut, cut_ms, at_ns, offsets }
    }
}
