//! A real server with the module, of one test only.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection};

/// Killed, and its folder removed, when it is dropped.
pub struct Server {
    process: Child,
    folder: PathBuf,
    pub port: u16,
}

impl Server {
    pub fn start(words: &[&str]) -> Server {
        let [program, module] = ["RLOCK_SERVER", "RLOCK_MODULE"].map(|name| {
            env::var(name).unwrap_or_else(|_| panic!("{name} says which server, with which module"))
        });
        let port = free_port();
        let folder = env::temp_dir().join(format!("rlock-test-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let process = Command::new(program)
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--logfile",
                "log",
            ])
            .args(["--notify-keyspace-events", "KEd", "--loadmodule", &module, "--dir"])
            .arg(&folder)
            .args(words)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { process, folder, port };
        until("the server is up", || server.try_connect().is_some());
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
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

    /// Sends a command and does not wait for its reply.
    pub fn send(&self, line: &str) -> Connection {
        let mut connection = self.connect();
        connection.send_packed_command(&command(line).get_packed_command()).unwrap();
        connection
    }

    /// `rlock` with these words.
    pub fn rlock(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rlock"));
        command
            .env("RLOCK_URL", self.url())
            .env_remove("REDISCLI_AUTH")
            .args(words)
            .stderr(Stdio::piped());
        command.stdout(Stdio::piped());
        command
    }

    /// Runs it to its end: its exit code, what it said, what it complained of.
    pub fn run(&self, words: &[&str]) -> (i32, String, String) {
        said(self.rlock(words).output().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub fn said(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

pub fn command(line: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(line.split(' ').collect::<Vec<_>>());
    command
}

pub fn free_port() -> u16 {
    loop {
        // Below those that clients get, and with room for the port of a Cluster's bus.
        let port = 20000 + u16::try_from(std::process::id() % 100).unwrap() * 100 + fresh();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn fresh() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
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
