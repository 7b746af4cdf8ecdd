//! `rlock ls` and `rlock release`: the holds of all owners or of one, including holds of locks that
//! nobody waits for.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult};
use rustix::process::Signal;

use crate::args::{List, Release};
use crate::complain;
use crate::scan::{KEYS, Scan, all_holders, databases, pause, refusal, size};
use crate::serve::page::listed;
use crate::servers::{Server, Trouble, Where, explain};
use crate::show::waiter;
use crate::signals::{Ending, by_signal};
use crate::snapshot::{Holder, Lock, Name};
use crate::view::short;

/// How many holders and waiters of each lock are listed.
const SCAN: Scan<'_> = Scan { pattern: None, holders: 100, waiters: 5 };

/// At least one server could not be asked.
const FAILED: u8 = 125;

/// Lists holds as they are found, and returns the exit code.
///
/// # Errors
/// The servers' error, before anything was found.
pub fn ls(job: &List) -> Result<u8, Trouble> {
    let (is_json, is_everywhere) = (job.is_json, job.at.is_everywhere);
    let mut has_head = is_json;
    walk(job, &mut |at, found, out| {
        for (key, lock) in found {
            if is_json {
                let line = format!("{}\n", listed(at.server, at.db, key, lock));
                out.push_str(&line);
                continue;
            }
            if !std::mem::replace(&mut has_head, true) {
                out.push_str(HEAD);
            }
            rows(key, lock, is_everywhere.then_some(at.db), out);
        }
        Ok(0)
    })
    .map(|(code, _)| code)
}

const HEAD: &str = "LOCK                     HELD BY                  MODE     FOR     LEASE   \
                    TOKEN             CONNECTION WAITING\n";

fn rows(key: &Name, lock: &Lock, db: Option<i64>, out: &mut String) {
    let key = db.map_or(key.to_string(), |db| format!("{key} (database {db})"));
    for hold in &lock.holders {
        let depth = if hold.depth > 1 { format!(" x{}", hold.depth) } else { String::new() };
        let connection = if hold.session == 0 { "-".to_owned() } else { hold.session.to_string() };
        let line = format!(
            "{key:<24} {:<24} {:<8} {:<7} {:<7} {:<17} {connection:<10} {}\n",
            hold.owner.to_string(),
            hold.mode.clone() + &depth,
            short(hold.held),
            short(hold.left),
            hold.token,
            lock.length
        );
        out.push_str(&line);
    }
    for wait in &lock.waiters {
        out.push_str(&format!("    {}\n", waiter(wait)));
    }
    let listed = lock.waiters.len();
    let more = usize::try_from(lock.length).unwrap_or(usize::MAX).saturating_sub(listed);
    if more > 0 {
        out.push_str(&format!("    and {more} more wait\n"));
    }
}

/// Releases what an owner holds, or lists what would be released, and returns the exit code.
///
/// # Errors
/// As [`ls`].
pub fn release(job: &Release) -> Result<u8, Trouble> {
    let (mut released, mut ended, mut refused) = (0_u64, 0_u64, 0_u64);
    let (code, listed) = walk(&job.list, &mut |at, found, out| {
        for (key, hold) in found.iter().flat_map(|(key, lock)| each_hold(key, lock)) {
            let outcome = job.is_sure.then(|| release_one(at.connection, key, hold)).transpose();
            let said = match outcome {
                Ok(None) => "would be released".to_owned(),
                Ok(Some(true)) => {
                    released += 1;
                    "released".to_owned()
                }
                Ok(Some(false)) => {
                    ended += 1;
                    "had ended".to_owned()
                }
                Err(error) if error.is_io_error() => return Err(error),
                Err(error) => {
                    refused += 1;
                    format!("not released: {}", explain(&error))
                }
            };
            out.push_str(&format!(
                "{key}: {} holds {} for {}, token {}: {said}\n",
                hold.owner,
                hold.mode,
                short(hold.held),
                hold.token
            ));
        }
        Ok(refused)
    })?;
    match (job.is_sure, listed) {
        (_, 0) => complain("this owner holds nothing here"),
        (true, _) => complain(format_args!(
            "released {released} holds; {ended} had ended, {refused} were refused"
        )),
        (false, _) => complain(format_args!("{listed} holds; add --yes to release them")),
    }
    Ok(code)
}

