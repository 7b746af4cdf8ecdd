//! Both interfaces of the crate behind a common one.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};
use rlock_client::{Error, blocking};
use tokio::sync::watch;

use crate::{Order, unix_ms};

#[derive(Clone)]
pub enum Locker {
    Async(rlock_client::Locker),
    Sync(blocking::Locker),
}

#[derive(Clone)]
pub struct Client {
    pub locker: Locker,
    pub nodes: Vec<ConnectionInfo>,
    /// The name of the primary, if the nodes are Sentinels.
    pub service: Option<String>,
}

#[derive(Clone)]
pub struct Lock {
    pub client: Client,
    pub order: Order,
}

pub enum Hold {
    Async(rlock_client::Hold),
    Sync(blocking::Hold),
}

/// A hold, and when its loss was reported.
pub struct Held {
    hold: Mutex<Option<Hold>>,
    lost_at: watch::Receiver<u64>,
}

impl Client {
    pub fn open(is_sync: bool, order: &Order) -> RedisResult<Client> {
        let info = |address: &String| -> RedisResult<ConnectionInfo> {
            let scheme = if order.tls { "rediss" } else { "redis" };
            let info = format!("{scheme}://{address}").into_connection_info()?;
            let mut settings = info.redis_settings().clone();
            if let (Some(user), Some(password)) = (&order.user, &order.password) {
                settings = settings.set_username(user).set_password(password);
            }
            Ok(info.set_redis_settings(settings))
        };
        let nodes = order.addresses.iter().map(info).collect::<RedisResult<Vec<_>>>()?;
        let node = nodes[0].clone();
        let locker = match (is_sync, order.kind.as_str()) {
            (false, "sentinel") => {
                Locker::Async(rlock_client::Locker::sentinel(nodes.clone(), &order.service, node)?)
            }
            (false, "cluster") => Locker::Async(rlock_client::Locker::cluster(nodes.clone())?),
            (false, _) => Locker::Async(rlock_client::Locker::new(redis::Client::open(node)?)),
            (true, "sentinel") => {
                Locker::Sync(blocking::Locker::sentinel(nodes.clone(), &order.service, node)?)
            }
            (true, "cluster") => Locker::Sync(blocking::Locker::cluster(nodes.clone())?),
            (true, _) => Locker::Sync(blocking::Locker::new(redis::Client::open(node)?)?),
        };
        let outage = order.outage.map(Duration::from_millis);
        let locker = match (outage, locker) {
            (None, locker) => locker,
            (Some(most), Locker::Async(locker)) => Locker::Async(locker.outage(most)),
            (Some(most), Locker::Sync(locker)) => Locker::Sync(locker.outage(most)),
        };
        let service = (order.kind == "sentinel").then(|| order.service.clone());
        Ok(Client { locker, nodes, service })
    }
}

impl Client {
    pub async fn check(&self, key: String) -> Result<(), Error> {
        match self.locker.clone() {
            Locker::Async(locker) => locker.check(key).await,
            Locker::Sync(locker) => blocked(move || locker.check(key)).await,
        }
    }

    pub async fn drain(&self, timeout: Duration) -> Vec<String> {
        let left = match self.locker.clone() {
            Locker::Async(locker) => locker.drain(timeout).await,
            Locker::Sync(locker) => blocked(move || locker.drain(timeout)).await,
        };
        left.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    pub async fn close(&self) {
        match self.locker.clone() {
            Locker::Async(locker) => locker.close().await,
            Locker::Sync(locker) => blocked(move || locker.close()).await,
        }
    }
}

/// The options of a request, which both kinds share.
macro_rules! asked {
    ($locker:expr, $order:expr, $wait:expr) => {{
        let order = $order;
        let mut request = $locker.lock(&order.key);
        if order.mode == "read" {
            request = request.read();
        }
        if let Some(lease) = order.lease {
            request = request.lease(Duration::from_millis(lease));
        }
        if let Some(limit) = order.limit {
            request = request.limit(limit);
        }
        if let Some(most) = order.maxqueue {
            request = request.max_queue(most);
        }
        if let Some(acks) = order.acks {
            request = request.acks(acks);
        }
        if order.session {
            request = request.session();
        }
        if order.upgrade {
            request = request.upgrade();
        }
        if let Some(owner) = &order.owner {
            request = request.owner(owner);
        }
        if let Some(wait) = $wait {
            request = request.wait(Duration::from_secs_f64(wait / 1000.0));
        }
        request
    }};
}

/// Like `asked!`, for several locks.
macro_rules! all {
    ($locker:expr, $order:expr, $wait:expr) => {{
        let mut request = $locker.all($order.ones())?;
        if let Some(lease) = $order.lease {
            request = request.lease(Duration::from_millis(lease));
        }
        if let Some(acks) = $order.acks {
            request = request.acks(acks);
        }
        if $order.session {
            request = request.session();
        }
        if let Some(wait) = $wait {
            request = request.wait(Duration::from_secs_f64(wait / 1000.0));
        }
        request
    }};
}

/// Like `asked!`, for one of many.
macro_rules! any {
    ($locker:expr, $order:expr, $wait:expr) => {{
        let mut request = $locker.any(&$order.key, &$order.each)?;
        if let Some(lease) = $order.lease {
            request = request.lease(Duration::from_millis(lease));
        }
        if let Some(wait) = $wait {
            request = request.wait(Duration::from_secs_f64(wait / 1000.0));
        }
        request
    }};
}

macro_rules! campaign {
    ($locker:expr, $order:expr, $wait:expr) => {{
        let mut request = $locker.election(&$order.key).name(&$order.name).campaign();
        if let Some(wait) = $wait {
            request = request.wait(Duration::from_secs_f64(wait / 1000.0));
        }
        request
    }};
}

impl Lock {
    /// Whether its keys can be locked together.
    pub fn check(&self) -> Result<(), Error> {
        match &self.client.locker {
            Locker::Async(locker) => locker.all(self.order.ones()).map(drop),
            Locker::Sync(locker) => locker.all(self.order.ones()).map(drop),
        }
    }

