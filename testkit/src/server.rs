//! Real servers: each has a folder of its own. When its test ends, it is killed and its log is
//! checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::port::Port;
use crate::version::Version;
use crate::{Client, until};

/// The longest time for a start; under valgrind, a server takes seconds.
const START_MS_MAX: u64 = 60_000;
/// Settings that overwrite freed memory, so that its use is noticed. Each allocator has its own:
/// jemalloc with and without Redis' prefix, and the C library.
const FILLS_FREED_MEMORY: [(&str, &str); 3] =
    [("JE_MALLOC_CONF", "junk:free"), ("MALLOC_CONF", "junk:free"), ("MALLOC_PERTURB_", "165")];
/// What a server writes into its log when it crashes.
const CRASH_MARKS: [&str; 4] =
    ["BUG REPORT", "crashed by signal", "ASSERTION FAILED", "panicked at"];

/// One server process and its folder. The folder survives `restart` and `kill_9`, the process does
/// not.
pub struct Server {
    folder: PathBuf,
    port: Option<Port>,
    process: Option<Child>,
    /// The program that runs the server, such as a tracer, and its arguments.
    under: Vec<String>,
}

impl Server {
    /// A server with the module, a unix socket, no TCP port, no persistence.
    #[track_caller]
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// Like `start`, with settings of `redis.conf`: name, value, name, value. A later one overrides
    /// an earlier one.
    #[track_caller]
    pub fn with(settings: &[&str]) -> Server {
        let server = Server::prepared(settings, "");
        server.started()
    }

    /// A server whose module gets these arguments on the `loadmodule` line.
    #[track_caller]
    pub fn with_arguments(arguments: &str) -> Server {
        Server::prepared(&[], arguments).started()
    }