fn each_hold<'l>(key: &'l Name, lock: &'l Lock) -> impl Iterator<Item = (&'l Name, &'l Holder)> {
    lock.holders.iter().map(move |hold| (key, hold))
}

/// Ends the hold with this token, but no later hold. False if that hold had ended already.
///
/// # Errors
/// The server's.
pub fn release_one(connection: &mut Connection, key: &Name, hold: &Holder) -> RedisResult<bool> {
    let mut words = redis::cmd("RLOCK.RELEASE");
    words.arg(&key.0).arg(&hold.owner.0).arg(hold.mode.to_uppercase());
    words.arg("TOKEN").arg(hold.token).arg("ALL");
    match words.query::<u64>(connection) {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some("NOTHELD") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where the walk is.
struct At<'w> {
    server: &'w Server,
    db: i64,
    /// In that database.
    connection: &'w mut Connection,
}

/// Handles the locks that one request found: writes lines, and returns how many releases were
/// refused so far.
type Visit<'v> = dyn FnMut(At<'_>, &[(Name, Lock)], &mut String) -> RedisResult<u64> + 'v;

/// Visits all holds on all servers, and returns the exit code and the number of holds.
fn walk(job: &List, visit: &mut Visit<'_>) -> Result<(u8, u64), Trouble> {
    let servers = job.at.primaries()?;
    let mut walk = Walk {
        job,
        visit,
        stop: listen()?,
        progress: Progress::new(),
        servers: servers.len(),
        listed: 0,
        refused: 0,
        read: 0,
    };
    let (mut troubles, mut first) = (0, None);
    for (number, server) in servers.iter().enumerate() {
        let outcome = walk.server(number, server);
        walk.progress.clear();
        match outcome {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(code)) => return Ok((code, walk.listed)),
            // One node of a Cluster failed: the others still answer.
            Err(trouble) if servers.len() > 1 => {
                complain(format_args!("not listed: {trouble}"));
                troubles += 1;
                first = first.or(Some(trouble));
            }
            Err(trouble) => return Err(trouble),
        }
    }
    match first {
        Some(first) if troubles == servers.len() => Err(first),
        _ => Ok((if troubles > 0 || walk.refused > 0 { FAILED } else { 0 }, walk.listed)),
    }
}

struct Walk<'j, 'v> {
    job: &'j List,
    visit: &'j mut Visit<'v>,
    stop: Receiver<Signal>,
    progress: Progress,
    servers: usize,
    /// Holds that were visited.
    listed: u64,
    refused: u64,
    /// How many locks were read.
    read: usize,
}

