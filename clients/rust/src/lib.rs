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

mod acquire;
mod any;
mod at_exit;
mod begun;
pub mod blocking;
mod check;
mod clock;
mod closing;
mod driver;
mod election;
mod error;
mod hold;
mod inbox;
mod info;
#[allow(dead_code, reason = "nothing is planted here: the simulation plays that")]
mod machine;
mod node;
mod observer;
mod once;
mod one;
mod options;
#[cfg(feature = "opentelemetry")]
pub mod otel;
mod release;
mod renewal;
mod seat;
mod servers;
mod several;
mod slot;
mod space;
mod telemetry;
mod tenure;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
#[path = "machine/trace.rs"]
#[allow(dead_code, reason = "the simulation writes what is only replayed here")]
mod trace;
mod util;
mod words;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};
use tokio::sync::{oneshot, watch};

pub use any::Any;
pub use election::{Election, Leader, Observer};
pub use error::Error;
pub use hold::{Hold, Loss};
pub use once::{IfItFails, Once};
pub use one::{One, limit, read};
pub use several::All;
pub use telemetry::{Counts, Event, Listener};

use begun::Begun;
use machine::Attempt;
use options::Options;
use seat::Seat;
use servers::{Servers, Topology};
use telemetry::Waiting;

/// Acquires locks.
#[derive(Clone)]
pub struct Locker {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    servers: Arc<Servers>,
    host: String,
    /// The ID of this process, and the names that are drawn for owners in it.
    names: Mutex<(u32, machine::Names)>,
    closing: closing::Closing,
    /// After how long without a server a wait gives up.
    outage: machine::Ms,
    /// Holds that no task renews yet, and whether a task is running that will start their renewal.
    new_holds: Mutex<Vec<renewal::NewHold>>,
    is_watching_new_holds: AtomicBool,
    telemetry: Arc<telemetry::Telemetry>,
}

impl Locker {
    /// For the single server of `client`. The crate opens its own connections with that client's
    /// settings.
    #[must_use]
    pub fn new(client: Client) -> Locker {
        Locker::with(Topology::One, client.get_connection_info().clone())
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
            Topology::Sentinel { sentinels, master: master.to_owned() },
            node.into_connection_info()?,
        ))
    }

    /// For a Cluster with `seeds` among its nodes. # Errors When an address is invalid, or none is
    /// given.
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
        Ok(Locker::with(Topology::Cluster { seeds }, template))
    }

    fn with(topology: Topology, template: ConnectionInfo) -> Locker {
        let servers = Servers::new(topology, template);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
            .or_else(|_| std::env::var("HOSTNAME"));
        let host: String = host.unwrap_or_else(|_| "host".into()).trim().chars().take(64).collect();
        let inner = Inner {
            servers: Arc::new(servers),
            host,
            closing: closing::Closing::default(),
            outage: machine::FOREVER,
            names: Mutex::new((std::process::id(), machine::Names::new(image()))),
            new_holds: Mutex::default(),
            is_watching_new_holds: AtomicBool::new(false),
            telemetry: Arc::default(),
        };
        Locker { inner: Arc::new(inner) }
    }

    /// Ends a wait with [`Error::Unavailable`] if no server answers it for this long. By default, a wait goes on until
    /// its time is up.
    ///
    /// Call this first: it makes a new `Locker` from this one, which must not have clones yet.
    #[must_use]
    pub fn outage(mut self, most: Duration) -> Locker {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.outage = util::millis(most);
        }
        self
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
            renews: true,
            parts: None,
            on_trouble: None,
        };
        Request { inner: self.inner.clone(), key: key.as_ref().to_vec(), options }
    }
}

impl Inner {
    /// A name that no other owner has, in any process.
    fn draw(&self) -> String {
        let (pid, mut names) = (std::process::id(), util::lock(&self.names));
        if names.0 != pid {
            names.0 = pid;
            names.1.forked(image(), machine::Planted::Nothing);
        }
        let (image, count) = names.1.draw();
        format!("{}/{pid}/{image:08x}-{count}", self.host)
    }