    /// Sends the name of each new leader, with the time.
    pub fn observe(&self, tell: watch::Sender<(Option<String>, u64)>) {
        let name = |leader: Option<rlock_client::Leader>| {
            let name = leader.map(|leader| leader.name().to_owned());
            (Some(name.unwrap_or_default()), unix_ms())
        };
        match &self.client.locker {
            Locker::Async(locker) => {
                let mut observer = locker.election(&self.order.key).observe();
                tokio::spawn(async move {
                    while let Ok(leader) = observer.next().await {
                        tell.send_replace(name(leader));
                    }
                });
            }
            Locker::Sync(locker) => {
                let observer = locker.election(&self.order.key).observe();
                std::thread::spawn(move || {
                    for leader in observer {
                        tell.send_replace(name(leader));
                    }
                });
            }
        }
    }

    pub async fn acquire(&self, wait: Option<f64>) -> Result<Hold, Error> {
        match (&self.client.locker, self.order.r#do.as_str()) {
            (Locker::Async(locker), "all") => {
                return all!(locker, &self.order, wait).acquire().await.map(Hold::Async);
            }
            (Locker::Sync(locker), "all") => {
                let request = all!(locker, &self.order, wait);
                return blocked(move || request.acquire().map(Hold::Sync)).await;
            }
            (Locker::Async(locker), "any") => {
                return any!(locker, &self.order, wait).acquire().await.map(Hold::Async);
            }
            (Locker::Sync(locker), "any") => {
                let request = any!(locker, &self.order, wait);
                return blocked(move || request.acquire().map(Hold::Sync)).await;
            }
            (Locker::Async(locker), "election") => {
                return campaign!(locker, &self.order, wait).acquire().await.map(Hold::Async);
            }
            (Locker::Sync(locker), "election") => {
                let request = campaign!(locker, &self.order, wait);
                return blocked(move || request.acquire().map(Hold::Sync)).await;
            }
            _ => {}
        }
        match &self.client.locker {
            Locker::Async(locker) => {
                asked!(locker, &self.order, wait).acquire().await.map(Hold::Async)
            }
            Locker::Sync(locker) => {
                let request = asked!(locker, &self.order, wait);
                blocked(move || request.acquire().map(Hold::Sync)).await
            }
        }
    }
}

/// Runs the work on a thread of its own.
async fn blocked<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

impl Hold {
    pub fn token(&self) -> u64 {
        match self {
            Hold::Async(hold) => hold.token(),
            Hold::Sync(hold) => hold.token(),
        }
    }

    pub fn owner(&self) -> String {
        match self {
            Hold::Async(hold) => hold.owner().to_owned(),
            Hold::Sync(hold) => hold.owner().to_owned(),
        }
    }

    pub fn key(&self) -> String {
        let key = match self {
            Hold::Async(hold) => hold.key(),
            Hold::Sync(hold) => hold.key(),
        };
        String::from_utf8_lossy(key).into_owned()
    }

    pub async fn release(self) -> Result<(), Error> {
        match self {
            Hold::Async(hold) => hold.release().await,
            Hold::Sync(hold) => blocked(move || hold.release()).await,
        }
    }

    fn left(&self) -> Duration {
        let (is_held, deadline) = match self {
            Hold::Async(hold) => (hold.is_held(), hold.deadline()),
            Hold::Sync(hold) => (hold.is_held(), hold.deadline()),
        };
        if is_held { deadline.saturating_duration_since(Instant::now()) } else { Duration::ZERO }
    }
}

impl Held {
    pub fn new(hold: Hold) -> Arc<Held> {
        let (tell, lost_at) = watch::channel(0);
        match &hold {
            Hold::Async(hold) => {
                let loss = hold.loss();
                tokio::spawn(async move {
                    if loss.ended().await {
                        tell.send_replace(unix_ms());
                    }
                });
            }
            Hold::Sync(hold) => hold.on_loss(move || {
                tell.send_replace(unix_ms());
            }),
        }
        Arc::new(Held { hold: Mutex::new(Some(hold)), lost_at })
    }

    pub fn take(&self) -> Option<Hold> {
        self.hold.lock().unwrap().take()
    }

    pub fn left(&self) -> Duration {
        self.hold.lock().unwrap().as_ref().map_or(Duration::ZERO, Hold::left)
    }

    pub async fn lost_at(&self) -> u64 {
        let mut at = self.lost_at.clone();
        let came = at.wait_for(|at| *at > 0).await.map(|at| *at);
        match came {
            Ok(at) => at,
            Err(_) => std::future::pending().await,
        }
    }
}
