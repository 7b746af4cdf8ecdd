//! One of many, and one run in each interval.

use std::sync::Arc;
use std::time::Duration;

use super::{Background, Hold, Locker};
use crate::Error;

/// As [`crate::Any`].
#[derive(Clone)]
#[must_use = "nothing is asked before `acquire`"]
pub struct Any {
    any: crate::Any,
    runtime: Arc<Background>,
}

impl Any {
    fn with(self, change: impl FnOnce(crate::Any) -> crate::Any) -> Any {
        Any { any: change(self.any), runtime: self.runtime }
    }

    /// As [`crate::Any::wait`].
    pub fn wait(self, wait: Duration) -> Any {
        self.with(|any| any.wait(wait))
    }

    /// As [`crate::Any::lease`].
    pub fn lease(self, lease: Duration) -> Any {
        self.with(|any| any.lease(lease))
    }

    /// As [`crate::Any::max_queue`].
    pub fn max_queue(self, count: u32) -> Any {
        self.with(|any| any.max_queue(count))
    }

    /// As [`crate::Any::acks`].
    pub fn acks(self, replicas: u32) -> Any {
        self.with(|any| any.acks(replicas))
    }

    /// As [`crate::Any::session`].
    pub fn session(self) -> Any {
        self.with(crate::Any::session)
    }

    /// Like [`crate::Any::acquire`], but blocks the thread until it is done.
    ///
    /// # Errors
    /// Those of [`crate::Any::acquire`].
    pub fn acquire(self) -> Result<Hold, Error> {
        let hold = self.runtime.run(self.any.acquire()).unwrap_or(Err(Error::NotAcquired))?;
        Ok(Hold { loss: hold.loss(), hold: Some(hold), runtime: self.runtime })
    }
}

/// As [`crate::Once`].
#[derive(Clone)]
#[must_use = "nothing is asked before `run`"]
pub struct Once {
    once: crate::Once,
    runtime: Arc<Background>,
}

impl Once {
    fn with(self, change: impl FnOnce(crate::Once) -> crate::Once) -> Once {
        Once { once: change(self.once), runtime: self.runtime }
    }

    /// As [`crate::Once::if_it_fails`].
    pub fn if_it_fails(self, choice: crate::IfItFails) -> Once {
        self.with(|once| once.if_it_fails(choice))
    }

    /// As [`crate::Once::wait`].
    pub fn wait(self, wait: Duration) -> Once {
        self.with(|once| once.wait(wait))
    }

    /// As [`crate::Once::lease`].
    pub fn lease(self, lease: Duration) -> Once {
        self.with(|once| once.lease(lease))
    }

    /// As [`crate::Once::acks`].
    pub fn acks(self, replicas: u32) -> Once {
        self.with(|once| once.acks(replicas))
    }

    /// Like [`crate::Once::run`], on this thread. A panic counts as a failure of the work.
    ///
    /// # Errors
    /// Those of [`crate::Once::run`].
    pub fn run<T, E: From<Error>>(
        self,
        work: impl FnOnce(u64, crate::Loss) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let begun = self.runtime.run(self.once.begin()).unwrap_or(Err(Error::Closed))?;
        let Some(turn) = begun else { return Ok(None) };
        let outcome = work(turn.token(), turn.loss());
        let end = turn.end(outcome.is_err());
        let ended = self.runtime.run(end).unwrap_or(Err(Error::Closed));
        let value = outcome?;
        ended?;
        Ok(Some(value))
    }
}

impl Locker {
    /// Like [`crate::Locker::any`].
    ///
    /// # Errors
    /// Those of [`crate::Locker::any`].
    pub fn any<K: AsRef<[u8]>>(
        &self,
        pool: impl AsRef<[u8]>,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Any, Error> {
        Ok(Any { any: self.locker.any(pool, keys)?, runtime: self.runtime.clone() })
    }

    /// As [`crate::Locker::once`].
    pub fn once(&self, key: impl AsRef<[u8]>, every: Duration) -> Once {
        Once { once: self.locker.once(key, every), runtime: self.runtime.clone() }
    }
}
