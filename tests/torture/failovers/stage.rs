//! A primary and its replicas, with a proxy to each of them; the primary's death, and the failover.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use super::skew::Clock;
use super::variants::{Trouble, Variant, Way};
use crate::clock::{Stop, ms, now_ns};
use crate::faults::failover::{primary_by, sentinel_of, until_known_to};
use crate::faults::proxy::Proxy;
use fastrand::Rng;
use rlock_testkit::{Client, Server, until};

const PATIENCE_MS: u64 = 30_000;
/// How long a replica loads a key during a resync, in microseconds.
const LOAD_US: u32 = 20;

/// How the replicas lose the primary before it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// They lose it only when it dies.
    No,
    /// Nothing passes anymore, and neither side is informed.
    Cables,
    /// The replicas are stopped, and their connections closed at the primary.
    Stopped,
}

/// Servers, one of which dies and is replaced by another one.
pub trait Servers {
    fn primary(&self) -> &Server;
    /// How clients find the primary, for `Rivals::connect`.
    fn door(&self) -> String;
    /// The prefix of the keys that this primary serves.
    fn tag(&self) -> &str;
    /// The primary's clock: this machine's, unless clocks differ.
    fn clock(&self) -> Arc<Clock> {
        Arc::default()
    }
    /// Waits until all servers are back and in sync, without locks.
    fn make_whole(&mut self);
    /// Briefly disturbs requests that wait for acknowledgments.
    fn trouble(&mut self, trouble: Trouble, rng: &mut Rng);
    /// Takes the primary down; when this returns, a replica has taken over.
    fn fall(&mut self, rng: &mut Rng) -> Fall;
}

/// How the primary went down.
pub struct Fall {
    /// How it was cut off.
    pub cut: String,
    /// The time from the cut to its death.
    pub cut_ms: u64,
    /// When the handover was requested, or it was killed.
    pub at_ns: u64,
    /// The offset of each replica.
    pub offsets: Vec<i64>,
}

impl fmt::Display for Fall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fall { cut, cut_ms, offsets, .. } = self;
        write!(f, "cut {cut} {cut_ms} ms before the end, replicas had {offsets:?}")
    }
}

pub struct Stage {
    /// The servers; the first is the primary.
    pub nodes: Vec<Server>,
    /// Each replica's link to the primary.
    cables: Vec<Proxy>,
    sentinel: Option<Server>,
    way: Way,
    cut_ms_max: u64,
}

impl Stage {
    pub fn of(variant: &Variant) -> Stage {
        Stage::with(variant, Server::primary)
    }

    /// With servers that are started like this.
    pub fn with(variant: &Variant, mut server: impl FnMut(&[&str]) -> Server) -> Stage {
        // Clients with tickets listen for their turns.
        let basic = ["notify-keyspace-events", "KEd", "repl-backlog-size", "16mb"];
        // With a delay, the stream would begin up to a second after the resync.
        let soon = ["repl-diskless-sync", "no"];
        let settings = [&basic, &soon[..], variant.settings].concat();
        let nodes = (0..=variant.replicas).map(|_| server(&settings)).collect();
        let Variant { way, cut_ms_max, .. } = *variant;
        Stage { nodes, cables: Vec::new(), sentinel: None, way, cut_ms_max }
    }

    pub fn start_all(&mut self) {
        let down = self.nodes.iter_mut().filter(|node| !node.is_running());
        down.for_each(Server::start_again);
    }

    /// Makes one replica forget its primary, so that it needs a full resync.
    fn resync(&self, rng: &mut Rng) {
        let last = self.nodes.len() - 1;
        let (replica, port) = (&self.nodes[last], self.cables[last - 1].port());
        let mut client = replica.client();
        client.attempt(&format!("CONFIG SET key-load-delay {LOAD_US}")).ok();
        client.ask("REPLICAOF NO ONE");
        client.ask(&format!("REPLICAOF 127.0.0.1 {port}"));
        if last == 1 {
            // An empty replica cannot take over.
            until(PATIENCE_MS, || has_link(&mut client));
        }
        Stop::default().within(rng.u64(20..150));
        client.attempt("CONFIG SET key-load-delay 0").ok();
    }

