//! Locks for redis-rs on Redis and Valkey servers with the RLOCK module: reentrant, fair, read-write, fenced.
//!
//! ```no_run
//! # async fn work(token: u64) {}
//! # async fn example() -> Result<(), rlock_client::Error> {
//! let locker = rlock_client::Locker::new(redis::Client::open("redis://127.0.0.1:6380")?);
//! let task = tokio::spawn(async move { // or a handler of a server
//!     let hold = locker.lock("order:42").wait(std::time::Duration::from_secs(10)).acquire().await?;
//!     tokio::select! {
//!         () = work(hold.token()) => hold.release().await,
//!         () = hold.lost() => hold.release().await, // stop at once; the release says that the hold was lost
//!     }
//! });
//! # task.await.unwrap_or(Err(rlock_client::Error::Closed))
//! # }
//! ```
//!
//! Create one [`Locker`] for the whole program; it may be cloned and shared. Each acquisition is its own owner, unless
//! [`Request::owner`] names one: then every acquisition under that name re-enters, also by another `Locker` of this
//! process. Dropping the future of [`Request::acquire`] leaves nothing behind, and dropping a [`Hold`] releases it.
//! [`blocking`] has the same for threads.

mod ask;
pub mod blocking;
mod clock;
mod closing;
mod election;
mod entry;
mod error;
mod held;
mod hold;
mod inbox;
mod info;
mod last;
#[allow(dead_code, reason = "nothing is planted here: the simulation plays that")]
mod machine;
mod node;
mod observer;
#[cfg(feature = "opentelemetry")]
pub mod otel;
mod servers;
mod several;
mod slot;
mod space;
mod telemetry;
#[cfg(test)]
#[path = "machine/trace.rs"]
#[allow(dead_code, reason = "the simulation writes what is only replayed here")]
mod trace;
mod words;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Client, Cmd, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;

pub use election::{Election, Leader, Observer};
pub use error::Error;
pub use hold::{Hold, Loss};
pub use several::{All, One, limit, read};
pub use telemetry::{Counts, Event, Listener};

use entry::{Begun, Entry};
use machine::Attempt;
use servers::{How, Servers};
use telemetry::Waiting;

/// Acquires locks.
#[derive(Clone)]
pub struct Locker {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    servers: Arc<Servers>,
    host: String,
    /// The process that they are drawn in, and the names of owners that nobody named.
    names: Mutex<(u32, machine::Names)>,
    closing: closing::Closing,
    /// Holds that nobody watches yet, and whether somebody will look after them.
    newborn: Mutex<Vec<held::Newborn>>,
    is_nursed: AtomicBool,
    telemetry: Arc<telemetry::Telemetry>,
}

impl Locker {
    /// For the one server of `client`. The crate opens its own connections with that client's settings.
    #[must_use]
    pub fn new(client: Client) -> Locker {
        Locker::with(How::One, client.get_connection_info().clone())
    }

    /// For the primary that Sentinel names `master`. `node` says how to connect to it: its user, password, database and
    /// TLS are used, its address is not.
    ///
    /// # Errors
    /// When an address is invalid.
    pub fn sentinel<T: IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = T>,
        master: &str,
        node: impl IntoConnectionInfo,
    ) -> RedisResult<Locker> {
        let sentinels =
            sentinels.into_iter().map(T::into_connection_info).collect::<RedisResult<_>>()?;
        Ok(Locker::with(
            How::Sentinel { sentinels, master: master.to_owned() },
            node.into_connection_info()?,
        ))
    }

    /// For a Cluster some of whose nodes are `seeds`.
    ///
    /// # Errors
    /// When an address is invalid, or none is given.
    pub fn cluster<T: IntoConnectionInfo>(
        seeds: impl IntoIterator<Item = T>,
    ) -> RedisResult<Locker> {
        let seeds =
            seeds.into_iter().map(T::into_connection_info).collect::<RedisResult<Vec<_>>>()?;
        let Some(template) = seeds.first().cloned() else {
            return Err((
                redis::ErrorKind::InvalidClientConfig,
                "a cluster needs a node to begin with",
            )
                .into());
        };
        Ok(Locker::with(How::Cluster { seeds }, template))
    }

    fn with(how: How, template: ConnectionInfo) -> Locker {
        let servers = Servers::new(how, template);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
            .or_else(|_| std::env::var("HOSTNAME"));
        let host: String = host.unwrap_or_else(|_| "host".into()).trim().chars().take(64).collect();
        let inner = Inner {
            servers: Arc::new(servers),
            host,
            closing: closing::Closing::default(),
            names: Mutex::new((std::process::id(), machine::Names::new(image()))),
            newborn: Mutex::default(),
            is_nursed: AtomicBool::new(false),
            telemetry: Arc::default(),
        };
        Locker { inner: Arc::new(inner) }
    }

    /// A request for the lock of `key`. By default it is the write lock, and the wait has no limit. Nothing is sent
    /// before [`Request::acquire`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Request {
        let owner = self.inner.draw();
        let options = Options {
            owner,
            is_named: false,
            lease: Duration::from_secs(30),
            wait: None,
            is_read: false,
            limit: None,
            max_queue: None,
            acks: None,
            session: false,
            upgrade: false,
            parts: None,
            on_trouble: None,
        };
        Request { inner: self.inner.clone(), key: key.as_ref().to_vec(), options }
    }
}

