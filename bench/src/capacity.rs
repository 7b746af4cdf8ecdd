//! Figures that `docs/capacity.md` calculates with and that no other measurement gives: sessions,
//! the network, and a Cluster whose nodes are all busy.

use std::thread;
use std::time::Duration;

use crate::Profile;
use crate::book::Book;
use crate::crowd::connected;
use crate::limits::IDLE;
use crate::memory::used_memory;
use crate::pair::Pairs;
use crate::rivals::{self, Rival, owner};
use crate::stage::{CpuClock, may_open, server, server_for};
use rlock_testkit::{Client, Cluster, Server};

const SESSIONS: &str = "capacity: sessions";
const NETWORK: &str = "capacity: bytes on the network per pair, replies and requests";
const CLUSTER: &str = "capacity: a Cluster of three, 50 in the pipeline of 10 connections each";
const PAIRS: u64 = 10_000;
const BUSY: Duration = Duration::from_secs(3);

/// Measures sessions, the network and the Cluster.
pub fn measure(book: &mut Book, profile: Profile) {
    let connections = if profile == Profile::Quick { 1000 } else { 10_000 };
    if may_open(connections) {
        sessions(book, connections);
    } else {
        book.miss(format!("{connections} sessions: `ulimit -n` is too low"));
    }
    network(book);
    cluster(book);
}

/// The memory of each session, and the cost of its renewals: the server renews it every two
/// seconds, a third of its lease.
fn sessions(book: &mut Book, count: usize) {
    let server = server_for(count);
    let mut admin = server.client();
    let before = used_memory(&mut admin);
    let mut line = connected(&server, count);
    for holder in &mut line {
        holder.ask("PING");
    }
    thread::sleep(IDLE);
    let connected = used_memory(&mut admin);
    for (number, holder) in line.iter_mut().enumerate() {
        let owner = owner(number);
        holder.ask(&format!("RLOCK.ACQUIRE lock:{number:09} {owner} LEASE 6000 SESSION"));
    }
    thread::sleep(IDLE);
    let each = |bytes: i64| bytes as f64 / count as f64;
    book.put_value(SESSIONS, "a connection", "bytes", each(connected - before));
    let held = used_memory(&mut admin) - connected;
    book.put_value(SESSIONS, "its session and lock", "bytes", each(held));
    let cpu = CpuClock::of(&mut admin);
    let begin_ns = cpu.now_ns();
    thread::sleep(Duration::from_secs(6));
    let us = (cpu.now_ns() - begin_ns) as f64 / 1e3 / (3 * count) as f64;
    book.put_value(SESSIONS, "server CPU per renewal, with the server's own work", "µs", us);
}

fn network(book: &mut Book) {
    let server = server(&[]);
    let replica = Server::replica_of(&server, &[]);
    let mut admin = server.client();
    let rivals = rivals::all(&mut admin, server.version());
    let mut worker = server.client();
    let asked = [rivals::RLOCK, rivals::SET_DEL];
    for rival in rivals.iter().filter(|rival| asked.contains(&rival.name)) {
        let lines = rival.lines_on("lock:000000001");
        let read = |admin: &mut Client| {
            let fields = ["total_net_input_bytes", "total_net_output_bytes", "repl"];
            fields.map(|field| match field {
                "repl" => admin.info_number("replication", "master_repl_offset"),
                field => admin.info_number("stats", field),
            })
        };
        replica.until_in_sync_with(&server);
        // Ask twice: the difference is the cost of asking itself.
        let (first, second) = (read(&mut admin), read(&mut admin));
        for _ in 0..PAIRS {
            lines.iter().for_each(|(line, _)| drop(worker.ask(line)));
        }
        replica.until_in_sync_with(&server);
        let third = read(&mut admin);
        let names = ["from the client", "to the client", "to each replica"];
        let bytes = |number: usize| {
            let own = second[number] - first[number];
            ((third[number] - second[number] - own) as f64 / PAIRS as f64).round()
        };
        // The server counts bytes sent to replicas as output, too.
        let figures = [bytes(0), bytes(1) - bytes(2), bytes(2)];
        for (name, figure) in names.into_iter().zip(figures) {
            book.put_value(NETWORK, rival.name, name, figure);
        }
    }
}

/// All nodes of a Cluster are busy at once. For comparison, one server outside the Cluster is busy
/// alone.
fn cluster(book: &mut Book) {
    let alone = server(&[]);
    let mut admin = alone.client();
    let rivals = rivals::all(&mut admin, alone.version());
    let pair = rivals.iter().find(|rival| rival.name == rivals::RLOCK).unwrap();
    let (us, rate) = busy(&alone, pair, "lock");
    book.put_value(CLUSTER, "one server alone", "CPU µs per pair", us);
    book.put_value(CLUSTER, "one server alone", "pairs/s", rate);
    drop(alone);
    let cluster = Cluster::of_three();
    let tags: Vec<String> = (0..3).map(|node| tag_of(&cluster, node)).collect();
    let all: Vec<(f64, f64)> = thread::scope(|scope| {
        let nodes = cluster.nodes.iter().zip(&tags);
        let workers = nodes.map(|(node, tag)| scope.spawn(move || busy(node, pair, tag)));
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for (number, (us, rate)) in all.iter().enumerate() {
        let row = format!("node {}", number + 1);
        book.put_value(CLUSTER, &row, "CPU µs per pair", *us);
        book.put_value(CLUSTER, &row, "pairs/s", *rate);
    }
}

/// Server CPU per pair in microseconds, and pairs per second.
fn busy(server: &Server, pair: &Rival, begin: &str) -> (f64, f64) {
    let cpu = CpuClock::of(&mut server.client());
    Pairs::of(pair, begin, 50, 10).measure(server.tcp_port(), &cpu, BUSY)
}

/// A hash tag whose locks belong to this node.
fn tag_of(cluster: &Cluster, node: usize) -> String {
    let mut client = cluster.client(0);
    let mut tags = (0..).map(|number| format!("{{{number}}}"));
    let is_there = |tag: &String| {
        let slot = u16::try_from(client.number(&format!("CLUSTER KEYSLOT {tag}"))).unwrap();
        cluster.owner_of(slot, 0) == Some(node)
    };
    tags.find(is_there).unwrap()
}
