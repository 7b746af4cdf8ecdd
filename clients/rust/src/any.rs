//! One of many keys: first a permit, for which callers wait in line, and then the first key that is
//! free.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::check::unless_taken;
use crate::{Error, Hold, Locker, Request, machine};

/// A request for one of many locks. Nothing is sent before [`Any::acquire`].
#[derive(Clone)]
#[must_use = "nothing is asked before `acquire`"]
pub struct Any {
    permit: Request,
    keys: Vec<Vec<u8>>,
}

impl Locker {
    /// One of many: the write lock of the first of these keys that is free. Callers wait in line for a permit of the key
    /// `pool`, which has as many permits as there are keys. Each acquisition is an owner of its own.
    ///
    /// # Errors
    /// When there is no key, or `pool` is one of them.
    pub fn any<K: AsRef<[u8]>>(
        &self,
        pool: impl AsRef<[u8]>,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Any, Error> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for key in keys {
            let key = key.as_ref().to_vec();
            if !all.contains(&key) {
                all.push(key);
            }
        }
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        if count == 0 || all.iter().any(|key| key == pool.as_ref()) {
            let text = "at least one key, and a name for all of them that is none of them";
            return Err(Error::Redis((redis::ErrorKind::InvalidClientConfig, text).into()));
        }
        Ok(Any { permit: self.lock(pool).limit(count), keys: all })
    }
}

impl Any {
    /// As [`Request::wait`].
    pub fn wait(mut self, wait: Duration) -> Any {
        self.permit = self.permit.wait(wait);
        self
    }

    /// As [`Request::lease`].
    pub fn lease(mut self, lease: Duration) -> Any {
        self.permit = self.permit.lease(lease);
        self
    }

    /// As [`Request::max_queue`].
    pub fn max_queue(mut self, count: u32) -> Any {
        self.permit = self.permit.max_queue(count);
        self
    }

    /// As [`Request::acks`].
    pub fn acks(mut self, replicas: u32) -> Any {
        self.permit = self.permit.acks(replicas);
        self
    }

    /// As [`Request::session`].
    pub fn session(mut self) -> Any {
        self.permit = self.permit.session();
        self
    }

    /// Acquires one of them: [`Hold::key`] names it. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// As [`Request::acquire`].
    pub async fn acquire(self) -> Result<Hold, Error> {
        let begin = Instant::now();
        let (wait, template) = (self.permit.options.wait, self.permit.clone());
        let permit = self.permit.acquire().await?;
        let mut pause = Duration::from_millis(machine::FIRST_PAUSE);
        loop {
            for key in &self.keys {
                let mut request = template.clone().wait(Duration::ZERO);
                request.key.clone_from(key);
                let options = &mut request.options;
                (options.is_read, options.limit, options.max_queue) = (false, None, None);
                match unless_taken(request.acquire().await) {
                    Ok(None) => {}
                    Ok(Some(hold)) => return Ok(hold.with_permit(permit)),
                    Err(error) => {
                        let _ = permit.release().await;
                        return Err(error);
                    }
                }
            }
            // All are taken, so somebody holds a lock without a permit: no event reports when that
            // hold ends.
            let left = wait.map_or(pause, |wait| wait.saturating_sub(begin.elapsed()));
            if left.is_zero() {
                let _ = permit.release().await;
                return Err(Error::NotAcquired);
            }
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(Duration::from_millis(machine::LONGEST_PAUSE));
        }
    }
}
