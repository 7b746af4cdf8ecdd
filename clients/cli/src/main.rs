//! Run a command under a lock, and see who holds and who waits.

use std::io::Write;
use std::process::ExitCode;

use rlock_cli::args::{Job, parse};
use rlock_cli::help::help;
use rlock_cli::{complain, list, mcp, run, serve, show, take, top, watch};

/// The exit code when rlock itself failed, the same as that of `timeout`.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.next_if(|word| word == run::CHILD).is_some() {
        return ExitCode::from(run::become_command(words));
    }
    let outcome = match parse(words) {
        Ok(Job::Help(job)) => print(&help(job)),
        Ok(Job::Version) => print(concat!("rlock ", env!("CARGO_PKG_VERSION"))),
        Ok(Job::Run(job)) => run::run(&job),
        Ok(Job::Top { at, is_once: true, count }) => {
            top::once(&at, count).and_then(|page| print(&page))
        }
        Ok(Job::Top { at, count, .. }) => top::live(&at, count).map(|()| 0),
        Ok(Job::Who { at, key }) => show::who(&at, &key).and_then(|page| print(&page)),
        Ok(Job::Watch { at, key }) => {
            let line = |line: &str| writeln!(std::io::stdout(), "{line}").is_ok();
            watch::watch(&at, &key, line, |trouble| complain(trouble)).map(|()| 0)
        }
        Ok(Job::Queues { at, count }) => show::queues(&at, count).and_then(|page| print(&page)),
        Ok(Job::Ls(job)) => list::ls(&job),
        Ok(Job::Release(job)) => list::release(&job),
        Ok(Job::Take(job)) => take::take(&job, print),
        Ok(Job::Mcp(job)) => mcp::mcp(&job),
        Ok(Job::Serve(job)) => serve::serve(&job).map(|()| 0),
        Err(wrong) => Err(format!("{wrong}\nTry 'rlock --help'.")),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(trouble) => {
            complain(trouble);
            ExitCode::from(FAILED)
        }
    }
}

/// A reader that closed the pipe (`rlock queues | head`) is no error.
fn print(page: &str) -> Result<u8, String> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", page.trim_end()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(0),
    }
}