impl Walk<'_, '_> {
    /// Breaks with an exit code.
    fn server(&mut self, number: usize, server: &Server) -> Result<ControlFlow<u8>, Trouble> {
        let at: &Where = &self.job.at;
        let mut connection = server.connect()?;
        let refused = |error: &redis::RedisError| refusal(server, error);
        let databases = databases(&mut connection, server.db(), at.is_everywhere);
        for db in databases.map_err(|error| refused(&error))? {
            let selected = at.is_everywhere.then_some(db);
            let (mut cursor, mut steps, mut size_of_it) = (0, 0, None);
            loop {
                let scan = Scan { pattern: self.job.pattern.as_deref(), ..SCAN };
                let asked = Instant::now();
                let step = scan
                    .step(&mut connection, selected, cursor)
                    .map_err(|error| refused(&error))?;
                self.read += step.read;
                let mut locks = step.locks;
                self.keep_owner(&mut connection, &mut locks).map_err(|error| refused(&error))?;
                let cost = asked.elapsed();
                let (mut text, before) = (String::new(), self.listed);
                self.listed += locks.iter().map(|(_, lock)| lock.holders.len() as u64).sum::<u64>();
                if self.listed > before {
                    let at = At { server, db, connection: &mut connection };
                    let visited = (self.visit)(at, &locks, &mut text);
                    self.progress.clear();
                    match std::io::stdout().write_all(text.as_bytes()) {
                        Ok(()) => {}
                        // A reader that closed the pipe (`rlock ls | head`) is no error.
                        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                            return Ok(ControlFlow::Break(0));
                        }
                        Err(error) => return Err(error.to_string()),
                    }
                    self.refused = visited.map_err(|error| refused(&error))?;
                }
                steps += 1;
                cursor = step.next;
                if cursor == 0 {
                    break;
                }
                if self.progress.is_shown {
                    size_of_it = size_of_it.or_else(|| size(&mut connection));
                    self.show(number, server, steps, size_of_it);
                }
                if let Ok(signal) = self.stop.recv_timeout(pause(cost)) {
                    self.progress.clear();
                    complain(format_args!(
                        "ended early: {} holds listed, of {} locks that were looked at",
                        self.listed, self.read
                    ));
                    return Ok(ControlFlow::Break(by_signal(signal)));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn show(&mut self, number: usize, server: &Server, steps: u64, size: Option<u64>) {
        let part = size.filter(|size| *size > 0).map(|size| steps * KEYS * 100 / size);
        let part = part.map_or(String::new(), |part| format!(", about {} %", part.min(99)));
        self.progress.show(&format!(
            "{} holds, {} locks looked at; server {} of {}, {}{part}",
            self.listed,
            self.read,
            number + 1,
            self.servers,
            server.name
        ));
    }

    /// Removes all holds but those of the wanted owner.
    fn keep_owner(
        &self,
        connection: &mut Connection,
        locks: &mut Vec<(Name, Lock)>,
    ) -> RedisResult<()> {
        let Some(owner) = &self.job.owner else { return Ok(()) };
        for (key, lock) in locks.iter_mut() {
            // A semaphore may have more holders than are listed at first.
            if lock.holder_count > lock.holders.len() as u64 {
                *lock = all_holders(connection, key, SCAN.waiters)?;
                if lock.holder_count > lock.holders.len() as u64 {
                    complain(format_args!(
                        "{key}: only {} of its {} holds are looked at",
                        lock.holders.len(),
                        lock.holder_count
                    ));
                }
            }
            lock.holders.retain(|hold| is_owner(&hold.owner, owner));
        }
        locks.retain(|(_, lock)| !lock.holders.is_empty());
        Ok(())
    }
}

/// Whether `name` is the wanted owner, compared both as bytes and as displayed. An asterisk at the
/// end matches any rest.
fn is_owner(name: &Name, wanted: &str) -> bool {
    let shown = name.to_string();
    match wanted.strip_suffix('*') {
        Some(begin) => name.0.starts_with(begin.as_bytes()) || shown.starts_with(begin),
        None => name.0 == wanted.as_bytes() || shown == wanted,
    }
}

/// Reports the first signal that ends a program. If the list does not stop then, for example
/// because a server does not answer, the thread ends the program.
fn listen() -> Result<Receiver<Signal>, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let mut signals =
        runtime.block_on(async { Ending::new() }).map_err(|error| error.to_string())?;
    let (tell, told) = channel();
    thread::spawn(move || {
        let signal = runtime.block_on(signals.next());
        let _ = tell.send(signal);
        thread::sleep(Duration::from_secs(1));
        std::process::exit(i32::from(by_signal(signal)));
    });
    Ok(told)
}

/// A line on the terminal that shows the progress.
struct Progress {
    is_shown: bool,
    is_drawn: bool,
}

impl Progress {
    fn new() -> Progress {
        Progress { is_shown: std::io::stderr().is_terminal(), is_drawn: false }
    }

    fn show(&mut self, text: &str) {
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        self.is_drawn = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_named_whole_or_by_how_it_begins() {
        let is = |name: &[u8], wanted: &str| is_owner(&Name(name.to_vec()), wanted);
        assert!(is(b"web3/17/1", "web3/17/1") && !is(b"web3/17/10", "web3/17/1"));
        assert!(is(b"web3/17/1", "web3/*") && !is(b"web30/17/1", "web3/*"));
        assert!(is(b"any", "*") && is(b"a*", "a*"));
        assert!(is("zoé".as_bytes(), "zoé") && is("zoé".as_bytes(), "zo\\xc3\\xa9"));
        assert!(is(b"\xff\x01", "\\xff\\x01") && !is(b"\xff", "*x"));
    }
}
