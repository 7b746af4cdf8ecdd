//! The users of the locks: threads of this program, or processes, which can be stopped and killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use crate::actor::{Actor, Notebook, Notes, Site};
use crate::clock::{Stop, now_ns, ns};
use crate::history::{Event, Mark, Op, Reply};
use crate::workloads::{self, Workload};

/// Where actors live.
pub enum Crowd {
    Threads { stop: Arc<Stop>, actors: Vec<(JoinHandle<()>, Arc<Mutex<Notebook>>)> },
    Processes(Processes),
}

impl Crowd {
    /// Starts all actors of `workload` in this program.
    pub fn threads(workload: &'static Workload, seed: u64, site: Arc<Site>) -> Crowd {
        let stop = Arc::new(Stop::default());
        let actors = 0..workload.actors;
        let actors = actors.map(|number| {
            let (site, stop) = (site.clone(), stop.clone());
            let notebook = Arc::new(Mutex::new(Notebook::default()));
            let notes = Notes::Kept(notebook.clone());
            let actor = Actor::new(number, seed, site, stop, notes);
            (std::thread::spawn(move || perform(workload, actor)), notebook)
        });
        Crowd::Threads { actors: actors.collect(), stop }
    }

    /// Waits until they have finished. Returns what all of them recorded, in the order of the
    /// requests.
    pub fn end(self) -> Vec<Op> {
        let mut ops: Vec<Op> = match self {
            Crowd::Threads { stop, actors } => {
                stop.set();
                actors.into_iter().flat_map(|(actor, notebook)| ended(actor, &notebook)).collect()
            }
            Crowd::Processes(processes) => processes.end(),
        };
        ops.sort_by_key(|op| op.sent_ns);
        ops
    }

    /// The processes, for a fault that stops or kills them.
    pub fn processes(&mut self) -> &mut Processes {
        match self {
            Crowd::Processes(processes) => processes,
            Crowd::Threads { .. } => panic!("this fault asks for a crowd of processes"),
        }
    }
}

/// What an actor recorded; one that is not ready by now waits for a reply that never comes.
fn ended(actor: JoinHandle<()>, notebook: &Mutex<Notebook>) -> Vec<Op> {
    let is_ready = waited_for(|| actor.is_finished());
    if is_ready {
        actor.join().unwrap();
    }
    let mut notebook = notebook.lock().unwrap();
    let pending = notebook.pending.take().filter(|_| !is_ready);
    let mut ops = std::mem::take(&mut notebook.ops);
    ops.extend(pending.map(|op| Op { received_ns: now_ns(), ..op }));
    ops
}

fn waited_for(mut is_so: impl FnMut() -> bool) -> bool {
    let patience_ends_ns = now_ns() + ns(END_MS_MAX);
    while !is_so() && now_ns() < patience_ends_ns {
        Stop::default().within(2);
    }
    is_so()
}

/// What one actor does: the workload, again and again; then it releases everything that it may
/// hold.
fn perform(workload: &Workload, mut actor: Actor) {
    while !actor.stop.is_set() {
        if actor.is_unsure() && workload.is_acked && actor.is_cut() {
            actor.start_anew();
        } else if actor.is_unsure() {
            actor.mend();
        } else {
            (workload.step)(&mut actor);
        }
    }
    while actor.is_unsure() {
        actor.mend();
    }
    if workloads::ALL.iter().any(|usual| usual.name == workload.name) {
        leave_something(&mut actor);
    }
}

/// A hold that stays, for the checks on what outlives the run.
fn leave_something(actor: &mut Actor) {
    let key = format!("left:{}", actor.number % 3);
    let mut ask = actor.ask();
    ask.lease_ms = 600_000;
    if actor.number % 3 == 1 {
        ask.mode = crate::history::Mode::Read;
    }
    actor.acquire(&key, ask);
    actor.acquire(&key, ask);
}

/// Processes that share the actors.
pub struct Processes {
    program: PathBuf,
    workload: &'static Workload,
    url: String,
    lease_ms: u64,
    seed: u64,
    next_number: u32,
    running: Vec<Process>,
    /// What ended processes have printed.
    ops: Vec<Op>,
}

struct Process {
    actors: Range<u32>,
    child: Child,
    input: ChildStdin,
    ops: JoinHandle<Vec<Op>>,
}

/// An actor that is not ready this long after the end of the load waits in vain: every wait and
/// lease has ended.
const END_MS_MAX: u64 = 40_000;

impl Processes {
    pub fn start(workload: &'static Workload, seed: u64, url: String, lease_ms: u64) -> Processes {
        let program = std::env::current_exe().unwrap();
        Processes::of(program, workload, seed, url, lease_ms)
    }

    /// Starts that program for each, with the arguments of this one; it prints the same lines.
    pub fn of(
        program: PathBuf,
        workload: &'static Workload,
        seed: u64,
        url: String,
        lease_ms: u64,
    ) -> Processes {
        let (next_number, running, ops) = (0, Vec::new(), Vec::new());
        let mut processes =
            Processes { program, workload, url, lease_ms, seed, next_number, running, ops };
        (0..workload.processes).for_each(|_| processes.spawn());
        processes
    }

