//! The same interface for threads: calls block the thread. A thread of the crate renews holds.

mod turns;

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use redis::{Client, IntoConnectionInfo, RedisError, RedisResult};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::RwLock;

use crate::Error;
use crate::clock::at;
pub use turns::{Any, Once};

/// As [`crate::Locker`].
#[derive(Clone)]
pub struct Locker {
    locker: crate::Locker,
    runtime: Arc<Background>,
}

/// The crate's thread, and what is in progress there.
#[derive(Debug)]
struct Background {
    runtime: Option<Runtime>,
    under_way: Arc<RwLock<()>>,
}

impl Background {
    /// Runs the work there, while this thread waits.
    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (tell, told) = mpsc::sync_channel(1);
        self.runtime.as_ref()?.spawn(async move { tell.send(work.await) });
        told.recv().ok()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Wherever the last clone is dropped, nothing waits for the thread; but what calls have
        // left is undone first.
        if let Some(runtime) = self.runtime.take() {
            let (thread, under_way) = (runtime.handle().clone(), self.under_way.clone());
            thread.spawn(async move {
                drop(under_way.write().await);
                runtime.shutdown_background();
            });
        }
    }
}

/// As [`crate::Request`].
#[derive(Clone)]
#[must_use = "nothing is asked before `acquire`"]
pub struct Request {
    request: crate::Request,
    runtime: Arc<Background>,
}

/// Like [`crate::Hold`]: dropping it releases the level.
#[derive(Debug)]
#[must_use = "a hold that is dropped is released"]
pub struct Hold {
    hold: Option<crate::Hold>,
    loss: crate::Loss,
    runtime: Arc<Background>,
}

impl Locker {
    /// For the single server of `client`. # Errors When no thread can be started.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(client: Client) -> RedisResult<Locker> {
        Locker::with(crate::Locker::new(client))
    }

    /// Like [`crate::Locker::sentinel`].
    ///
    /// # Errors
    /// When an address is invalid, or no thread can be started.
    pub fn sentinel<T: IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = T>,
        master: &str,
        node: impl IntoConnectionInfo,
    ) -> RedisResult<Locker> {
        Locker::with(crate::Locker::sentinel(sentinels, master, node)?)
    }

    /// Like [`crate::Locker::cluster`].
    ///
    /// # Errors
    /// When an address is invalid, or no thread can be started.
    pub fn cluster<T: IntoConnectionInfo>(
        seeds: impl IntoIterator<Item = T>,
    ) -> RedisResult<Locker> {
        Locker::with(crate::Locker::cluster(seeds)?)
    }

    /// Like [`crate::Locker::close`], but blocks the thread until it is done.
    pub fn close(&self) {
        let locker = self.locker.clone();
        self.runtime.run(async move { locker.close().await });
    }

    /// Like [`crate::Locker::drain`], but blocks the thread until it is done.
    #[must_use]
    pub fn drain(&self, timeout: Duration) -> Vec<Vec<u8>> {
        let locker = self.locker.clone();
        self.runtime.run(async move { locker.drain(timeout).await }).unwrap_or_default()
    }

    fn with(locker: crate::Locker) -> RedisResult<Locker> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("rlock")
            .enable_all()
            .build()?;
        let under_way = locker.inner.closing.under_way();
        let runtime = Background { runtime: Some(runtime), under_way };
        Ok(Locker { locker, runtime: Arc::new(runtime) })
    }

    /// As [`crate::Locker::listener`].
    #[must_use]
    pub fn listener(mut self, listener: impl crate::Listener) -> Locker {
        self.locker = self.locker.listener(listener);
        self
    }

    /// As [`crate::Locker::outage`].
    #[must_use]
    pub fn outage(mut self, most: Duration) -> Locker {
        self.locker = self.locker.outage(most);
        self
    }

    /// As [`crate::Locker::counts`].
    #[must_use]
    pub fn counts(&self) -> crate::Counts {
        self.locker.counts()
    }

    /// Like [`crate::Locker::all`].
    ///
    /// # Errors
    /// When these keys cannot be locked together.
    pub fn all<K: Into<crate::One>>(
        &self,
        ones: impl IntoIterator<Item = K>,
    ) -> Result<All, Error> {
        Ok(All(Request { request: self.locker.all(ones)?.0, runtime: self.runtime.clone() }))
    }

    /// Like [`crate::Locker::check`].
    ///
    /// # Errors
    /// Those of [`crate::Locker::check`].
    pub fn check(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        let (locker, key) = (self.locker.clone(), key.as_ref().to_vec());
        self.runtime.run(async move { locker.check(key).await }).unwrap_or(Err(Error::Closed))
    }

    /// As [`crate::Locker::election`].
    #[must_use]
    pub fn election(&self, key: impl AsRef<[u8]>) -> Election {
        Election { election: self.locker.election(key), runtime: self.runtime.clone() }
    }

    /// As [`crate::Locker::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Request {
        Request { request: self.locker.lock(key), runtime: self.runtime.clone() }
    }
}

