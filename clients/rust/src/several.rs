//! Several locks in one step (`RLOCK.MACQUIRE`). The state machines treat them as one lock.

use std::time::Duration;

use redis::RedisError;

use crate::one::{One, merged};
use crate::{Error, Hold, Locker};

/// A request for several locks: all of them, or none. Nothing is sent before [`All::acquire`].
#[derive(Clone)]
#[must_use = "nothing is asked before `acquire`"]
pub struct All(pub(crate) crate::Request);

impl All {
    /// As [`crate::Request::wait`].
    pub fn wait(self, wait: Duration) -> All {
        All(self.0.wait(wait))
    }

    /// As [`crate::Request::lease`].
    pub fn lease(self, lease: Duration) -> All {
        All(self.0.lease(lease))
    }

    /// As [`crate::Request::max_queue`].
    pub fn max_queue(self, count: u32) -> All {
        All(self.0.max_queue(count))
    }

    /// As [`crate::Request::acks`], for all of them.
    pub fn acks(self, replicas: u32) -> All {
        All(self.0.acks(replicas))
    }

    /// As [`crate::Request::session`], for all of them.
    pub fn session(self) -> All {
        All(self.0.session())
    }

    /// As [`crate::Request::no_renewal`].
    pub fn no_renewal(self) -> All {
        All(self.0.no_renewal())
    }

    /// As [`crate::Request::owner_prefix`].
    pub fn owner_prefix(self, prefix: &str) -> All {
        All(self.0.owner_prefix(prefix))
    }

    /// As [`crate::Request::owner_name`].
    #[must_use]
    pub fn owner_name(&self) -> &str {
        self.0.owner_name()
    }

    /// As [`crate::Request::on_trouble`].
    pub fn on_trouble(self, tell: impl Fn(&RedisError) + Send + Sync + 'static) -> All {
        All(self.0.on_trouble(tell))
    }

    /// Acquires them all as one hold. The hold is lost when one of its locks is; its release then
    /// releases the others. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// As [`crate::Request::acquire`].
    pub async fn acquire(self) -> Result<Hold, Error> {
        self.0.acquire().await
    }
}

impl Locker {
    /// Several locks, acquired in one step: keys, [`read`] or [`limit`]. Each acquisition is an owner of its own.
    ///
    /// # Errors
    /// When one key is named in two modes, when keys are in several slots of a Cluster, and when there are none, or
    /// more than 128.
    pub fn all<K: Into<One>>(&self, ones: impl IntoIterator<Item = K>) -> Result<All, Error> {
        let ones = ones.into_iter().map(Into::into).collect();
        let parts = merged(ones, self.inner.servers.is_cluster())?;
        let first = parts.first().map(|one| one.key.clone()).unwrap_or_default();
        let mut request = self.lock(first);
        request.options.parts = Some(parts.into());
        Ok(All(request))
    }
}