impl Inner {
    /// A name that nobody has, in no process.
    fn draw(&self) -> String {
        let (pid, mut names) = (std::process::id(), servers::lock(&self.names));
        if names.0 != pid {
            names.0 = pid;
            names.1.forked(image(), machine::Planted::Nothing);
        }
        let (image, count) = names.1.draw();
        format!("{}/{pid}/{image:08x}-{count}", self.host)
    }

    /// The same after a prefix.
    fn draw_after(&self, prefix: &str) -> String {
        let drawn = self.draw();
        let unique = drawn.rsplit_once('/').map_or("", |(_, unique)| unique);
        format!("{prefix}/{unique}")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.servers.close(); // what a node keeps, keeps the node
    }
}

/// Distinguishes this process from others with its number.
fn image() -> u64 {
    RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// Tells why a wait has to ask again.
type Tell = dyn Fn(&RedisError) + Send + Sync;

#[derive(Clone)]
pub(crate) struct Options {
    owner: String,
    /// By the user.
    is_named: bool,
    lease: Duration,
    wait: Option<Duration>,
    is_read: bool,
    limit: Option<u32>,
    max_queue: Option<u32>,
    acks: Option<u32>,
    session: bool,
    upgrade: bool,
    /// Several locks, in key order.
    parts: Option<Arc<[One]>>,
    on_trouble: Option<Arc<Tell>>,
}

impl Options {
    fn mode(&self) -> &'static str {
        Options::lock_mode(self.is_read)
    }

    /// Grants and renewals count only when replicas have acknowledged them.
    fn has_acks(&self) -> bool {
        self.acks.is_some_and(|acks| acks > 0)
    }

    /// How long it waits; [`machine::FOREVER`] is for ever.
    fn wait_ms(&self) -> machine::Ms {
        self.wait.map_or(machine::FOREVER, ask::millis)
    }

    fn add_acks(&self, words: &mut Cmd) {
        if let Some(acks) = self.acks {
            words.arg("ACKS").arg(acks);
        }
    }

    /// Calls the user's own function once, where it may panic or block.
    fn tell(&mut self, trouble: &RedisError) {
        if self.wait != Some(Duration::ZERO)
            && let Some(tell) = self.on_trouble.take()
        {
            let trouble = trouble.clone();
            drop(spawn_blocking(move || tell(&trouble)));
        }
    }

    /// A request without a way to wait.
    fn words(&self, key: &[u8], depth: u32) -> Cmd {
        if let Some(words) = self.together(machine::Request::Acquire(None)) {
            return words;
        }
        let mut words = redis::cmd("RLOCK.ACQUIRE");
        words.arg(key).arg(&self.owner).arg(self.mode());
        if let Some(limit) = self.limit {
            words.arg("LIMIT").arg(limit);
        }
        words.arg("LEASE").arg(ask::millis(self.lease)).arg("DEPTH").arg(depth);
        if self.upgrade {
            words.arg("UPGRADE");
        }
        self.add_acks(&mut words);
        words
    }
}

/// What is asked for. A clone is another owner, unless [`Request::owner`] names one.
#[must_use = "nothing is asked before `acquire`"]
pub struct Request {
    inner: Arc<Inner>,
    key: Vec<u8>,
    options: Options,
}

impl Clone for Request {
    /// With the same owner, both would be granted the lock.
    fn clone(&self) -> Request {
        let mut options = self.options.clone();
        if !options.is_named {
            let prefix = options.owner.rsplit_once('/').map_or("", |(prefix, _)| prefix);
            options.owner = self.inner.draw_after(prefix);
        }
        Request { inner: self.inner.clone(), key: self.key.clone(), options }
    }
}

