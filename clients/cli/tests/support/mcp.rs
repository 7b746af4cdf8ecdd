//! Agents that are scripts, and a repository that they edit.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::support::{Rlock, Server};

/// What an editor starts for an agent: `rlock mcp`, and its answers.
pub struct Agent {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    last: u64,
}

impl Agent {
    pub fn start(server: &Server, files: &Repository, name: &str) -> Agent {
        let mut command = server.rlock(&["mcp", "--root", files.path(), "--agent", name]);
        let mut process = command.stdin(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut agent = Agent { process, input, output, last: 0 };
        let client = json!({ "name": "a test", "version": "1" });
        let told = agent.ask(
            "initialize",
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }),
        );
        assert!(told["instructions"].as_str().unwrap().contains("claim_paths"), "{told}");
        agent.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        agent
    }

    fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    fn ask(&mut self, method: &str, words: Value) -> Value {
        self.last += 1;
        let id = self.last;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": words }));
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "rlock mcp has ended");
            let told: Value = serde_json::from_str(&line).unwrap();
            if told["id"] == json!(id) {
                assert!(told["error"].is_null(), "{told}");
                return told["result"].clone();
            }
        }
    }

    /// What a tool answers.
    pub fn call(&mut self, tool: &str, words: Value) -> Value {
        let told = self.ask("tools/call", json!({ "name": tool, "arguments": words }));
        told["structuredContent"].clone()
    }

    pub fn tools(&mut self) -> Vec<String> {
        let told = self.ask("tools/list", json!({}));
        let tools = told["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends the agent, and thereby `rlock mcp`; returns its exit code.
    pub fn hang_up(&mut self) -> Option<i32> {
        self.input = None;
        self.process.wait().unwrap().code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a command with this input; returns its exit code and standard error.
pub fn said_to(mut command: Command, input: &str) -> (Option<i32>, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    (child.wait().unwrap().code(), complaint)
}

/// Files that contain a number each. An edit reads the number, thinks, and writes the next number.
pub struct Repository {
    folder: PathBuf,
    files: Vec<String>,
}

/// What came of many edits.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Edits of one file.
    pub edits: u64,
    /// Edits that began while another agent edited the same file.
    pub collisions: u64,
    /// Edits that another edit overwrote.
    pub lost: u64,
}

impl Repository {
    pub fn new(name: &str, files: &[&str]) -> Repository {
        let folder = std::env::temp_dir().join(format!("rlock-{name}-{}", std::process::id()));
        for file in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "0").unwrap();
        }
        Repository { folder, files: files.iter().map(|&file| file.to_owned()).collect() }
    }

    pub fn path(&self) -> &str {
        self.folder.to_str().unwrap()
    }

    /// The key of a path.
    pub fn key(&self, path: &str) -> String {
        format!("{{paths:{}}}/{path}", self.folder.file_name().unwrap().to_str().unwrap())
    }

    /// Lets this many agents edit, each in a thread and with its own way to reserve files.
    pub fn edited_by<F>(&self, agents: u64, way: impl Fn(u64) -> F + Sync) -> Outcome
    where
        F: FnMut(&[String], &mut dyn FnMut()),
    {
        let (edits, collisions) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for number in 0..agents {
                let (edits, collisions, way) = (&edits, &collisions, &way);
                scope.spawn(move || {
                    let mut with = way(number);
                    let mut chance = Chance(number + 1);
                    for _ in 0..6 {
                        let (wanted, files) = self.task(&mut chance);
                        // Now and then an agent thinks for long.
                        let thinks = if chance.below(10) == 0 { 150 } else { 5 };
                        with(&wanted, &mut || {
                            for file in &files {
                                edits.fetch_add(1, Ordering::Relaxed);
                                let is_alone = self.edit(file, Duration::from_millis(thinks));
                                collisions.fetch_add(u64::from(!is_alone), Ordering::Relaxed);
                            }
                        });
                    }
                });
            }
        });
        let numbers = self.files.iter().map(|file| self.number(file)).sum::<u64>();
        let edits = edits.into_inner();
        Outcome { edits, collisions: collisions.into_inner(), lost: edits - numbers.min(edits) }
    }

    /// What an agent claims, and the files that it then edits.
    fn task(&self, chance: &mut Chance) -> (Vec<String>, Vec<String>) {
        let pick = |chance: &mut Chance| {
            self.files[usize::try_from(chance.below(self.files.len() as u64)).unwrap()].clone()
        };
        if chance.below(6) == 0 {
            let file = pick(chance);
            let folder = file.split('/').next().unwrap().to_owned();
            let inside = self.files.iter().filter(|file| file.starts_with(&format!("{folder}/")));
            let inside = inside.cloned().collect();
            return (vec![folder], inside);
        }
        let mut files: Vec<String> = (0..=chance.below(3)).map(|_| pick(chance)).collect();
        files.sort();
        files.dedup();
        (files.clone(), files)
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.folder.join(file)).unwrap().trim().parse().unwrap_or(0)
    }

    /// False if another agent edits the file.
    fn edit(&self, file: &str, thinks: Duration) -> bool {
        let mark = self.folder.join(format!("{file}.edited"));
        let is_alone = fs::File::create_new(&mark).is_ok();
        let number = self.number(file);
        thread::sleep(thinks);
        fs::write(self.folder.join(file), (number + 1).to_string()).unwrap();
        let _ = fs::remove_file(&mark);
        is_alone
    }

    pub fn leases(&self) -> Leases {
        Leases(self.folder.join(".leases"))
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A lease file for each claimed path, with the agent's name and an expiry time: whoever finds
/// none, or an expired one, writes its own.
pub struct Leases(PathBuf);

const LEASE: Duration = Duration::from_millis(100);

impl Leases {
    fn file(&self, path: &str) -> PathBuf {
        self.0.join(path.replace('/', "_"))
    }

    pub fn take(&self, paths: &[String], agent: u64) {
        fs::create_dir_all(&self.0).unwrap();
        for path in paths {
            let file = self.file(path);
            while is_taken(&file) {
                thread::sleep(Duration::from_millis(5));
            }
            let until = since_1970() + LEASE;
            fs::write(&file, format!("{} agent-{agent}", until.as_millis())).unwrap();
        }
    }

    pub fn give_back(&self, paths: &[String]) {
        for path in paths {
            let _ = fs::remove_file(self.file(path));
        }
    }
}

fn is_taken(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    let until = text.split(' ').next().and_then(|until| until.parse::<u128>().ok());
    until.is_some_and(|until| until > since_1970().as_millis())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Random numbers, the same for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}