    /// Cuts the replicas off, at once or one after the other, while the primary goes on for a
    /// while.
    fn cut(&self, rng: &mut Rng) -> (Cut, u64) {
        let cut = match rng.u8(..6) {
            0 => Cut::No,
            1 | 2 => Cut::Stopped,
            _ if self.cables.is_empty() => Cut::Stopped,
            _ => Cut::Cables,
        };
        // A stopped replica cannot take over, and what is sent to it is lost.
        let cut = if self.way == Way::Command && cut == Cut::Stopped { Cut::Cables } else { cut };
        let begun_ns = now_ns();
        let stop = Stop::default();
        match cut {
            Cut::No => return (cut, 0),
            Cut::Cables => {
                let mut cables: Vec<&Proxy> = self.cables.iter().collect();
                rng.shuffle(&mut cables);
                cables[0].cut();
                for cable in &cables[1..] {
                    stop.within(rng.u64(..self.cut_ms_max / 2));
                    cable.cut();
                }
            }
            Cut::Stopped => {
                self.nodes[1..].iter().for_each(Server::freeze);
                self.primary().client().ask("CLIENT KILL TYPE replica");
            }
        }
        stop.within(rng.u64(..=self.cut_ms_max));
        (cut, ms(now_ns() - begun_ns) as u64)
    }

    /// The primary itself hands over, and waits for its replica only if nothing is cut.
    fn command(&self, is_forced: bool) {
        let port = self.nodes[1].tcp_port();
        let how =
            if is_forced { format!("TO 127.0.0.1 {port} TIMEOUT 30 FORCE") } else { String::new() };
        self.primary().client().ask(&format!("FAILOVER {how}"));
    }

    fn promote(&mut self, offsets: &[i64]) {
        let mut places: Vec<usize> = (1..self.nodes.len()).collect();
        places.sort_by_key(|place| Reverse(offsets[place - 1]));
        let next = match self.way {
            Way::Smallest => places[places.len() - 1],
            _ => places[0],
        };
        match self.way {
            Way::Greatest | Way::Smallest => {
                drop(self.nodes[next].client().ask("REPLICAOF NO ONE"))
            }
            Way::Disk => {
                self.nodes[next].kill_9();
                self.nodes[next].start_again();
            }
            Way::Sentinel | Way::Command | Way::Cluster | Way::Apart => {}
        }
        let next = match &self.sentinel {
            Some(sentinel) => chosen_by(sentinel, &self.nodes, 0),
            None => next,
        };
        let mut client = self.nodes[next].client();
        until(PATIENCE_MS, || client.info("replication", "role").as_deref() == Some("master"));
        if self.way == Way::Command {
            let mut old = self.nodes[0].client();
            let is_done = |state: Option<String>| state.as_deref() == Some("no-failover");
            until(PATIENCE_MS, || is_done(old.info("replication", "master_failover_state")));
        }
        // Sentinel would take the rest of the round for a failure.
        self.sentinel = None;
        self.nodes.swap(0, next);
    }
}

impl Servers for Stage {
    fn primary(&self) -> &Server {
        &self.nodes[0]
    }

    fn door(&self) -> String {
        // Other locks take part in failovers by Sentinel and by a cluster only.
        format!("sentinel {}", self.sentinel.as_ref().unwrap().tcp_port())
    }

    fn tag(&self) -> &str {
        "key"
    }

    fn make_whole(&mut self) {
        self.start_all();
        let (primary, replicas) = self.nodes.split_at(1);
        let mut client = primary[0].client();
        client.ask("FLUSHALL");
        let mut cables = Vec::new();
        for replica in replicas {
            // Sentinel would repair links that do not lead straight to the primary.
            let mut port = primary[0].tcp_port();
            if self.way != Way::Sentinel {
                cables.push(Proxy::of(port));
                port = cables[cables.len() - 1].port();
            }
            replica.client().ask(&format!("REPLICAOF 127.0.0.1 {port}"));
        }
        self.cables = cables;
        until_acked(&mut client, replicas.len(), "whole");
        if self.way == Way::Disk {
            replicas.iter().for_each(until_file_is_whole);
        }
        if self.way == Way::Sentinel {
            let sentinel = sentinel_of(primary[0].tcp_port());
            until_known_to(&sentinel, replicas.len());
            self.sentinel = Some(sentinel);
        }
    }

