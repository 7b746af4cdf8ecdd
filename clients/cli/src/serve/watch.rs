//! The one thread that looks at the servers: once a second while a browser follows, otherwise every
//! five seconds, and more rarely if the busiest server would spend more than a hundredth of its
//! time on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch::{Receiver, Sender, channel};

use super::history::History;
use super::look::{Followed, Looker, Seen};
use crate::servers::{Server, Where};

/// The interval while a browser follows, which is also the shortest time between two looks.
const OFTEN: Duration = Duration::from_secs(1);
/// The interval while no browser follows: it fills the plots for whoever opens the page later.
const SELDOM: Duration = Duration::from_secs(5);
/// A server may spend at most one part in this many of its time on our looks.
const SHARE: u32 = 100;
/// The median cost of this many looks decides how often to look, so that one slow look does not count.
const COSTS: usize = 5;
/// The most browsers that follow at the same time.
const VIEWERS: usize = 32;
/// The most locks that browsers follow at the same time.
const LOCKS: usize = 16;
/// How long a scrape waits for a look.
const PATIENCE: Duration = Duration::from_secs(5);
/// For this long, scrapes report a server as down without waiting for the request in progress.
const DOWN: Duration = Duration::from_secs(12);
/// A look that takes longer is stuck.
pub const STUCK: Duration = Duration::from_secs(120);

/// The latest look, and who wants more. All clones share one state.
#[derive(Clone)]
pub struct Watch {
    seen: Receiver<Arc<Seen>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    changed: Condvar,
    history: Mutex<History>,
    servers: Mutex<Vec<Server>>,
}

#[derive(Default)]
struct Wanted {
    viewers: usize,
    locks: BTreeMap<Followed, usize>,
    /// Somebody waits for a look.
    is_asked: bool,
}

/// A browser that follows, until it is dropped.
pub struct Viewer {
    /// The lock that it follows, in addition to the list.
    pub lock: Option<Followed>,
    shared: Arc<Shared>,
}

/// Why no more browsers can follow.
#[derive(Debug)]
pub struct Busy(pub &'static str);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Starts the thread, which ends with the program.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(at: Where) -> std::io::Result<Watch> {
        let (sender, seen) = channel(Arc::new(Seen::nothing()));
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        thread::Builder::new().name("looks".into()).spawn(move || own.look_on(at, &sender))?;
        Ok(Watch { seen, shared })
    }

    /// Each look.
    #[must_use]
    pub fn seen(&self) -> Receiver<Arc<Seen>> {
        self.seen.clone()
    }

    /// The last look.
    #[must_use]
    pub fn latest(&self) -> Arc<Seen> {
        self.seen.borrow().clone()
    }

    /// How long ago the last look began; `None` before the first one ended.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let seen = self.latest();
        (seen.unix_ms > 0).then(|| seen.begun.elapsed())
    }

    /// The latest look, or a new one if that is older than the shortest time between two looks. If
    /// none ends in time, all servers are reported as silent.
    pub async fn fresh(&self) -> Arc<Seen> {
        let is_fresh = |seen: &Arc<Seen>| {
            // While a server is silent, each look takes longer than Prometheus may want to wait.
            let is_recent = if seen.is_up() {
                seen.begun.elapsed() < least_pause(seen.every)
            } else {
                seen.ended.elapsed() < DOWN
            };
            seen.unix_ms > 0 && is_recent
        };
        let mut seen = self.seen.clone();
        if !is_fresh(&self.latest()) {
            locked(&self.shared.wanted).is_asked = true;
            self.shared.changed.notify_all();
            let waited = tokio::time::timeout(PATIENCE, seen.wait_for(is_fresh)).await;
            if waited.is_err() {
                return Arc::new(self.latest().silent());
            }
        }
        self.latest()
    }

    /// The points of the plots.
    #[must_use]
    pub fn history(&self) -> String {
        locked(&self.shared.history).json()
    }

    /// The servers of the last look.
    #[must_use]
    pub fn servers(&self) -> Vec<Server> {
        locked(&self.shared.servers).clone()
    }

    /// The servers of the last look that are primaries, as far as that is known: a replica has
    /// copies of its primary's locks.
    #[must_use]
    pub fn primaries(&self) -> Vec<Server> {
        let seen = self.latest();
        let is_replica = |server: &Server| {
            let told = seen.servers.iter().find(|told| told.name == server.name);
            told.and_then(|told| told.part.as_ref().ok()).is_some_and(|part| !part.is_primary())
        };
        let all = self.servers();
        let primaries: Vec<Server> =
            all.iter().filter(|server| !is_replica(server)).cloned().collect();
        if primaries.is_empty() { all } else { primaries }
    }

    /// Registers a browser that follows the page, and perhaps one lock in detail.
    ///
    /// # Errors
    /// If there are too many already.
    pub fn view(&self, lock: Option<Followed>) -> Result<Viewer, Busy> {
        let mut wanted = locked(&self.shared.wanted);
        if wanted.viewers >= VIEWERS {
            return Err(Busy("32 browsers are connected already"));
        }
        if let Some(lock) = &lock {
            if !wanted.locks.contains_key(lock) && wanted.locks.len() >= LOCKS {
                return Err(Busy("16 locks are followed already"));
            }
            *wanted.locks.entry(lock.clone()).or_default() += 1;
        }
        wanted.viewers += 1;
        self.shared.changed.notify_all();
        Ok(Viewer { lock, shared: self.shared.clone() })
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut wanted = locked(&self.shared.wanted);
        wanted.viewers = wanted.viewers.saturating_sub(1);
        let Some(lock) = &self.lock else { return };
        if let Some(count) = wanted.locks.get_mut(lock) {
            *count -= 1;
            if *count == 0 {
                wanted.locks.remove(lock);
            }
        }
    }
}

