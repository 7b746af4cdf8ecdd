//! The bench that everything is measured on: who runs on which core, what is read off the server,
//! how a figure is printed.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use crate::support::{Client, Server, Waiter};

/// The server's core and that of its clients; none where they cannot be told apart.
static CORES: OnceLock<Option<(u32, u32)>> = OnceLock::new();

/// Puts this program on the last core that it may use, and servers to come on the first.
pub fn take_own_core() -> Option<(u32, u32)> {
    *CORES.get_or_init(|| {
        let (first, last) = allowed_cores()?;
        let own_id = std::process::id().to_string();
        let mut taskset = Command::new("taskset");
        taskset.args(["-cp", &last.to_string(), &own_id]).stdout(Stdio::null());
        let is_done = taskset.status().is_ok_and(|status| status.success());
        (first != last && is_done).then_some((first, last))
    })
}

/// First and last of a list such as `0-1,4`.
fn allowed_cores() -> Option<(u32, u32)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut numbers = list.trim().split([',', '-']).map_while(|number| number.parse().ok());
    let first = numbers.next()?;
    Some((first, numbers.last().unwrap_or(first)))
}

/// A server on the server's core.
#[track_caller]
pub fn server(settings: &[&str]) -> Server {
    match take_own_core() {
        Some((core, _)) => Server::under(&["taskset", "-c", &core.to_string()], settings),
        None => Server::with(settings),
    }
}

/// A server for `connections` that wait at once.
#[track_caller]
pub fn server_for(connections: usize) -> Server {
    let clients_max = (connections + SPARE_FILES).to_string();
    let waiters_max = connections.to_string();
    server(&["maxclients", &clients_max, "rlock.max-waiters", &waiters_max])
}

/// What server and program open besides the connections that wait.
const SPARE_FILES: usize = 100;

/// Whether this program may open that many connections, which is the shell's `ulimit -n`.
pub fn may_open(connections: usize) -> bool {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    soft.is_none_or(|files: usize| files >= connections + SPARE_FILES)
}

/// The CPU time of the server's main thread, which does all of its work.
pub struct CpuClock {
    path: String,
}

impl CpuClock {
    /// The clock of the server that `client` is connected to.
    #[track_caller]
    pub fn of(client: &mut Client) -> CpuClock {
        CpuClock { path: format!("/proc/{}/schedstat", client.info_number("server", "process_id")) }
    }

    /// User and system time since its start, in nanoseconds. (`stat` counts in 10 ms.)
    #[track_caller]
    pub fn now_ns(&self) -> u64 {
        self.field(0)
    }

    /// How long it was ready to run while others had its core, in nanoseconds since its start:
    /// on a machine that does nothing else, next to nothing.
    #[track_caller]
    pub fn kept_off_ns(&self) -> u64 {
        self.field(1)
    }

    #[track_caller]
    fn field(&self, number: usize) -> u64 {
        let fields = fs::read_to_string(&self.path);
        let fields = fields.unwrap_or_else(|e| panic!("{}: {e}; it is Linux's", self.path));
        fields.split_whitespace().nth(number).unwrap().parse().unwrap()
    }
}

/// What tells whether delays are the server's own.
pub fn say_kept_off(cpu: &CpuClock) {
    let ms = cpu.kept_off_ns() as f64 / 1e6;
    say("  (other processes had the server's core for", &format!("{ms:.0} ms in all)"));
}

/// The server has dealt with all that was sent to it before: it answers after the turn of its loop
/// in which it reads, and what was sent before is read in that turn at the latest.
#[track_caller]
pub fn until_all_is_read(anyone: &mut Waiter) {
    anyone.ask("PING");
}

/// Microseconds since `begin`.
pub fn us_since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e6
}

/// Measured values of one kind.
#[derive(Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The value that `percent` of all do not exceed.
    #[track_caller]
    pub fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
    }

    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    pub fn min(&self) -> f64 {
        self.percentile(0)
    }

    pub fn max(&self) -> f64 {
        self.percentile(100)
    }
}

/// Prints a figure.
pub fn say(what: &str, figure: &str) {
    println!("{what:<44} {figure}");
}

/// Prints a figure and whether it reaches the goal.
pub fn say_beside_goal(what: &str, figure: &str, goal: &str, is_reached: bool) {
    let verdict = if is_reached { "reached" } else { "MISSED" };
    say(what, &format!("{figure}; goal {goal}: {verdict}"));
}
