//! `rlock run`: runs a command while a lock is held. The hold has a session, so it ends with this
//! process or with its connection; when the hold is lost, this process ends the command.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::RedisError;
use rlock_client::{All, Error, Hold, One, Request};
use rustix::process::{
    Pid, Signal, WaitOptions, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, test_kill_process_group, waitpgid,
};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::args::{IfItFails, Run};
use crate::complain;
use crate::servers::Trouble;
use crate::signals::{Ending, by_signal};
use crate::tale::Tale;

/// The first argument of a process that is to become the command.
pub const CHILD: &str = "--become-the-command";

const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;
const LOST: u8 = 124;
const LOST_AND_KILLED: u8 = 137;

/// Acquires, runs the command, releases, and returns the exit code.
///
/// # Errors
/// What kept the command from being run.
pub fn run(job: &Run) -> Result<u8, Trouble> {
    // A single thread: the command gets its signal when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let code = runtime.block_on(hold_and_run(job));
    runtime.shutdown_background(); // a name that is still looked up may take long
    code
}

/// How long to wait, after the command has ended, for somebody to read the reason.
const TELL: Duration = Duration::from_secs(1);

/// Becomes the command, which from now on dies with its parent: a command must not go on without the lock when
/// `rlock` itself is killed.
#[must_use]
pub fn become_command(mut words: impl Iterator<Item = OsString>) -> u8 {
    let parent = words.next().and_then(|word| word.into_string().ok());
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let is_orphan = getppid().map(|pid| pid.as_raw_nonzero().to_string()) != parent;
    let Some(program) = words.next() else { return CANNOT_RUN };
    if is_orphan {
        return CANNOT_RUN;
    }
    let error = std::process::Command::new(&program).args(words).exec();
    complain(format_args!("{}: {error}", program.display()));
    if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN }
}

async fn hold_and_run(job: &Run) -> Result<u8, Trouble> {
    let mut signals = Ending::new().map_err(|error| error.to_string())?;
    let is_waiting = Waiting::new(AtomicBool::new(true));
    let ask = ask(job, &is_waiting)?;
    let tale = Tale::new(job, ask.owner_name());
    let acquired = tokio::select! {
        acquired = async { tale.begin().await; ask.acquire().await } => acquired,
        never = tale.waiting() => match never {},
        ended = signals.next() => return Ok(by_signal(ended)), // gave up waiting, and left nothing behind
    };
    is_waiting.store(false, Ordering::Release);
    let code = match acquired {
        Ok(hold) => {
            let since = Instant::now();
            tale.acquired(&hold);
            let code = tokio::select! {
                code = supervise(job, &hold, &mut signals) => code,
                never = tale.renewals(&hold) => match never {},
            };
            let ended = tokio::select! {
                ended = end(job, hold, since, &code) => ended,
                _ = signals.next() => return code, // the session ends with this process
            };
            tale.ended(&ended);
            match (ended, code) {
                (Err(Error::Lost), Ok(0)) => {
                    complain("the lock was lost before the command ended");
                    Ok(LOST)
                }
                (Err(error), Ok(0)) if job.once_per.is_some() => {
                    complain(format_args!(
                        "another run may begin before the interval ends: {error}"
                    ));
                    Ok(0)
                }
                (_, code) => code,
            }
        }
        Err(Error::NotAcquired) => {
            tale.refused().await;
            Ok(job.conflict.unwrap_or(1))
        }
        Err(error) => Err(error.to_string()),
    };
    tale.end().await;
    code
}

/// What is acquired: one lock, or several.
enum Ask {
    One(Request),
    Several(All),
}

impl Ask {
    fn owner_name(&self) -> &str {
        match self {
            Ask::One(request) => request.owner_name(),
            Ask::Several(all) => all.owner_name(),
        }
    }

    async fn acquire(self) -> Result<Hold, Error> {
        match self {
            Ask::One(request) => request.acquire().await,
            Ask::Several(all) => all.acquire().await,
        }
    }
}

fn ask(job: &Run, is_waiting: &Waiting) -> Result<Ask, Trouble> {
    if !job.others.is_empty() {
        return ask_for_all(job, is_waiting);
    }
    let mut request = job.at.locker()?.lock(&job.key);
    request = match job.once_per {
        None => request.session(),
        // The grant lasts for the interval, even if this process ends.
        Some(every) if !is_again(job) => request.lease(every).no_renewal(),
        Some(_) => request,
    };
    if job.is_read {
        request = request.read();
    }
    if let Some(wait) = job.wait.or(job.once_per.map(|_| Duration::ZERO)) {
        request = request.wait(wait);
    }
    if let Some(limit) = job.limit {
        request = request.limit(limit);
    }
    if let Some(lease) = job.lease {
        request = request.lease(lease);
    }
    if let Some(acks) = job.acks {
        request = request.acks(acks);
    }
    if let Some(most) = job.max_queue {
        request = request.max_queue(most);
    }
    if let Some(owner) = &job.owner {
        request = request.owner(owner);
    }
    Ok(Ask::One(request.on_trouble(trouble(job, is_waiting)?)))
}