    /// A server with these lines of `redis.conf`; lines with `loadmodule` contain only the
    /// arguments.
    #[track_caller]
    pub fn of(conf: &str) -> Server {
        let (mut settings, mut arguments) = (Vec::new(), "");
        for line in conf.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, value) = line.split_once(' ').unwrap();
            match name {
                "loadmodule" => arguments = value.split_once(' ').map_or("", |(_, rest)| rest),
                _ => settings.extend([name, value.trim_start()]),
            }
        }
        Server::prepared(&settings, arguments).started()
    }

    /// A server that has not loaded the module.
    #[track_caller]
    pub fn without_module() -> Server {
        let server = Server::prepared(&[], "");
        let path = server.folder.join("redis.conf");
        let lines = fs::read_to_string(&path).unwrap();
        let without = lines.lines().filter(|line| !line.starts_with("loadmodule"));
        fs::write(&path, without.collect::<Vec<_>>().join("\n")).unwrap();
        server.started()
    }

    /// A server that others can replicate from: it has a TCP port.
    #[track_caller]
    pub fn primary(settings: &[&str]) -> Server {
        let mut server = Server::prepared(settings, "");
        server.port = Some(Port::free());
        server.started()
    }

    /// A server that runs under another program, such as a tracer. It has a TCP port.
    #[track_caller]
    pub fn under(program: &[&str], settings: &[&str]) -> Server {
        let mut server = Server::prepared(settings, "");
        server.port = Some(Port::free());
        server.under = program.iter().map(ToString::to_string).collect();
        server.started()
    }

    /// A server that does not overwrite the memory that it frees: for tests in which it frees
    /// gigabytes.
    #[track_caller]
    pub fn that_fills_nothing() -> Server {
        let unset = FILLS_FREED_MEMORY.iter().flat_map(|(name, _)| ["-u", name]);
        Server::under(&std::iter::once("env").chain(unset).collect::<Vec<_>>(), &[])
    }

    /// A replica of `primary`, in sync with it.
    #[track_caller]
    pub fn replica_of(primary: &Server, settings: &[&str]) -> Server {
        let replica = Server::joining(primary, settings);
        replica.until_in_sync_with(primary);
        replica
    }

    /// A replica of `primary` that has completed its first sync while the primary continues to
    /// change.
    #[track_caller]
    pub fn replica_during_traffic(primary: &Server) -> Server {
        let replica = Server::joining(primary, &[]);
        let mut client = replica.client();
        until(START_MS_MAX, || {
            let link = client.info("replication", "master_link_status");
            link.as_deref() == Some("up")
        });
        replica
    }

    /// Makes this server a replica of `primary`, in sync with it.
    #[track_caller]
    pub fn follow(&self, primary: &Server) {
        let port = primary.tcp_port();
        self.client().ask(&format!("REPLICAOF 127.0.0.1 {port}"));
        self.until_in_sync_with(primary);
    }

    /// The log of a server that must refuse to start with these module arguments.
    #[track_caller]
    pub fn refused_log(arguments: &str) -> String {
        let mut server = Server::prepared(&[], arguments);
        server.process = Some(server.spawn());
        until(START_MS_MAX, || {
            let is_serving = server.log().contains("eady to accept connections");
            assert!(!is_serving, "it started with {arguments:?}");
            server.has_ended()
        });
        server.process = None;
        server.log()
    }

    /// A new connection.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(&self.url("")).unwrap()
    }

    /// A new connection that speaks RESP3.
    #[track_caller]
    pub fn client_resp3(&self) -> Client {
        Client::connect(&self.url("?protocol=resp3")).unwrap()
    }

    /// A new connection as another user, with the password `secret`.
    #[track_caller]
    pub fn client_of(&self, user: &str) -> Client {
        Client::connect(&self.url(&format!("?user={user}&pass=secret"))).unwrap()
    }

    /// The server's own folder: its data, its log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its TCP port, 0 = it has none.
    pub fn tcp_port(&self) -> u16 {
        self.port.as_ref().map_or(0, |port| port.number)
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("sock")
    }

    /// Everything it has written into its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Which server it is.
    pub fn version(&self) -> Version {
        self.client().version()
    }

    /// Shuts the server down, so that it saves as configured, and starts it again.
    #[track_caller]
    pub fn restart(&mut self) {
        self.client().send(&["SHUTDOWN"]);
        until(START_MS_MAX, || self.has_ended());
        self.process = None;
        self.start_again();
    }

    /// Kills it as a power cut would, with SIGKILL.
    pub fn kill_9(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Removes a server that has crashed as expected: the crash in its log is no failure.
    #[track_caller]
    pub fn bury(mut self) {
        until(START_MS_MAX, || self.has_ended());
        self.process = None;
        fs::remove_file(self.folder.join("log")).ok();
        fs::remove_file(self.folder.join("output")).ok();
    }

    /// Whether it was started, and has not been killed since.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Its process ID.
    pub fn process_id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Starts it again in its folder, with what it finds there.
    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "it still runs");
        fs::remove_file(self.socket()).ok();
        self.process = Some(self.spawn());
        self.until_ready();
    }

    /// Adds a setting to its `redis.conf`, for the next start. A later one overrides an earlier
    /// one.
    pub fn configure(&self, name: &str, value: &str) {
        let mut lines = fs::read_to_string(self.folder.join("redis.conf")).unwrap();
        lines.push_str(&format!("{name} {value}\n"));
        fs::write(self.folder.join("redis.conf"), lines).unwrap();
    }

    /// Stops it (SIGSTOP): it answers nobody, and forgets nothing.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Continues it after `freeze`.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Waits until this replica has everything that `primary` has sent.
    #[track_caller]
    pub fn until_in_sync_with(&self, primary: &Server) {
        let (mut here, mut there) = (self.client(), primary.client());
        until(20_000, || {
            let link = here.info("replication", "master_link_status");
            let read = here.info("replication", "slave_repl_offset");
            let sent = there.info("replication", "master_repl_offset");
            link.as_deref() == Some("up") && read == sent
        });
    }

    #[track_caller]
    fn joining(primary: &Server, settings: &[&str]) -> Server {
        let address = format!("127.0.0.1 {}", primary.tcp_port());
        let mut all = vec!["replicaof", &address];
        all.extend(settings);
        let mut replica = Server::prepared(&all, "");
        replica.port = Some(Port::free());
        replica.started()
    }

    fn prepared(settings: &[&str], arguments: &str) -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let module = module();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rlock-test-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        let mut lines = vec![
            "daemonize no".to_owned(),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", folder.display()),
            format!("unixsocket {}", folder.join("sock").display()),
            format!("logfile {}", folder.join("log").display()),
            format!("loadmodule {} {arguments}", module.display()),
            "save \"\"".to_owned(),
            // With `everysec`, a reply may arrive before its effect is in the file.
            "appendfsync no".to_owned(),
            "enable-debug-command yes".to_owned(),
            "enable-module-command yes".to_owned(),
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        lines.extend(settings.chunks(2).map(|kv| format!("{} {}", kv[0], kv[1])));
        fs::write(folder.join("redis.conf"), lines.join("\n") + "\n").unwrap();
        Server { folder, port: None, process: None, under: Vec::new() }
    }

    #[track_caller]
    fn started(mut self) -> Server {
        self.process = Some(self.spawn());
        self.until_ready();
        self
    }

    fn spawn(&self) -> Child {
        let mut words = self.under.clone();
        words.push(server_program().display().to_string());
        words.push(self.folder.join("redis.conf").display().to_string());
        words.extend(["--port".to_owned(), self.tcp_port().to_string()]);
        let output = fs::File::create(self.folder.join("output")).unwrap();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command.stdout(output.try_clone().unwrap()).stderr(output);
        // A benchmark is compiled without assertions, so it does not check this.
        if cfg!(debug_assertions) {
            command.envs(FILLS_FREED_MEMORY);
        }
        let started = command.spawn();
        started.unwrap_or_else(|error| panic!("{}: {error}; run `make test`", words[0]))
    }

    #[track_caller]
    fn until_ready(&mut self) {
        let url = self.url("");
        let process = self.process.as_mut().unwrap();
        let is_ready = || {
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?}");
            let client = Client::connect(&url).ok();
            client.is_some_and(|mut c| c.attempt("PING").is_ok())
        };
        until(START_MS_MAX, is_ready);
    }

    fn has_ended(&mut self) -> bool {
        let process = self.process.as_mut().unwrap();
        process.try_wait().unwrap().is_some()
    }

    /// Its address for clients, with options of the connection (`?protocol=resp3`) or none.
    pub fn url(&self, options: &str) -> String {
        format!("redis+unix://{}{options}", self.socket().display())
    }

    fn signal(&self, name: &str) {
        let id = self.process_id();
        let order = format!("kill -{name} {id}");
        let status = Command::new("sh").args(["-c", &order]).status().unwrap();
        assert!(status.success(), "{order}");
    }

    /// What went wrong with this server, if anything did.
    pub fn complaint(&mut self) -> Option<String> {
        if let Some(process) = &mut self.process
            && let Some(status) = process.try_wait().unwrap()
        {
            return Some(format!("the server ended by itself: {status}"));
        }
        let output = fs::read_to_string(self.folder.join("output")).unwrap_or_default();
        let said = self.log() + &output;
        let mark = CRASH_MARKS.iter().find(|mark| said.contains(**mark))?;
        Some(format!("the server's log has {mark:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let complaint = self.complaint();
        if let Some(process) = &mut self.process {
            process.kill().ok();
            process.wait().ok();
        }
        let is_failing = std::thread::panicking();
        if is_failing || complaint.is_some() {
            let output = fs::read_to_string(self.folder.join("output")).unwrap_or_default();
            eprintln!("--- log of {}:\n{}{output}", self.folder.display(), self.log());
        }
        fs::remove_dir_all(&self.folder).ok();
        if let Some(complaint) = complaint {
            assert!(is_failing, "{complaint}");
            eprintln!("{complaint}");
        }
    }
}

/// The server under test: `RLOCK_SERVER`, or the one in PATH, or the one that `make` has fetched.
fn server_program() -> PathBuf {
    if let Some(program) = std::env::var_os("RLOCK_SERVER") {
        return program.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|p| p.join("redis-server"));
    let fetched = repository().join(".tools/servers/default/redis-server");
    places.find(|place| place.is_file()).unwrap_or(fetched)
}

/// The module under test: `RLOCK_MODULE`, or the release build.
pub fn module() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| repository().join("target"));
    let built = target.join("release/librlock.so");
    let module = std::env::var_os("RLOCK_MODULE").map_or(built, PathBuf::from);
    let is_there = module.is_file();
    assert!(is_there, "no module at {}: run `make test`, which builds it", module.display());
    module
}

/// The folder of this repository.
pub(crate) fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