    fn trouble(&mut self, trouble: Trouble, rng: &mut Rng) {
        let stop = Stop::default();
        match trouble {
            Trouble::Calm | Trouble::Clocks => {}
            Trouble::Stop => {
                let replica = &self.nodes[rng.usize(1..self.nodes.len())];
                replica.freeze();
                stop.within(rng.u64(10..150));
                replica.thaw();
                stop.within(rng.u64(0..20));
            }
            Trouble::Resync => self.resync(rng),
            Trouble::Pause => {
                let (ms, what) = (rng.u32(10..150), rng.choice(&["WRITE", "ALL"]).unwrap());
                self.primary().client().ask(&format!("CLIENT PAUSE {ms} {what}"));
                stop.within(rng.u64(0..200));
            }
            Trouble::Clients => {
                let mut client = self.primary().client();
                for _ in 0..30 {
                    end_a_wait(&mut client, rng);
                    stop.within(rng.u64(0..6));
                }
            }
        }
    }

    fn fall(&mut self, rng: &mut Rng) -> Fall {
        let (cut, cut_ms) = self.cut(rng);
        let at_ns = now_ns();
        let is_forced = cut != Cut::No;
        if self.way == Way::Command {
            self.command(is_forced);
        } else {
            self.nodes[0].kill_9();
        }
        if cut == Cut::Stopped {
            self.nodes[1..].iter().for_each(Server::thaw);
        }
        let offsets = match self.way {
            // There is no choice.
            Way::Disk | Way::Command => vec![0],
            _ => self.nodes[1..].iter().map(offset).collect(),
        };
        self.promote(&offsets);
        Fall { cut: format!("{cut:?}"), cut_ms, at_ns, offsets }
    }
}

/// Ends the wait of any connection except a session's.
fn end_a_wait(client: &mut Client, rng: &mut Rng) {
    let page = client.text("CLIENT LIST TYPE normal");
    let is_blocked = |line: &&str| {
        let flags = line.split(' ').find_map(|field| field.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('b')) && !line.contains(" name=session")
    };
    let blocked = page.lines().filter(is_blocked);
    let ids = blocked.filter_map(|line| line.split(' ').find_map(|f| f.strip_prefix("id=")));
    let Some(id) = rng.choice(ids.collect::<Vec<_>>()) else { return };
    let how = if rng.bool() { "KILL ID" } else { "UNBLOCK" };
    // It may have closed by now.
    client.attempt(&format!("CLIENT {how} {id}")).ok();
}

/// Waits until Sentinel sends clients to another node than this primary. Returns its index.
pub fn chosen_by(sentinel: &Server, nodes: &[Server], primary: usize) -> usize {
    let mut client = sentinel.client();
    let mut chosen = primary;
    until(PATIENCE_MS, || {
        let port = primary_by(&mut client);
        chosen = nodes.iter().position(|node| node.tcp_port().to_string() == port).unwrap();
        chosen != primary
    });
    chosen
}

/// Waits until this many replicas have acknowledged a write at this key, and everything before it.
pub fn until_acked(client: &mut Client, replicas: usize, key: &str) {
    until(PATIENCE_MS, || {
        client.ask(&format!("SET {key} 1"));
        // What was written before the first replica connected has no offset.
        if client.info_number("replication", "master_repl_offset") == 0 {
            return false;
        }
        client.number(&format!("WAIT {replicas} 500")) == replicas as i64
    });
}

pub fn has_link(client: &mut Client) -> bool {
    client.info("replication", "master_link_status").as_deref() == Some("up")
}

pub fn offset(replica: &Server) -> i64 {
    replica.client().info_number("replication", "slave_repl_offset")
}

/// After a resync, the append-only file is rewritten; until then, it lacks the later changes.
fn until_file_is_whole(replica: &Server) {
    let mut client = replica.client();
    until(PATIENCE_MS, || {
        let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
        fields.iter().all(|field| client.info_number("persistence", field) == 0)
    });
}
