//! A real server with the module, for one test.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::env;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection};
use rustix::process::Pid;

#[path = "../../src/testing.rs"]
mod testing;

/// Killed, and its folder removed, when it is dropped.
pub struct Server {
    server: testing::Server,
    pub port: u16,
}

impl Server {
    /// Starts a server with the module and these arguments.
    pub fn start(words: &[&str]) -> Server {
        let module = env::var("RLOCK_MODULE").expect("RLOCK_MODULE says which module");
        Server::bare(&[words, &["--loadmodule", &module]].concat())
    }

    /// Without the module.
    pub fn bare(words: &[&str]) -> Server {
        let (program, port) = (testing::program().unwrap(), free_port());
        let all = [&["--notify-keyspace-events", "KEd"], words].concat();
        let all = all.iter().map(Into::into).collect();
        Server { server: testing::Server::run(program, port, all).unwrap(), port }
    }

    pub fn kill(&mut self) {
        self.server.kill().unwrap();
    }

    /// Starts what was killed.
    pub fn again(&mut self) {
        self.server.again().unwrap();
        until("the server is up", || {
            self.try_connect().is_some_and(|mut connection| {
                redis::cmd("PING").query::<String>(&mut connection).is_ok()
            })
        });
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.server.id().cast_signed()).unwrap()
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    fn try_connect(&self) -> Option<Connection> {
        redis::Client::open(self.url()).unwrap().get_connection().ok()
    }

    pub fn connect(&self) -> Connection {
        self.try_connect().unwrap()
    }

    pub fn ask<T: redis::FromRedisValue>(&self, line: &str) -> T {
        command(line).query(&mut self.connect()).unwrap()
    }

    /// Acquires locks with these commands.
    pub fn acquire_all(&self, lines: &[&str]) {
        for line in lines {
            self.ask::<u64>(line);
        }
    }

    /// Sends a command and does not wait for its reply.
    pub fn send(&self, line: &str) -> Connection {
        let mut connection = self.connect();
        connection.send_packed_command(&command(line).get_packed_command()).unwrap();
        connection
    }
}

/// A Cluster: one server for each range of slots, such as "0 16383"; an empty range means that it
/// serves no slots.
pub fn cluster(ranges: &[&str]) -> Vec<Server> {
    // During a test, a killed node is not detected as down.
    let words = ["--cluster-enabled", "yes", "--cluster-node-timeout", "60000"];
    let servers: Vec<Server> = ranges.iter().map(|_| Server::start(&words)).collect();
    let first = servers.first().unwrap().port;
    for (server, range) in servers.iter().zip(ranges) {
        if !range.is_empty() {
            let () = server.ask(&format!("CLUSTER ADDSLOTSRANGE {range}"));
        }
        let () = server.ask(&format!("CLUSTER MEET 127.0.0.1 {first}"));
    }
    let knows_all = |server: &Server| {
        let (info, nodes): (String, String) =
            (server.ask("CLUSTER INFO"), server.ask("CLUSTER NODES"));
        let is_known = |other: &Server| nodes.contains(&other.ask::<String>("CLUSTER MYID"));
        info.contains("cluster_state:ok")
            && info.contains("cluster_slots_ok:16384")
            && servers.iter().all(is_known)
    };
    until("they know each other", || servers.iter().all(knows_all));
    servers
}

pub fn command(line: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(line.split(' ').collect::<Vec<_>>());
    command
}

pub fn free_port() -> u16 {
    loop {
        // A Cluster's bus has a port 10 000 higher: both are below 32 768, where the ports of
        // outgoing connections begin.
        let port = 10_000 + u16::try_from(std::process::id() % 120).unwrap() * 100 + fresh();
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

fn fresh() -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed) % 100
}

pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "not within 20 seconds: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_held(server: &Server, key: &str) -> bool {
    server.ask::<bool>(&format!("EXISTS {key}"))
}

/// A replica that has caught up with its primary.
pub fn replica_of(primary: &Server) -> Server {
    let port = primary.port.to_string();
    let replica =
        Server::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
    until("the replica follows", || {
        replica.ask::<String>("INFO replication").contains("master_link_status:up")
    });
    replica
}

/// The number of the server's clients, without the one that asks and without a connection to a
/// primary.
pub fn connections(server: &Server) -> usize {
    let list: String = server.ask("CLIENT LIST");
    list.lines().filter(|line| !line.contains(" flags=M ")).count() - 1
}

/// Both ends of a connection that a [`relay`] passes on: to the client, and to the server.
pub struct Ends {
    pub near: TcpStream,
    pub far: TcpStream,
}

impl Ends {
    pub fn copy(&self) -> Ends {
        Ends { near: self.near.try_clone().unwrap(), far: self.far.try_clone().unwrap() }
    }
}

/// The port of a proxy to the server at that port. It passes data on, `delay` after the connection
/// began, until something comes that it must not pass: from then on, the connection is silent. The
/// end of the client's side is reported as no bytes.
pub fn relay(
    to: &Arc<AtomicU16>,
    delay: Duration,
    passes: impl Fn(&Ends, &[u8]) -> bool + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, to, passes) = (listener.local_addr().unwrap().port(), to.clone(), Arc::new(passes));
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let (to, passes) = (to.load(Ordering::SeqCst), passes.clone());
            thread::spawn(move || {
                thread::sleep(delay);
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { return };
                let ends = Ends { near, far };
                let mut back = ends.copy();
                thread::spawn(move || {
                    let _ = std::io::copy(&mut back.far, &mut back.near);
                    let _ = back.near.shutdown(Shutdown::Both);
                });
                let (mut bytes, mut is_silent) = ([0; 4096], false);
                while let Ok(count @ 1..) = (&ends.near).read(&mut bytes) {
                    let words = bytes.get(..count).unwrap();
                    is_silent |= !passes(&ends, words);
                    if !is_silent && (&ends.far).write_all(words).is_err() {
                        break;
                    }
                }
                if passes(&ends, &[]) {
                    let _ = ends.far.shutdown(Shutdown::Both);
                }
            });
        }
    });
    port
}
