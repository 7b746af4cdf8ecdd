//! The end of a `Locker`: at once, or when nothing is held any more.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, RwLock, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::seat::Seat;
use crate::tenure::Tenure;
use crate::util::{is_true, lock};
use crate::{Error, Locker, machine};

/// What `close` waits for: a request in progress, or the undoing of one.
pub(crate) type UnderWay = OwnedRwLockReadGuard<()>;

/// How often a drain looks whether anybody holds.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(crate) struct Closing {
    is_draining: watch::Sender<bool>,
    is_closed: watch::Sender<bool>,
    under_way: Arc<RwLock<()>>,
    holds: Mutex<Vec<Known>>,
}

/// A hold, as long as somebody has it.
struct Known {
    seat: Weak<Seat>,
    tenure: Weak<Tenure>,
}

impl Closing {
    pub(crate) fn is_closed(&self) -> bool {
        *self.is_closed.borrow()
    }

    /// Whether nothing new is acquired any more.
    pub(crate) fn is_draining(&self) -> bool {
        *self.is_draining.borrow()
    }

    /// Turns true at `drain`, and at `close`.
    pub(crate) fn drains(&self) -> watch::Receiver<bool> {
        self.is_draining.subscribe()
    }

    /// Turns true at `close`.
    pub(crate) fn signal(&self) -> watch::Receiver<bool> {
        self.is_closed.subscribe()
    }

    /// From now on, `close` waits for this. After the close, nothing begins.
    pub(crate) async fn begin(&self) -> Result<UnderWay, Error> {
        let guard = self.under_way.clone().read_owned().await;
        if self.is_closed() { Err(Error::Closed) } else { Ok(guard) }
    }

    /// Like [`Closing::begin`], without waiting.
    pub(crate) fn begin_now(&self) -> Option<UnderWay> {
        let guard = self.under_way.clone().try_read_owned().ok();
        guard.filter(|_| !self.is_closed())
    }

    /// When it is locked for writing, nothing is in progress.
    pub(crate) fn under_way(&self) -> Arc<RwLock<()>> {
        self.under_way.clone()
    }

    /// The hold, of which a drain and `close` want to know.
    pub(crate) fn remember(&self, seat: &Arc<Seat>, tenure: &Arc<Tenure>) {
        let mut all = lock(&self.holds);
        if all.len() == all.capacity() {
            all.retain(|each| each.tenure.strong_count() > 0);
            let double = all.len() + 1;
            all.reserve(double); // seldom enough, however many there are
        }
        all.push(Known { seat: Arc::downgrade(seat), tenure: Arc::downgrade(tenure) });
    }

    /// What is held, and where.
    fn held(&self) -> Vec<(Arc<Seat>, Arc<Tenure>)> {
        let known = |each: &Known| Some((each.seat.upgrade()?, each.tenure.upgrade()?));
        let all = lock(&self.holds).iter().filter_map(known).collect::<Vec<_>>();
        all.into_iter().filter(|(_, tenure)| tenure.is_held()).collect()
    }

    /// Whether no request is under way, and nothing is held.
    fn is_idle(&self) -> bool {
        self.under_way.try_write().is_ok() && self.held().is_empty()
    }
}

/// The result of the work, or [`Error::Closed`] if the signal turns true first.
pub(crate) async fn unless<T>(
    mut signal: watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = is_true(&mut signal) => Err(Error::Closed),
    }
}

impl Locker {
    /// Acquires nothing from now on, ends waits with [`Error::Closed`], and waits until what is held has been released; then
    /// closes this locker and its clones. Returns the keys that are still held when the time is up: their holds are lost
    /// at once, and others are kept out until the leases end.
    pub async fn drain(&self, timeout: Duration) -> Vec<Vec<u8>> {
        let closing = &self.inner.closing;
        closing.is_draining.send_replace(true);
        let begin = Instant::now();
        while begin.elapsed() < timeout && !closing.is_closed() && !closing.is_idle() {
            sleep(LOOK.min(timeout.saturating_sub(begin.elapsed()))).await;
        }
        let mut left = Vec::new();
        for (seat, tenure) in closing.held() {
            tenure.lose();
            match &tenure.options.parts {
                Some(parts) => left.extend(parts.iter().map(|one| one.key.clone())),
                None => left.push(seat.key.clone()),
            }
        }
        left.sort();
        self.close().await;
        left
    }

    /// Closes this locker and its clones. Waits end with [`Error::Closed`], and what they left at the server is undone,
    /// for at most a second. The holds of sessions are lost at once. Others are no longer renewed, and are lost at
    /// their deadlines. When this returns, all connections are closed; afterward nothing is granted, and no
    /// connection is opened.
    pub async fn close(&self) {
        let inner = &self.inner;
        inner.closing.is_draining.send_replace(true);
        inner.closing.is_closed.send_replace(true);
        let undone = inner.closing.under_way.clone().write_owned();
        let _ = timeout(Duration::from_millis(machine::CLOSES + machine::LATE), undone).await;
        inner.servers.close();
        let holds = std::mem::take(&mut *lock(&inner.closing.holds));
        for tenure in holds.into_iter().filter_map(|each| each.tenure.upgrade()) {
            if let Some(line) = lock(&tenure.line).take() {
                tenure.lose();
                drop(line);
            }
        }
        tokio::task::yield_now().await; // the task of a connection closes it once it notices that nobody needs it
    }
}