    /// The same with another prefix.
    fn draw_after(&self, prefix: &str) -> String {
        let drawn = self.draw();
        let unique = drawn.rsplit_once('/').map_or("", |(_, unique)| unique);
        format!("{prefix}/{unique}")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.servers.close(); // the connections that a node keeps refer to it
    }
}

/// Distinguishes this process from others with its number.
fn image() -> u64 {
    RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// A request for a lock. A clone is another owner, unless [`Request::owner`] names one.
#[must_use = "nothing is asked before `acquire`"]
pub struct Request {
    inner: Arc<Inner>,
    key: Vec<u8>,
    options: Options,
}

impl Clone for Request {
    /// Draws another owner: with the same owner, both requests would be granted the lock.
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
    /// Counts this request as waiting until the result is dropped.
    pub(crate) fn waiting(&self) -> Waiting {
        Waiting::new(&self.inner.telemetry, &self.key, &self.options)
    }

    /// Sends one request, on the calling thread; this is enough for a free lock. If there is no
    /// hold, continue with [`Request::patiently`].
    pub(crate) fn quickly(&self) -> (Option<Hold>, Option<Begun<Attempt>>) {
        if self.options.is_named && self.inner.servers.space.get().is_none() {
            return (None, None);
        }
        Seat::of(&self.inner, &self.key, &self.options).quickly(&self.inner, &self.options)
    }

    /// Requests the read lock, which is shared.
    pub fn read(mut self) -> Request {
        self.options.is_read = true;
        self
    }

    /// The longest wait; zero does not wait. The default is no limit. Even then, it waits up to 100
    /// ms for another request of the same owner; and for one that is being undone, as long as it
    /// would wait for a connection.
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

    /// Refuses to wait if this many requests already wait.
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

    /// Does not renew the hold: it ends with its lease, unless it is released before.
    pub fn no_renewal(mut self) -> Request {
        self.options.renews = false;
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

    /// Begins the owner's name with `prefix`, instead of the host and the process. The rest stays unique.
    pub fn owner_prefix(mut self, prefix: &str) -> Request {
        (self.options.owner, self.options.is_named) = (self.inner.draw_after(prefix), false);
        self
    }

    /// The owner's name, as [`Hold::owner`] will return it.
    #[must_use]
    pub fn owner_name(&self) -> &str {
        &self.options.owner
    }

    /// Calls `report` when the first attempt fails and the wait continues: no server is reached, or
    /// none can decide for now. At most once for each acquisition, on a thread of its own: it may
    /// block. Once the lock is granted, it is not called any more: trouble with renewals shows as
    /// [`Hold::lost`].
    pub fn on_trouble(mut self, report: impl Fn(&RedisError) + Send + Sync + 'static) -> Request {
        self.options.on_trouble = Some(Arc::new(report));
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

    /// Acquires the lock. If `begun` is given, continues from there.
    pub(crate) async fn patiently(
        mut self,
        begun: Option<Begun<Attempt>>,
        waiting: Waiting,
    ) -> Result<Hold, Error> {
        if self.options.is_named && self.inner.servers.space.get().is_none() {
            let found = acquire::find_space(&self.inner, &self.key, &mut self.options);
            closing::unless(self.inner.closing.drains(), found).await??;
        }
        let seat = match &begun {
            Some(begun) => begun.seat(),
            None => Seat::of(&self.inner, &self.key, &self.options),
        };
        let (leave, gone) = watch::channel(false);
        let (tell, told) = oneshot::channel();
        let _leaving = Leaving(leave);
        // In a task of its own, which runs to its end whatever happens to this future.
        tokio::spawn(seat.acquire(self.inner, self.options, begun, gone, tell));
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

/// When it is dropped, it signals to the task of an acquisition that the caller has dropped its
/// future, and to the owner's next acquisition that this one is being undone.
struct Leaving(watch::Sender<bool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}