impl Request {
    fn with(self, change: impl FnOnce(crate::Request) -> crate::Request) -> Request {
        Request { request: change(self.request), runtime: self.runtime }
    }

    /// As [`crate::Request::read`].
    pub fn read(self) -> Request {
        self.with(crate::Request::read)
    }

    /// As [`crate::Request::wait`].
    pub fn wait(self, wait: Duration) -> Request {
        self.with(|request| request.wait(wait))
    }

    /// As [`crate::Request::lease`].
    pub fn lease(self, lease: Duration) -> Request {
        self.with(|request| request.lease(lease))
    }

    /// As [`crate::Request::limit`].
    pub fn limit(self, count: u32) -> Request {
        self.with(|request| request.limit(count))
    }

    /// As [`crate::Request::max_queue`].
    pub fn max_queue(self, count: u32) -> Request {
        self.with(|request| request.max_queue(count))
    }

    /// As [`crate::Request::acks`].
    pub fn acks(self, replicas: u32) -> Request {
        self.with(|request| request.acks(replicas))
    }

    /// As [`crate::Request::session`].
    pub fn session(self) -> Request {
        self.with(crate::Request::session)
    }

    /// As [`crate::Request::no_renewal`].
    pub fn no_renewal(self) -> Request {
        self.with(crate::Request::no_renewal)
    }

    /// As [`crate::Request::owner_prefix`].
    pub fn owner_prefix(self, prefix: &str) -> Request {
        self.with(|request| request.owner_prefix(prefix))
    }

    /// As [`crate::Request::owner_name`].
    #[must_use]
    pub fn owner_name(&self) -> &str {
        self.request.owner_name()
    }

    /// As [`crate::Request::upgrade`].
    pub fn upgrade(self) -> Request {
        self.with(crate::Request::upgrade)
    }

    /// As [`crate::Request::owner`].
    pub fn owner(self, name: impl Into<String>) -> Request {
        self.with(|request| request.owner(name))
    }

    /// As [`crate::Request::on_trouble`].
    pub fn on_trouble(self, report: impl Fn(&RedisError) + Send + Sync + 'static) -> Request {
        self.with(|request| request.on_trouble(report))
    }

    /// Acquires the lock, and blocks the thread until then.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] when the wait has passed; the others as documented there.
    pub fn acquire(self) -> Result<Hold, Error> {
        let request = self.request;
        let waiting = request.waiting();
        let quick = self.runtime.runtime.as_ref().map(|runtime| {
            let _within = runtime.enter(); // where renewing will begin
            request.quickly()
        });
        let (quick, begun) = quick.unwrap_or_default();
        let hold = match quick {
            Some(hold) => {
                waiting.acquired();
                hold
            }
            None => {
                let asked = self.runtime.run(request.patiently(begun, waiting));
                asked.unwrap_or(Err(Error::NotAcquired))?
            }
        };
        Ok(Hold { loss: hold.loss(), hold: Some(hold), runtime: self.runtime })
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] if it is not free.
    pub fn try_acquire(self) -> Result<Hold, Error> {
        self.wait(Duration::ZERO).acquire()
    }
}

impl Hold {
    /// As [`crate::Hold::token`].
    #[must_use]
    pub fn token(&self) -> u64 {
        self.loss.tenure().token
    }