fn ask_for_all(job: &Run, is_waiting: &Waiting) -> Result<Ask, Trouble> {
    let first = match (job.limit, job.is_read) {
        (Some(count), _) => rlock_client::limit(&job.key, count),
        (None, true) => rlock_client::read(&job.key),
        (None, false) => One::from(&job.key),
    };
    let ones = std::iter::once(first).chain(job.others.iter().cloned());
    let mut request = job.at.locker()?.all(ones).map_err(|error| error.to_string())?.session();
    if let Some(wait) = job.wait {
        request = request.wait(wait);
    }
    if let Some(lease) = job.lease {
        request = request.lease(lease);
    }
    if let Some(acks) = job.acks {
        request = request.acks(acks);
    }
    if let Some(most) = job.max_queue {
        request = request.max_queue(most);
    }
    Ok(Ask::Several(request.on_trouble(trouble(job, is_waiting)?)))
}

fn is_again(job: &Run) -> bool {
    job.if_it_fails == Some(IfItFails::Again)
}

/// Releases the lock, or keeps it until the interval that began at `since` ends.
async fn end(
    job: &Run,
    hold: Hold,
    since: Instant,
    code: &Result<u8, Trouble>,
) -> Result<(), Error> {
    let Some(every) = job.once_per else { return hold.release().await };
    let is_kept = match code {
        Err(_) => false, // nothing was run
        Ok(code) => *code == 0 || !is_again(job),
    };
    let left = every.saturating_sub(since.elapsed());
    if !is_kept || left.is_zero() || !hold.is_held() {
        return hold.release().await;
    }
    if is_again(job) {
        return hold.release_and_keep_out(left).await;
    }
    std::mem::forget(hold); // what is dropped is released
    Ok(())
}

/// Whether the command still waits for the lock.
type Waiting = Arc<AtomicBool>;

/// Reports that it still waits. The package calls this on a thread of its own, so it may come too
/// late.
fn trouble(
    job: &Run,
    is_waiting: &Waiting,
) -> Result<impl Fn(&RedisError) + Send + Sync + 'static, Trouble> {
    let (key, is_waiting) = (job.key.clone(), is_waiting.clone());
    let at: Vec<_> =
        job.at.nodes()?.iter().map(|node| node.get_connection_info().addr().to_string()).collect();
    Ok(move |trouble: &RedisError| {
        if is_waiting.load(Ordering::Acquire) {
            complain(format_args!("still waiting for {key}: {}: {trouble}", at.join(", ")));
        }
    })
}

fn start(job: &Run, hold: &Hold) -> Result<Child, Trouble> {
    // Not by the path of the program: by now, that may be another program, or none.
    let mut command = Command::new("/proc/self/exe");
    command.arg(CHILD).arg(std::process::id().to_string()).args(&job.command);
    command
        .env("RLOCK_KEY", &job.key)
        .env("RLOCK_TOKEN", hold.token().to_string())
        .env("RLOCK_OWNER", hold.owner());
    if !is_foreground(job) {
        command.process_group(0); // what the command starts is to end with it
    }
    command.spawn().map_err(|error| error.to_string())
}

/// In a process group of its own, a command that reads the terminal would be stopped silently.
fn is_foreground(job: &Run) -> bool {
    job.is_foreground || std::io::stdin().is_terminal()
}

async fn supervise(job: &Run, hold: &Hold, signals: &mut Ending) -> Result<u8, Trouble> {
    // Read now: a terminal that hung up can no longer be asked.
    let (in_terminal, is_foreground) = (std::io::stdin().is_terminal(), is_foreground(job));
    let mut child = start(job, hold)?;
    let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let tell = |signal: Signal| {
        if let Some(id) = id {
            let _ = if is_foreground {
                kill_process(id, signal)
            } else {
                kill_process_group(id, signal)
            };
        }
    };
    let (mut is_lost, mut killed, mut kill_at, mut ended) = (false, false, None, None);
    let mut told = None;
    loop {
        if let Some(status) = ended
            && (!is_lost || killed || is_foreground || !id.is_some_and(has_members))
        {
            if let Some(told) = told {
                let _ = timeout(TELL, told).await;
            }
            return Ok(match (is_lost, killed) {
                (false, _) => code_of(status),
                (true, false) => LOST,
                (true, true) => LOST_AND_KILLED,
            });
        }
        tokio::select! {
            status = child.wait(), if ended.is_none() => {
                ended = Some(status.map_err(|error| error.to_string())?);
            }
            () = sleep(Duration::from_millis(20)), if ended.is_some() => {} // there is no signal for a group that is empty
            () = hold.lost(), if !is_lost => {
                tell(Signal::TERM);
                // In a thread of its own: a reader of standard error that stalls must not keep the
                // command alive.
                let loss = format!("the lock of {} is lost; ending the command", job.key);
                told = Some(spawn_blocking(move || complain(loss)));
                is_lost = true;
                kill_at = Some(Instant::now() + job.kill_after.unwrap_or(Duration::from_secs(5)));
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                tell(Signal::KILL);
                (killed, kill_at) = (true, None);
            }
            // The terminal has sent the signal to the whole group.
            signal = signals.next() => {
                let is_told = in_terminal && matches!(signal, Signal::INT | Signal::QUIT);
                if !is_told || !is_foreground {
                    tell(signal);
                }
            }
        }
    }
}

/// Whether processes that the command started still run after it has ended.
fn has_members(group: Pid) -> bool {
    // In a container, this process may be the one that inherits orphans.
    while matches!(waitpgid(group, WaitOptions::NOHANG), Ok(Some(_))) {}
    test_kill_process_group(group).is_ok()
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(CANNOT_RUN)
}