impl Request {
    /// It is counted until that is dropped.
    pub(crate) fn waiting(&self) -> Waiting {
        Waiting::new(&self.inner.telemetry, &self.key, &self.options)
    }

    /// For a lock that is free: one request, by the thread that calls. Nothing: ask by [`Request::patiently`].
    pub(crate) fn quickly(&self) -> (Option<Hold>, Option<Begun<Attempt>>) {
        if self.options.is_named && self.inner.servers.space.get().is_none() {
            return (None, None);
        }
        Entry::of(&self.inner, &self.key, &self.options).quickly(&self.inner, &self.options)
    }

    /// Requests the read lock, which is shared.
    pub fn read(mut self) -> Request {
        self.options.is_read = true;
        self
    }

    /// The longest wait; zero does not wait. The default is no limit. Another request of the same owner is waited for up
    /// to 100 ms all the same, and one that is being undone as long as a connection is.
    pub fn wait(mut self, wait: Duration) -> Request {
        self.options.wait = Some(wait);
        self
    }

    /// How long the hold outlives a process that died or is cut off; the default is 30 seconds. It is renewed.
    pub fn lease(mut self, lease: Duration) -> Request {
        self.options.lease = lease;
        self
    }

    /// Requests one of `count` permits: a read lock that at most `count` owners hold at once.
    pub fn limit(mut self, count: u32) -> Request {
        (self.options.is_read, self.options.limit) = (true, Some(count));
        self
    }

    /// Refuses to wait if this many others already wait.
    pub fn max_queue(mut self, count: u32) -> Request {
        self.options.max_queue = Some(count);
        self
    }

    /// A grant, and each renewal, counts only when this many replicas have acknowledged it.
    pub fn acks(mut self, replicas: u32) -> Request {
        self.options.acks = Some(replicas);
        self
    }

    /// Ties the hold to its own connection: when this process dies, the next waiter gets the lock at once.
    pub fn session(mut self) -> Request {
        self.options.session = true;
        self
    }

    /// Requests the write lock on top of the owner's own read lock. It needs [`Request::owner`].
    pub fn upgrade(mut self) -> Request {
        self.options.upgrade = true;
        self
    }

    /// Names the owner. An owner that holds the lock already re-enters it. By convention an owner does one thing at a
    /// time.
    pub fn owner(mut self, name: impl Into<String>) -> Request {
        (self.options.owner, self.options.is_named) = (name.into(), true);
        self
    }

    /// Calls `tell` when the first try fails and the wait goes on: no server is reached, or none can decide for now. At
    /// most once for each acquisition, on a thread of its own: it may block. Once the lock is granted, it is not called any
    /// more: trouble with renewals shows as [`Hold::lost`].
    pub fn on_trouble(mut self, tell: impl Fn(&RedisError) + Send + Sync + 'static) -> Request {
        self.options.on_trouble = Some(Arc::new(tell));
        self
    }

    /// Acquires the lock. Dropping the future leaves nothing behind: it gives up the place in the queue, or the grant
    /// that was on its way.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] when the wait has passed; the others as documented there.
    pub async fn acquire(self) -> Result<Hold, Error> {
        let waiting = self.waiting();
        self.patiently(None, waiting).await
    }

    /// `begun`: it was asked for before, and goes on from there.
    pub(crate) async fn patiently(
        mut self,
        begun: Option<Begun<Attempt>>,
        waiting: Waiting,
    ) -> Result<Hold, Error> {
        if self.options.is_named && self.inner.servers.space.get().is_none() {
            let settled = space::settle(&self.inner, &self.key, &mut self.options);
            self.inner.closing.or_closed(settled).await??;
        }
        let entry = match &begun {
            Some(begun) => begun.entry(),
            None => Entry::of(&self.inner, &self.key, &self.options),
        };
        let (leave, gone) = watch::channel(false);
        let (tell, told) = oneshot::channel();
        let _leaving = Leaving(leave);
        // In its own task, which runs to its end whatever happens to this future.
        tokio::spawn(entry.acquire(self.inner, self.options, begun, gone, tell));
        let outcome = told.await.unwrap_or(Err(Error::NotAcquired));
        if outcome.is_ok() {
            waiting.acquired();
        }
        outcome
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] if it is not free.
    pub async fn try_acquire(self) -> Result<Hold, Error> {
        self.wait(Duration::ZERO).acquire().await
    }
}

/// Tells the task of an acquisition that its caller has gone, and the owner's next one that this one is being undone.
struct Leaving(watch::Sender<bool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}
