//! A server under callgrind, which counts instructions and calls: the same on every machine.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use rlock_testkit::{Server, Waiter};

/// Before each call of this function callgrind writes the counts since the previous call.
const MARK: (&str, &str) = ("TIME", "timeCommand");

/// A server under callgrind.
pub struct Counted {
    pub server: Server,
    marker: Waiter,
    folder: PathBuf,
    marks: usize,
}

/// The counts between two marks.
pub struct Profile {
    /// In user space, without the server's regular work once a second.
    pub instructions: u64,
    /// By function: how often it was called, and the instructions in it and in what it called.
    calls: HashMap<String, (u64, u64)>,
}

impl Counted {
    /// Starts it.
    pub fn start() -> Counted {
        let folder = std::env::temp_dir().join(format!("rlock-bench-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        let output = format!("--callgrind-out-file={}", folder.join("out").display());
        let marks = format!("--dump-before={}", MARK.1);
        // The server may be a script that executes it, so callgrind follows that.
        let under = ["valgrind", "--tool=callgrind", "--trace-children=yes", &output, &marks]
            .map(str::to_owned);
        let under: Vec<&str> = under.iter().map(String::as_str).collect();
        // The server's own regular work: once a second instead of ten times.
        let server = Server::under(&under, &["hz", "1", "dynamic-hz", "no"]);
        let marker = Waiter::connect(&server);
        Counted { server, marker, folder, marks: 0 }
    }

    /// The counts for this work.
    pub fn count(&mut self, work: impl FnOnce()) -> Profile {
        self.mark();
        work();
        Profile::parse(&self.mark())
    }

    /// Sets a mark; returns the counts since the last one.
    fn mark(&mut self) -> String {
        self.marker.ask(MARK.0);
        self.marks += 1;
        let path = self.folder.join(format!("out.{}", self.marks));
        let text = fs::read_to_string(&path);
        text.unwrap_or_else(|e| panic!("{}: {e}: callgrind did not see {}", path.display(), MARK.1))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

impl Profile {
    /// Reads callgrind's format: `cfn=(7) name` once, then `cfn=(7)`; below it `calls=COUNT …` and
    /// a line whose last number is what the calls cost.
    fn parse(text: &str) -> Profile {
        let mut names = HashMap::new();
        let (mut calls, mut instructions) = (HashMap::<String, (u64, u64)>::new(), None);
        let mut callee = String::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
                let (number, name) = name.split_once(' ').unwrap_or((name, ""));
                if !name.is_empty() {
                    names.insert(number.to_owned(), name.to_owned());
                }
                callee = names[number].clone();
            } else if let Some(call) = line.strip_prefix("calls=") {
                let count: u64 = call.split(' ').next().unwrap().parse().unwrap();
                let cost = lines.next().and_then(|line| line.split(' ').next_back()?.parse().ok());
                let sum = calls.entry(callee.clone()).or_default();
                *sum = (sum.0 + count, sum.1 + cost.unwrap_or(0));
            } else if let Some(total) = line.strip_prefix("summary: ") {
                instructions = total.trim().parse().ok();
            }
        }
        let instructions: u64 = instructions.expect("a profile has a summary");
        let regular = calls.get("serverCron").map_or(0, |call| call.1);
        Profile { instructions: instructions - regular, calls }
    }

    /// The module's allocations: every function of the module API that allocates for the module
    /// itself.
    pub fn module_allocations(&self) -> u64 {
        let ours = ["Alloc", "TryAlloc", "Calloc", "TryCalloc", "Realloc", "TryRealloc"];
        ours.map(|name| self.api(name).0).iter().sum()
    }

    /// The allocations of the whole server.
    pub fn allocations(&self) -> u64 {
        ["malloc", "calloc", "realloc"].map(|name| self.calls_of(name)).iter().sum()
    }

    /// Instructions of propagating effects to replicas and the append-only file, by the module's
    /// call.
    pub fn replicate_instructions(&self) -> u64 {
        self.api("Replicate").1
    }

    /// Calls of a function of the module API, and their instructions. Redis and Valkey each have a
    /// name for it.
    fn api(&self, name: &str) -> (u64, u64) {
        let of =
            |make: &str| self.calls.get(&format!("{make}_{name}")).copied().unwrap_or_default();
        let (redis, valkey) = (of("RM"), of("VM"));
        (redis.0 + valkey.0, redis.1 + valkey.1)
    }

    fn calls_of(&self, name: &str) -> u64 {
        self.calls.get(name).map_or(0, |call| call.0)
    }
}