    /// The index of the process of this actor.
    pub fn place_of(&self, actor: u32) -> Option<usize> {
        self.running.iter().position(|process| process.actors.contains(&actor))
    }

    /// The actors of one process.
    pub fn actors_of(&self, place: usize) -> Range<u32> {
        self.running[place].actors.clone()
    }

    /// Stops one process until `go_on`.
    pub fn freeze(&self, number: usize) {
        self.signal(number, Signal::STOP);
    }

    pub fn thaw(&self, number: usize) {
        self.signal(number, Signal::CONT);
    }

    /// Kills a process with SIGKILL and starts another one, with other actors. Returns what
    /// happened to the connections of the killed one.
    pub fn kill_9(&mut self, number: usize) -> Vec<Event> {
        self.kill_9_and(number, || ())
    }

    /// Like `kill_9`; `meanwhile` is called right after the signal, before the next process starts.
    pub fn kill_9_and(&mut self, number: usize, meanwhile: impl FnOnce()) -> Vec<Event> {
        let mut process = self.running.remove(number);
        let from_ns = now_ns();
        process.child.kill().unwrap();
        meanwhile();
        process.child.wait().unwrap();
        let to_ns = now_ns();
        let ops = process.ops.join().unwrap();
        let mut connections: Vec<i64> = ops.iter().map(|op| op.connection).collect();
        connections.sort_unstable();
        connections.dedup();
        self.ops.extend(ops.into_iter().map(|op| cut_off(op, to_ns)));
        self.spawn();
        let closed = connections.into_iter().map(Mark::Closed);
        closed.map(|mark| Event { mark, from_ns, to_ns }).collect()
    }

    /// How many processes run.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    fn spawn(&mut self) {
        let count = self.workload.actors / self.workload.processes;
        let mut command = Command::new(&self.program);
        let numbers = [self.seed, self.lease_ms, u64::from(self.next_number), u64::from(count)];
        command.args(["act", self.workload.name, &self.url]);
        command.args(numbers.map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let ops = std::thread::spawn(|| heard(BufReader::new(output)));
        let actors = self.next_number..self.next_number + count;
        self.running.push(Process { actors, child, input, ops });
        self.next_number += count;
    }

    fn signal(&self, number: usize, signal: Signal) {
        let id = i32::try_from(self.running[number].child.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    fn end(mut self) -> Vec<Op> {
        let told = self.running.into_iter().map(|Process { child, input, ops, .. }| {
            drop(input); // at which it stops
            (child, ops)
        });
        for (mut child, ops) in told.collect::<Vec<_>>() {
            if waited_for(|| child.try_wait().unwrap().is_some()) {
                assert!(child.wait().unwrap().success(), "a client process failed");
            } else {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            let ops = ops.join().unwrap().into_iter();
            self.ops.extend(ops.map(|op| Op { received_ns: op.received_ns.max(op.sent_ns), ..op }));
        }
        self.ops
    }
}

/// The operations that a process prints: each when it is sent, and again when it is answered.
fn heard(lines: impl BufRead) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut pending: BTreeMap<u32, Op> = BTreeMap::new();
    // The last line of a killed process may be incomplete.
    let said = lines.lines().map_while(Result::ok);
    for op in said.map_while(|line| serde_json::from_str::<Op>(&line).ok()) {
        if op.received_ns == 0 {
            pending.insert(op.actor, op);
        } else {
            pending.remove(&op.actor);
            ops.push(op);
        }
    }
    ops.extend(pending.into_values());
    ops
}

/// An operation that was in progress when its process died was lost then.
fn cut_off(op: Op, at_ns: u64) -> Op {
    match op.received_ns {
        0 => Op { received_ns: at_ns, reply: Reply::Lost, ..op },
        _ => op,
    }
}

/// The whole of a client process: `act WORKLOAD URL SEED LEASE-MS FIRST COUNT`.
pub fn act(words: &[&str]) {
    let [workload, url, seed, lease_ms, first, count] = words else { panic!("{words:?}") };
    let workload = workloads::named(workload);
    let (first, count): (u32, u32) = (first.parse().unwrap(), count.parse().unwrap());
    let site = Site { lease_ms: lease_ms.parse().unwrap(), ..Site::fixed((*url).to_owned()) };
    let (site, stop, seed) = (Arc::new(site), Arc::new(Stop::default()), seed.parse().unwrap());
    let actors = (first..first + count).map(|number| {
        let (site, stop) = (site.clone(), stop.clone());
        std::thread::spawn(move || {
            perform(workload, Actor::new(number, seed, site, stop, Notes::Told))
        })
    });
    let actors: Vec<_> = actors.collect();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    stop.set();
    actors.into_iter().for_each(|actor| actor.join().unwrap());
}
