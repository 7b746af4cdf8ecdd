//! A real server with the module, for tests: on a free port, and without data. Nothing here imitates a lock.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = rlock_client::testing::Server::start(&[])?; // ends when it is dropped
//! let locker = rlock_client::Locker::new(server.client()?);
//! # drop(locker);
//! # Ok(())
//! # }
//! ```
//!
//! The environment says which one: `RLOCK_MODULE` is the path of `librlock.so`, and `RLOCK_SERVER` that of `redis-server`
//! or `valkey-server`, unless one of these is on the `PATH`.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Error, Result};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, RedisResult};

/// How long a server may take to start.
const STARTS: Duration = Duration::from_secs(20);

/// A server of its own. Killed, and its folder removed, when it is dropped.
#[derive(Debug)]
pub struct Server {
    process: Child,
    program: OsString,
    words: Vec<OsString>,
    folder: PathBuf,
    port: u16,
}

impl Server {
    /// Starts one, with further words of its command line, such as `--maxclients`, `50`.
    ///
    /// # Errors
    /// When there is no server or no module, or when the server does not start: then with what it said.
    pub fn start(words: &[&str]) -> Result<Server> {
        let module = env::var_os("RLOCK_MODULE").unwrap_or_default();
        let module = fs::canonicalize(&module).map_err(|error| {
            let text = "there is no module: set RLOCK_MODULE to the path of librlock.so";
            Error::new(error.kind(), format!("{text} (it is {}): {error}", module.display()))
        })?;
        let mut all = vec!["--loadmodule".into(), module.into_os_string()];
        all.extend(words.iter().map(OsString::from));
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        Server::run(program()?, port, all)
    }

    /// Starts that program, with these words of its command line.
    pub(crate) fn run(program: OsString, port: u16, words: Vec<OsString>) -> Result<Server> {
        let folder = env::temp_dir().join(format!("rlock-test-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let process = spawn(&program, port, &folder, &words)?;
        let mut server = Server { process, program, words, folder, port };
        server.answers()?;
        Ok(server)
    }

    /// Where it listens, at 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The number of its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// For example `redis://127.0.0.1:41234`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A new client of it.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn client(&self) -> RedisResult<Client> {
        Client::open(self.url())
    }

    /// Removes all data.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn empty(&self) -> RedisResult<()> {
        redis::cmd("FLUSHALL").query(&mut self.client()?.get_connection()?)
    }

    /// Ends it, as a crash does.
    ///
    /// # Errors
    /// As [`Child::kill`].
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    /// Starts it again after [`Server::kill`], at the same port.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn again(&mut self) -> Result<()> {
        self.process = spawn(&self.program, self.port, &self.folder, &self.words)?;
        self.answers()
    }

    fn answers(&mut self) -> Result<()> {
        let begin = Instant::now();
        while !self.is_up() {
            if self.process.try_wait()?.is_some() || begin.elapsed() > STARTS {
                let said = fs::read_to_string(self.folder.join("log"))?;
                return Err(Error::other(format!("the server did not start:\n{said}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// It says who it is, or that it says so only to users with a password.
    fn is_up(&self) -> bool {
        match self.says_who_it_is() {
            Ok(process) => process == self.id().to_string(),
            Err(refused) => refused.code() == Some("NOAUTH"),
        }
    }

    fn says_who_it_is(&self) -> RedisResult<String> {
        let mut connection = self.client()?.get_connection_with_timeout(Duration::from_secs(1))?;
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
        let process = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        Ok(process.unwrap_or_default().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(program: &OsString, port: u16, folder: &PathBuf, words: &[OsString]) -> Result<Child> {
    let log = File::options().create(true).append(true).open(folder.join("log"))?;
    Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(folder)
        .args(words)
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log)
        .spawn()
}

/// The program of a server.
pub(crate) fn program() -> Result<OsString> {
    if let Some(given) = env::var_os("RLOCK_SERVER").filter(|given| !given.is_empty()) {
        return Ok(given);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let all = ["valkey-server", "redis-server"]
        .iter()
        .flat_map(|name| env::split_paths(&path).map(move |folder| folder.join(name)));
    all.filter(|program| program.is_file()).map(PathBuf::into_os_string).next().ok_or_else(|| {
        Error::other(
            "there is no server: set RLOCK_SERVER to the path of redis-server or valkey-server",
        )
    })
}
