//! A client that is a process of its own, so that it can die as processes do.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::Server;
use crate::link::REPLY_MS_MAX;
use crate::server::repository;

/// `redis-cli`, or a client like it, which sends a command for each line that it reads.
pub struct Program {
    process: Child,
    input: ChildStdin,
    output: Receiver<String>,
}

impl Program {
    /// Starts it, connected to the server.
    #[track_caller]
    pub fn start(server: &Server) -> Program {
        Program::started(server, &[])
    }

    /// Like `start`, with replies as a person sees them at a terminal, with their types.
    #[track_caller]
    pub fn as_shown(server: &Server) -> Program {
        Program::started(server, &["--no-raw"])
    }

    /// Like `as_shown`, in RESP3, where a map has a line for each of its fields.
    #[track_caller]
    pub fn with_maps(server: &Server) -> Program {
        Program::started(server, &["--no-raw", "-3"])
    }

    #[track_caller]
    fn started(server: &Server, options: &[&str]) -> Program {
        let mut command = Command::new(cli_program());
        Program::of(command.args(options).arg("-s").arg(server.socket()))
    }

    /// Starts another program of that kind.
    #[track_caller]
    pub fn of(command: &mut Command) -> Program {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (lines, received) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        Program { process, input, output: received }
    }

    /// The reply to `line`, which is one line.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        let patience = Duration::from_millis(REPLY_MS_MAX);
        self.output.recv_timeout(patience).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The next lines that it prints, this many; fewer if it ends. Blank lines and what redis-cli
    /// adds to replies are left out.
    #[track_caller]
    pub fn lines(&mut self, count: usize) -> Vec<String> {
        let patience = Duration::from_millis(REPLY_MS_MAX);
        let mut lines = Vec::new();
        while lines.len() < count {
            match self.output.recv_timeout(patience) {
                Ok(line) if line.is_empty() || is_added(&line) => {}
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("{lines:?} and nothing more"),
            }
        }
        lines
    }

    /// All lines that it prints until it ends.
    #[track_caller]
    pub fn all_lines(mut self) -> Vec<String> {
        self.lines(usize::MAX)
    }

    /// Sends `line`, and does not wait for the reply.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
        self.input.flush().unwrap();
    }

    /// Kills it with SIGKILL, as the kernel does when memory is short.
    pub fn kill_9(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Whether redis-cli added this line: how long a slow command took, `(0.99s)`, or how to stop
/// listening.
fn is_added(line: &str) -> bool {
    (line.starts_with('(') && line.ends_with("s)")) || line.starts_with("Reading messages...")
}

impl Drop for Program {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// `RLOCK_CLI`, or the one that `make` has fetched.
pub fn cli_program() -> PathBuf {
    let fetched = repository().join(".tools/servers/default/redis-cli");
    std::env::var_os("RLOCK_CLI").map_or(fetched, PathBuf::from)
}
