//! Elections: the leader is whoever holds the lock of a key, in a session. Followers find out with
//! `RLOCK.AWAIT`.

use std::time::Duration;

use redis::{RedisError, RedisResult, Value};
use tokio::time::sleep;

use crate::closing::unless;
use crate::error::{Error, is_passing, is_replica};
use crate::machine;
use crate::observer::other_than;
use crate::{Locker, Request};

/// How long a reply may take.
const REPLY: Duration = Duration::from_millis(machine::REPLY);

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The fencing token.
    pub token: u64,
    /// The owner's name; bytes that are not UTF-8 are replaced.
    pub owner: String,
    bytes: Vec<u8>,
}

impl Leader {
    /// The owner's name, byte for byte.
    #[must_use]
    pub fn owner_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The name that its election was given.
    #[must_use]
    pub fn name(&self) -> &str {
        self.owner.rsplit_once('/').map_or("", |(name, _)| name)
    }
}

/// The election of a key.
#[derive(Clone)]
pub struct Election {
    locker: Locker,
    key: Vec<u8>,
    name: Option<String>,
    lease: Duration,
}

impl Locker {
    /// The election of `key`.
    #[must_use]
    pub fn election(&self, key: impl AsRef<[u8]>) -> Election {
        let key = key.as_ref().to_vec();
        Election { locker: self.clone(), key, name: None, lease: Duration::from_secs(10) }
    }
}

impl Election {
    /// What followers see, for example an address. The default is the host and the process.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Election {
        self.name = Some(name.into());
        self
    }

    /// How long a leader stays leader while its network is silent; the default is 10 seconds.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Election {
        self.lease = lease;
        self
    }

    /// A request to lead. Each is an owner of its own: a process that leads does not lead twice. The hold is lost as
    /// soon as its connection ends.
    pub fn campaign(&self) -> Request {
        let mut request = self.locker.lock(&self.key).session().lease(self.lease);
        if let Some(name) = &self.name {
            request.options.owner = self.locker.inner.draw_after(name);
        }
        request
    }

    /// The current leader.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the server does not answer; others when it refuses.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let mut words = redis::cmd("RLOCK.AWAIT");
        words.arg(&self.key).arg(0);
        match self.locker.inner.servers.ask(&self.key, &words, REPLY).await {
            Ok(reply) => Ok(leader(&reply)),
            Err(error) if is_passing(&error) => Err(Error::out_of_patience(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Observes the leader, from now on.
    #[must_use]
    pub fn observe(&self) -> Observer {
        Observer { locker: self.locker.clone(), key: self.key.clone(), token: None }
    }
}

/// Observes the leader of an election.
pub struct Observer {
    locker: Locker,
    key: Vec<u8>,
    token: Option<u64>,
}

impl Observer {
    /// The leader: at first the current one, then each new one; `None` while there is none.
    /// Dropping the future misses nothing.
    ///
    /// # Errors
    /// When the server refuses, or the locker is closed. Broken connections and failovers are
    /// waited out.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        let locker = self.locker.clone();
        unless(locker.inner.closing.signal(), self.changed()).await?
    }

    async fn changed(&mut self) -> Result<Option<Leader>, Error> {
        let mut pause = Duration::from_millis(10);
        loop {
            match self.ask().await {
                Ok(Value::Nil) if self.token.is_some() => pause = Duration::from_millis(10),
                Ok(reply) => {
                    let leader = leader(&reply);
                    self.token = Some(leader.as_ref().map_or(0, |leader| leader.token));
                    return Ok(leader);
                }
                Err(error) if is_passing(&error) && !self.is_at_a_replica(&error) => {
                    self.locker.inner.servers.forget();
                    sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn is_at_a_replica(&self, error: &RedisError) -> bool {
        is_replica(error) && self.locker.inner.servers.is_replica()
    }

    async fn ask(&self) -> RedisResult<Value> {
        let inner = &self.locker.inner;
        if let Some(token) = self.token {
            return other_than(inner, &self.key, token, machine::LOOKS).await;
        }
        let mut words = redis::cmd("RLOCK.AWAIT");
        words.arg(&self.key).arg(0);
        inner.servers.ask(&self.key, &words, REPLY).await
    }
}

fn leader(reply: &Value) -> Option<Leader> {
    let (token, owner): (u64, Option<Vec<u8>>) = redis::from_redis_value_ref(reply).ok()?;
    let bytes = owner?;
    Some(Leader { token, owner: String::from_utf8_lossy(&bytes).into_owned(), bytes })
}
