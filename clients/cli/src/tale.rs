//! `rlock run -v`: reports each step in a line on standard error.

use std::convert::Infallible;
use std::future::pending;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rlock_client::{Error, Hold};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::args::Run;
use crate::complain;
use crate::place::{Place, Wanted};
use crate::servers::{Trouble, Where};
use crate::snapshot::Name;
use crate::view::short;

/// When to look first for who is ahead, and how often to check whether that has changed.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often to check whether the hold was renewed.
const RENEWED_EVERY: Duration = Duration::from_millis(200);
/// How long to wait at the end until everything is written.
const TELL: Duration = Duration::from_secs(1);

/// Prints nothing unless `-v` is given.
pub(crate) struct Tale {
    voice: Option<Voice>,
    at: Where,
    keys: Vec<Wanted>,
    /// The keys, as printed.
    names: String,
    owner: String,
    is_once: bool,
    begun: Instant,
}

/// Prints lines in a thread of its own: a reader that stalls must not keep the command alive.
struct Voice {
    lines: Sender<String>,
    done: oneshot::Receiver<()>,
}

impl Voice {
    fn new() -> Voice {
        let (lines, heard) = channel::<String>();
        let (end, done) = oneshot::channel();
        thread::spawn(move || {
            for line in heard {
                complain(line);
            }
            let _ = end.send(());
        });
        Voice { lines, done }
    }
}

impl Tale {
    pub(crate) fn new(job: &Run, owner: &str) -> Tale {
        let first = (Name(job.key.clone().into_bytes()), !job.is_read && job.limit.is_none());
        let others = job.others.iter().map(|one| (Name(one.key().to_vec()), !one.is_read()));
        let keys: Vec<Wanted> = std::iter::once(first).chain(others).collect();
        let names = keys.iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>().join(", ");
        Tale {
            voice: job.is_verbose.then(Voice::new),
            at: job.at.clone(),
            keys,
            names,
            owner: owner.to_owned(),
            is_once: job.once_per.is_some(),
            begun: Instant::now(),
        }
    }

    fn say(&self, line: String) {
        if let Some(voice) = &self.voice {
            let _ = voice.lines.send(line);
        }
    }

    /// Asks the server, in a thread that may block.
    async fn look(&self) -> Result<(String, Place), Trouble> {
        let (at, keys, owner) = (self.at.clone(), self.keys.clone(), self.owner.clone());
        let look = spawn_blocking(move || Place::find(&at, &keys, &owner));
        look.await.map_err(|error| error.to_string())?
    }

    /// Before it asks.
    pub(crate) async fn begin(&self) {
        if self.voice.is_none() {
            return;
        }
        match self.look().await {
            Ok((server, _)) => self.say(format!("connected to {server}")),
            Err(trouble) => self.say(format!("not connected: {trouble}")),
        }
        self.say(format!("asking for {} as {}", self.names, self.owner));
    }

    /// Runs while the command waits.
    pub(crate) async fn waiting(&self) -> Infallible {
        if self.voice.is_none() {
            return pending().await;
        }
        let mut known = None;
        sleep(FIRST_LOOK).await;
        loop {
            // An error here is not printed: `on_trouble` reports when no server is reachable.
            if let Ok((_, found)) = self.look().await
                && let Some(place) = found.place
            {
                let tokens: Vec<u64> = found.lock.holders.iter().map(|hold| hold.token).collect();
                let now = (found.key.clone(), place, tokens);
                if known.as_ref() != Some(&now) {
                    let way = found.in_the_way();
                    self.say(format!("waiting for {}, place {place} in line: {way}", found.key));
                    known = Some(now);
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    pub(crate) fn acquired(&self, hold: &Hold) {
        let took = short(self.begun.elapsed());
        self.say(format!("acquired {} with token {} after {took}", self.names, hold.token()));
    }

    /// It was not acquired.
    pub(crate) async fn refused(&self) {
        if self.voice.is_none() {
            return;
        }
        let way = match self.look().await {
            Ok((_, found)) => match (found.lock.holders.first(), self.is_once) {
                (Some(ran), true) => format!(
                    "{} ran {} ago, and the interval ends in {}",
                    ran.owner,
                    short(ran.held),
                    short(ran.left)
                ),
                _ => found.in_the_way(),
            },
            Err(trouble) => trouble,
        };
        self.say(format!("not acquired {}: {way}", self.names));
    }

    /// Runs while the lock is held.
    pub(crate) async fn renewals(&self, hold: &Hold) -> Infallible {
        if self.voice.is_none() {
            return pending().await;
        }
        let mut known = hold.deadline();
        loop {
            sleep(RENEWED_EVERY).await;
            let deadline = hold.deadline();
            if deadline > known {
                let left = deadline.saturating_duration_since(std::time::Instant::now());
                self.say(format!("renewed {}: certain for {}", self.names, short(left)));
                known = deadline;
            }
        }
    }

    pub(crate) fn ended(&self, outcome: &Result<(), Error>) {
        self.say(match outcome {
            Ok(()) if self.is_once => format!("done with {}", self.names),
            Ok(()) => format!("released {}", self.names),
            Err(error) => format!("not released {}: {error}", self.names),
        });
    }

    /// Waits briefly until all lines are written.
    pub(crate) async fn end(self) {
        if let Some(Voice { lines, done }) = self.voice {
            drop(lines);
            let _ = timeout(TELL, done).await;
        }
    }
}