    /// As [`crate::Hold::key`].
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.hold.as_ref().map(crate::Hold::key).unwrap_or_default()
    }

    /// As [`crate::Hold::owner`].
    #[must_use]
    pub fn owner(&self) -> &str {
        self.loss.tenure().owner()
    }

    /// As [`crate::Hold::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Instant {
        at(*self.loss.tenure().deadline.borrow()).into_std()
    }

    /// As [`crate::Hold::left`].
    #[must_use]
    pub fn left(&self) -> Duration {
        self.hold.as_ref().map(crate::Hold::left).unwrap_or_default()
    }

    /// Whether it is held. Check this before each step that must not be done twice.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss.tenure().is_sure()
    }

    /// Like [`crate::Hold::loss`]. [`crate::Loss::is_lost`] does not block.
    #[must_use]
    pub fn loss(&self) -> crate::Loss {
        self.loss.clone()
    }

    /// Waits for the loss, but at most this long, and returns whether it came.
    #[must_use]
    pub fn lost_within(&self, time: Duration) -> bool {
        let loss = self.loss.clone();
        let waiting = async move { tokio::time::timeout(time, loss.lost()).await.is_ok() };
        self.runtime.run(waiting).unwrap_or(true)
    }

    /// Calls `report` on a thread of its own when the hold is lost: it may block, and acquire locks. If the hold is
    /// released, `report` is dropped.
    pub fn on_loss(&self, report: impl FnOnce() + Send + 'static) {
        let loss = self.loss.clone();
        if let Some(runtime) = &self.runtime.runtime {
            runtime.spawn(async move {
                let is_lost = loss.ended().await;
                // Dropping it may block as well: it may own another hold.
                let end = move || if is_lost { report() } else { drop(report) };
                let _ = tokio::task::spawn_blocking(end).await;
            });
        }
    }

    /// Releases the level.
    ///
    /// # Errors
    /// As [`crate::Hold::release`].
    pub fn release(mut self) -> Result<(), Error> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<(), Error> {
        match self.hold.take() {
            Some(mut hold) => match hold.release_quickly() {
                Some(outcome) => outcome,
                None => self.runtime.run(hold.release()).unwrap_or(Err(Error::Lost)),
            },
            None => Ok(()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.let_go(); // the thread ends with the last of its users, so this waits
    }
}

/// As [`crate::All`].
#[derive(Clone)]
#[must_use = "nothing is asked before `acquire`"]
pub struct All(Request);

impl All {
    /// As [`crate::All::wait`].
    pub fn wait(self, wait: Duration) -> All {
        All(self.0.wait(wait))
    }

    /// As [`crate::All::lease`].
    pub fn lease(self, lease: Duration) -> All {
        All(self.0.lease(lease))
    }

    /// As [`crate::All::max_queue`].
    pub fn max_queue(self, count: u32) -> All {
        All(self.0.max_queue(count))
    }

    /// As [`crate::All::acks`].
    pub fn acks(self, replicas: u32) -> All {
        All(self.0.acks(replicas))
    }

    /// As [`crate::All::session`].
    pub fn session(self) -> All {
        All(self.0.session())
    }

    /// As [`crate::All::no_renewal`].
    pub fn no_renewal(self) -> All {
        All(self.0.no_renewal())
    }

    /// As [`crate::All::owner_prefix`].
    pub fn owner_prefix(self, prefix: &str) -> All {
        All(self.0.owner_prefix(prefix))
    }

    /// As [`crate::All::on_trouble`].
    pub fn on_trouble(self, report: impl Fn(&RedisError) + Send + Sync + 'static) -> All {
        All(self.0.on_trouble(report))
    }

    /// Acquires them all, and blocks the thread until then.
    ///
    /// # Errors
    /// As [`Request::acquire`].
    pub fn acquire(self) -> Result<Hold, Error> {
        self.0.acquire()
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.as_ref().map_or(Ok(()), |hold| hold.fmt(f))
    }
}

/// As [`crate::Election`].
#[derive(Clone)]
pub struct Election {
    election: crate::Election,
    runtime: Arc<Background>,
}

impl Election {
    /// As [`crate::Election::name`].
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Election {
        Election { election: self.election.name(name), ..self }
    }

    /// As [`crate::Election::lease`].
    #[must_use]
    pub fn lease(self, lease: Duration) -> Election {
        Election { election: self.election.lease(lease), ..self }
    }

    /// Like [`crate::Election::leader`].
    ///
    /// # Errors
    /// Those of [`crate::Election::leader`].
    pub fn leader(&self) -> Result<Option<crate::Leader>, Error> {
        let election = self.election.clone();
        let asked = self.runtime.run(async move { election.leader().await });
        asked.unwrap_or(Err(Error::Closed))
    }

    /// As [`crate::Election::campaign`].
    pub fn campaign(&self) -> Request {
        Request { request: self.election.campaign(), runtime: self.runtime.clone() }
    }

    /// Like [`crate::Election::observe`]: each item blocks until the leader has changed. It ends if
    /// the server refuses.
    pub fn observe(&self) -> impl Iterator<Item = Option<crate::Leader>> + Send + use<> {
        let observer = Arc::new(tokio::sync::Mutex::new(self.election.observe()));
        let runtime = self.runtime.clone();
        std::iter::from_fn(move || {
            let observer = observer.clone();
            runtime.run(async move { observer.lock().await.next().await })?.ok()
        })
    }
}
