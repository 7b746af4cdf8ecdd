//! The end of a `Locker`.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, RwLock, watch};
use tokio::time::timeout;

use crate::tenure::Tenure;
use crate::util::{is_true, lock};
use crate::{Error, Locker, machine};

/// What keeps `close` waiting: a request under way, or what undoes one.
pub(crate) type UnderWay = OwnedRwLockReadGuard<()>;

#[derive(Default)]
pub(crate) struct Closing {
    is_closed: watch::Sender<bool>,
    under_way: Arc<RwLock<()>>,
    sessions: Mutex<Vec<Weak<Tenure>>>,
}

impl Closing {
    pub(crate) fn is_closed(&self) -> bool {
        *self.is_closed.borrow()
    }

    /// Turns true at `close`.
    pub(crate) fn signal(&self) -> watch::Receiver<bool> {
        self.is_closed.subscribe()
    }

    /// From now on `close` waits for this. Nothing begins once it is closed.
    pub(crate) async fn begin(&self) -> Result<UnderWay, Error> {
        let guard = self.under_way.clone().read_owned().await;
        if self.is_closed() { Err(Error::Closed) } else { Ok(guard) }
    }

    /// As [`Closing::begin`], without waiting.
    pub(crate) fn begin_now(&self) -> Option<UnderWay> {
        let guard = self.under_way.clone().try_read_owned().ok();
        guard.filter(|_| !self.is_closed())
    }

    /// Taken for writing, nothing is under way.
    pub(crate) fn under_way(&self) -> Arc<RwLock<()>> {
        self.under_way.clone()
    }

    /// The result of the work, or [`Error::Closed`] if the client is closed first.
    pub(crate) async fn or_closed<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut signal = self.signal();
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = is_true(&mut signal) => Err(Error::Closed),
        }
    }

    /// It is lost when it is closed.
    pub(crate) fn session(&self, tenure: &Arc<Tenure>) {
        remember(&self.sessions, tenure);
    }
}

/// Remembers a hold until nobody has it any more.
fn remember<T>(all: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut all = lock(all);
    if all.len() == all.capacity() {
        all.retain(|each| each.strong_count() > 0);
        let double = all.len() + 1;
        all.reserve(double); // seldom enough, however many there are
    }
    all.push(Arc::downgrade(one));
}

impl Locker {
    /// Closes this locker and its clones. Waits end with [`Error::Closed`], and what they left at the server is undone,
    /// for at most a second. The holds of sessions are lost at once. Others are renewed no more, and are lost at their
    /// deadlines. When this returns, all connections are closed; afterward nothing is granted, and nothing is connected to.
    pub async fn close(&self) {
        let inner = &self.inner;
        inner.closing.is_closed.send_replace(true);
        let undone = inner.closing.under_way.clone().write_owned();
        let _ = timeout(Duration::from_millis(machine::CLOSES + machine::LATE), undone).await;
        inner.servers.close();
        for tenure in lock(&inner.closing.sessions).drain(..).filter_map(|each| each.upgrade()) {
            if let Some(line) = lock(&tenure.line).take() {
                tenure.lose();
                drop(line);
            }
        }
        tokio::task::yield_now().await; // the task of a connection closes it once it notices that nobody needs it
    }
}
