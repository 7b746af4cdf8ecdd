//! The set-up: which program runs on which core, and which figures are read from the server.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use crate::Profile;
use rlock_testkit::{Client, Server, Version, Waiter};

/// The server's core and that of its clients; `None` if there is only one core.
static CORES: OnceLock<Option<(u32, u32)>> = OnceLock::new();

/// Moves this program to the last core that it may use. Servers that start later go to the first.
pub fn take_own_core() -> Option<(u32, u32)> {
    *CORES.get_or_init(|| {
        let (first, last) = allowed_cores()?;
        (first != last && pin(std::process::id(), last)).then_some((first, last))
    })
}

fn pin(process: u32, core: u32) -> bool {
    let mut taskset = Command::new("taskset");
    taskset.args(["-acp", &core.to_string(), &process.to_string()]).stdout(Stdio::null());
    taskset.status().is_ok_and(|status| status.success())
}

/// The first and the last core of a list such as `0-1,4`.
fn allowed_cores() -> Option<(u32, u32)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut numbers = list.trim().split([',', '-']).map_while(|number| number.parse().ok());
    let first = numbers.next()?;
    Some((first, numbers.last().unwrap_or(first)))
}

/// Starts a server on the server's core, with a unix socket and a TCP port.
#[track_caller]
pub fn server(settings: &[&str]) -> Server {
    on_its_core(Server::primary(settings))
}

/// Moves a server, with all of its threads, to the server's core.
#[track_caller]
pub fn on_its_core(server: Server) -> Server {
    if let Some((core, _)) = take_own_core() {
        let process = server.client().info_number("server", "process_id");
        assert!(pin(process as u32, core), "taskset failed");
    }
    server
}

/// Starts a server that allows this many waiting connections.
#[track_caller]
pub fn server_for(connections: usize) -> Server {
    let clients_max = (connections + SPARE_FILES).to_string();
    let waiters_max = connections.to_string();
    server(&["maxclients", &clients_max, "rlock.max-waiters", &waiters_max])
}

/// How many files the server and this program open in addition to the waiting connections.
const SPARE_FILES: usize = 100;

/// Whether this program may open that many connections. The limit is the shell's `ulimit -n`.
pub fn may_open(connections: usize) -> bool {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    soft.is_none_or(|files: usize| files >= connections + SPARE_FILES)
}

/// Reads the CPU time of the server's main thread, which does all of the server's work.
pub struct CpuClock {
    path: String,
}

impl CpuClock {
    /// The clock of the server that `client` is connected to.
    #[track_caller]
    pub fn of(client: &mut Client) -> CpuClock {
        CpuClock { path: format!("/proc/{}/schedstat", client.info_number("server", "process_id")) }
    }

    /// User and system time since the server started, in nanoseconds. (`stat` counts in units of 10
    /// ms.)
    #[track_caller]
    pub fn now_ns(&self) -> u64 {
        self.field(0)
    }

    /// How long the server was ready to run while other processes had its core, in nanoseconds
    /// since it started. On an idle machine this is almost zero.
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

/// Prints how long other processes kept the server from running: only without that are delays its
/// own.
pub fn say_kept_off(client: &mut Client) {
    let ms = CpuClock::of(client).kept_off_ns() as f64 / 1e6;
    println!("  (other processes had the server's core for {ms:.0} ms in all)");
}

/// Waits until the server has processed everything that was sent before. The server answers only
/// after the loop iteration in which it reads this request, and by then it has read what was sent
/// earlier.
#[track_caller]
pub fn until_all_is_read(anyone: &mut Waiter) {
    anyone.ask("PING");
}

/// Microseconds since `begin`.
pub fn us_since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e6
}

/// What a reader needs to know before reading a figure: server, machine, day, the module's commit.
pub fn about(profile: Profile) -> BTreeMap<String, String> {
    let server = server(&[]);
    let mut client = server.client();
    let version = ["valkey_version", "redis_version"];
    let version = version.iter().find_map(|field| client.info("server", field)).unwrap();
    let make = if matches!(server.version(), Version::Redis(..)) { "Redis" } else { "Valkey" };
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let where_it_runs = match take_own_core() {
        Some((theirs, ours)) => format!("server on core {theirs}, clients on core {ours}"),
        None => "server and clients wherever the system puts them".to_owned(),
    };
    let machine = format!(
        "{cores} cores, {}, Linux {}; {where_it_runs}",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim(),
    );
    let known = [
        ("server", format!("{make} {version}")),
        ("machine", machine),
        ("date", said_by("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ("commit", commit()),
        ("profile", if profile == Profile::Quick { "quick" } else { "full" }.to_owned()),
    ];
    known.map(|(name, value)| (name.to_owned(), value)).into()
}

/// What is measured. It is not dirty because of results, which each section writes.
fn commit() -> String {
    let results = [":!bench/results", ":!docs/benchmarks.md"];
    let changed = said_by("git", &[&["status", "--porcelain", "--"][..], &results].concat());
    let commit = said_by("git", &["describe", "--always"]);
    if changed.is_empty() { commit } else { commit + "-dirty" }
}

fn said_by(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).stderr(Stdio::null()).output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