/// A scrape may bring a look forward, but not so far that the servers' share of time is exceeded.
fn least_pause(every: Duration) -> Duration {
    if every > SELDOM { every } else { OFTEN }
}

impl Shared {
    fn look_on(&self, at: Where, sender: &Sender<Arc<Seen>>) {
        let mut looker = Looker::new(at);
        let mut costs = VecDeque::new();
        let mut before: Option<Arc<Seen>> = None;
        loop {
            let (is_followed, locks) = self.wait(before.as_deref());
            let mut seen = looker.look(&locks);
            *locked(&self.servers) = looker.servers();
            costs
                .push_back(seen.servers.iter().map(|server| server.busy).max().unwrap_or_default());
            if costs.len() > COSTS {
                costs.pop_front();
            }
            let pause = median(&costs).saturating_mul(SHARE);
            seen.every = pause.max(if is_followed { OFTEN } else { SELDOM });
            let looks = u32::try_from(costs.len()).unwrap_or(1);
            let spent: Duration = costs.iter().sum();
            seen.share = spent.as_secs_f64() / (seen.every * looks).as_secs_f64();
            // If the server changed or was down, its counters do not continue the previous ones.
            if let Some(before) = before.filter(|before| is_continued(before, &seen)) {
                let point = locked(&self.history).add(&before.now, &seen.now, seen.unix_ms);
                seen.point = Some(point);
            }
            seen.ended = Instant::now();
            let seen = Arc::new(seen);
            before = Some(seen.clone());
            if sender.send(seen).is_err() {
                return;
            }
        }
    }

    /// Waits until the next look is due; returns whether a browser follows, and which locks.
    fn wait(&self, last: Option<&Seen>) -> (bool, BTreeSet<Followed>) {
        let mut wanted = locked(&self.wanted);
        loop {
            let is_followed = wanted.viewers > 0;
            let left = last.map_or(Duration::ZERO, |last| {
                let is_soon = is_followed || wanted.is_asked;
                let pause = if is_soon { least_pause(last.every) } else { last.every };
                (last.begun + pause).saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                wanted.is_asked = false;
                return (is_followed, wanted.locks.keys().cloned().collect());
            }
            let woken = self.changed.wait_timeout(wanted, left);
            wanted = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn median(costs: &VecDeque<Duration>) -> Duration {
    let mut sorted: Vec<Duration> = costs.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

fn is_continued(before: &Seen, now: &Seen) -> bool {
    let names =
        |seen: &Seen| seen.servers.iter().map(|server| server.name.clone()).collect::<Vec<_>>();
    before.is_up() && now.is_up() && names(before) == names(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_costly_look_does_not_slow_the_page_down_but_several_do() {
        let ms = Duration::from_millis;
        assert_eq!(median(&VecDeque::new()), Duration::ZERO);
        assert_eq!(median(&VecDeque::from([ms(1), ms(2900)])), ms(1));
        assert_eq!(median(&VecDeque::from([ms(1), ms(2900), ms(1), ms(2), ms(1)])), ms(1));
        assert_eq!(median(&VecDeque::from([ms(100), ms(120), ms(1), ms(110), ms(90)])), ms(100));
        assert_eq!(least_pause(ms(1000)), OFTEN);
        assert_eq!(least_pause(SELDOM), OFTEN);
        assert_eq!(least_pause(ms(10_000)), ms(10_000));
    }
}
