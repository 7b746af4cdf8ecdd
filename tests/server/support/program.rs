//! A client that is a process of its own, so that it can die as processes do.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::Server;
use super::client::REPLY_MS_MAX;

/// `redis-cli`, which says line by line what it is told to.
pub struct Program {
    process: Child,
    input: ChildStdin,
    output: Receiver<String>,
}

impl Program {
    /// Starts it, connected to the server.
    #[track_caller]
    pub fn start(server: &Server) -> Program {
        let mut command = Command::new(cli_program());
        command.arg("-s").arg(server.socket());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("redis-cli: {error}"));
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

    /// Says `line` and goes on.
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

impl Drop for Program {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// `RLOCK_CLI`, else the one that `make` has fetched.
fn cli_program() -> PathBuf {
    let fetched =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".tools/servers/default/redis-cli");
    std::env::var_os("RLOCK_CLI").map_or(fetched, PathBuf::from)
}
