//! A server under callgrind. Callgrind counts instructions and calls, and can simulate the caches
//! and the branch prediction of one kind of processor, which is the same on every machine.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use rlock_testkit::{Server, Waiter};

/// Callgrind writes the counts since the previous mark before each call of this function.
const MARK: (&str, &str) = ("TIME", "timeCommand");

/// The first-level caches are as large as those of most servers' processors, and the last-level
/// cache holds everything that is measured here. Without sizes, callgrind would take those of this
/// machine.
const PROCESSOR: [&str; 5] = [
    "--cache-sim=yes",
    "--branch-sim=yes",
    "--I1=32768,8,64",
    "--D1=32768,8,64",
    "--LL=33554432,16,64",
];

/// A server under callgrind.
pub struct Counted {
    pub server: Server,
    marker: Waiter,
    folder: PathBuf,
    marks: usize,
}

/// The counts between two marks.
pub struct Profile {
    /// Instructions in user space, without the server's regular work once a second.
    pub instructions: u64,
    /// Accesses to instructions and data that missed the simulated first-level caches; 0 if no
    /// caches are simulated.
    pub cache_misses: u64,
    /// Jumps that the simulated processor predicted wrongly; 0 if none is simulated.
    pub mispredictions: u64,
    /// For each function: how often it was called, and the instructions in it and in its callees.
    calls: HashMap<String, (u64, u64)>,
}

impl Counted {
    /// Starts a server under callgrind.
    pub fn start() -> Counted {
        Self::start_with(&[])
    }

    /// Starts a server under callgrind with a simulated processor, which takes twice as long.
    pub fn start_on_processor() -> Counted {
        Self::start_with(&PROCESSOR)
    }

    fn start_with(words: &[&str]) -> Counted {
        let folder = std::env::temp_dir().join(format!("rlock-bench-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        let output = format!("--callgrind-out-file={}", folder.join("out").display());
        let marks = format!("--dump-before={}", MARK.1);
        // The server may be a script that executes the real one, so callgrind follows child
        // processes.
        let under = ["valgrind", "--tool=callgrind", "--trace-children=yes", &output, &marks];
        let under: Vec<&str> = under.iter().chain(words).copied().collect();
        // Have the server do its regular work once a second instead of ten times.
        let server = Server::under(&under, &["hz", "1", "dynamic-hz", "no"]);
        let marker = Waiter::connect(&server);
        Counted { server, marker, folder, marks: 0 }
    }

    /// The counts for `work`.
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
    /// Reads callgrind's format: `events: Ir …` lists the events. A function is named once as
    /// `cfn=(7) name`, and later as `cfn=(7)`. Below it come `calls=COUNT …`, and a line with a
    /// position and the cost of the calls for each event.
    fn parse(text: &str) -> Profile {
        let mut names = HashMap::new();
        let mut calls = HashMap::<String, (u64, u64)>::new();
        let (mut events, mut sums) = (Vec::new(), Vec::new());
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
                let cost = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
                let sum = calls.entry(callee.clone()).or_default();
                *sum = (sum.0 + count, sum.1 + cost.unwrap_or(0));
            } else if let Some(names) = line.strip_prefix("events: ") {
                events = names.split(' ').collect();
            } else if let Some(totals) = line.strip_prefix("summary: ") {
                sums = totals.split(' ').map(|sum| sum.parse::<u64>().unwrap()).collect();
            }
        }
        let sum_of = |names: &[&str]| -> u64 {
            let all = events.iter().zip(&sums).filter(|(event, _)| names.contains(event));
            all.map(|(_, sum)| sum).sum()
        };
        let regular = calls.get("serverCron").map_or(0, |call| call.1);
        Profile {
            instructions: sum_of(&["Ir"]).checked_sub(regular).expect("a profile has a summary"),
            cache_misses: sum_of(&["I1mr", "D1mr", "D1mw"]),
            mispredictions: sum_of(&["Bcm", "Bim"]),
            calls,
        }
    }

    /// The module's allocations: the calls of all functions of the module API that allocate for the
    /// module itself.
    pub fn module_allocations(&self) -> u64 {
        let ours = ["Alloc", "TryAlloc", "Calloc", "TryCalloc", "Realloc", "TryRealloc"];
        ours.map(|name| self.api(name).0).iter().sum()
    }

    /// The allocations of the whole server.
    pub fn allocations(&self) -> u64 {
        ["malloc", "calloc", "realloc"].map(|name| self.calls_of(name)).iter().sum()
    }

    /// The instructions of the module's calls that propagate effects to replicas and to the
    /// append-only file.
    pub fn replicate_instructions(&self) -> u64 {
        self.api("Replicate").1
    }

    /// The calls of a function of the module API, and their instructions. Redis and Valkey use
    /// different names for it.
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
