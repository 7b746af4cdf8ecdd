//! Several locks in one step (`RLOCK.MACQUIRE`): to the machines, one.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::time::Instant;

use crate::ask::millis;
use crate::clock::at;
use crate::info::token_of;
use crate::machine::{Ms, Request};
use crate::slot::slot;
use crate::words::words;
use crate::{Error, Hold, Inner, Locker, Options};

/// The server takes so many.
const MOST: usize = 128;

/// One of several locks: a key, and how it is locked. A text or bytes are the write lock of that key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct One {
    pub(crate) key: Vec<u8>,
    is_read: bool,
    limit: Option<u32>,
}

impl<K: AsRef<[u8]>> From<K> for One {
    fn from(key: K) -> One {
        One { key: key.as_ref().to_vec(), is_read: false, limit: None }
    }
}

impl One {
    pub(crate) fn mode(&self) -> &'static str {
        Options::lock_mode(self.is_read)
    }
}

/// One of several locks: its read lock.
pub fn read(key: impl AsRef<[u8]>) -> One {
    One { is_read: true, ..One::from(key) }
}

/// One of several locks: one of `count` permits.
pub fn limit(key: impl AsRef<[u8]>, count: u32) -> One {
    One { is_read: true, limit: Some(count), ..One::from(key) }
}

/// In key order, each once.
pub(crate) fn merged(mut ones: Vec<One>, is_cluster: bool) -> Result<Vec<One>, Error> {
    let wrong = |text: String| {
        let what = "these keys cannot be locked together";
        Err(Error::Redis(RedisError::from((ErrorKind::InvalidClientConfig, what, text))))
    };
    ones.sort();
    ones.dedup();
    let name = |one: &One| one.key.escape_ascii().to_string();
    for (one, next) in ones.iter().zip(ones.iter().skip(1)) {
        if one.key == next.key {
            return wrong(format!("{} is named twice, with two modes", name(one)));
        }
        if is_cluster && slot(&one.key) != slot(&next.key) {
            return wrong(format!(
                "{} and {} are in two slots; give them a hash tag",
                name(one),
                name(next)
            ));
        }
    }
    if !(1..=MOST).contains(&ones.len()) {
        return wrong(format!("from 1 to {MOST}, not {}", ones.len()));
    }
    Ok(ones)
}

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

    /// As [`crate::Request::on_trouble`].
    pub fn on_trouble(self, tell: impl Fn(&RedisError) + Send + Sync + 'static) -> All {
        All(self.0.on_trouble(tell))
    }

    /// Acquires them all. The hold is one: it is lost when one of the locks is, and its release then releases the
    /// others. Dropping the future leaves nothing behind.
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

/// A request for all keys.
fn named(name: &str, parts: &[One], owner: &str) -> Cmd {
    let mut words = redis::cmd(name);
    words.arg(parts.len());
    for one in parts {
        words.arg(&one.key);
    }
    words.arg(owner);
    words
}

impl Options {
    /// The words of what is asked for all keys in one request.
    pub(crate) fn together(&self, request: Request) -> Option<Cmd> {
        let parts = self.parts.as_ref()?;
        let mut words = match request {
            Request::Acquire(_) => named("RLOCK.MACQUIRE", parts, &self.owner),
            Request::Renew(_) => named("RLOCK.MRENEW", parts, &self.owner),
            Request::Release(..) => named("RLOCK.MRELEASE", parts, &self.owner),
            _ => return None,
        };
        match request {
            Request::Renew(token) => {
                words.arg("LEASE").arg(millis(self.lease)).arg("TOKEN").arg(token);
                self.add_acks(&mut words);
            }
            Request::Release(token, _) => {
                words.arg("TOKEN").arg(token);
            }
            _ => {
                words.arg("MODES");
                for one in parts.iter() {
                    match one.limit {
                        Some(count) => words.arg(count),
                        None => words.arg(if one.is_read { "READ" } else { "WRITE" }),
                    };
                }
                words.arg("LEASE").arg(millis(self.lease));
                self.add_acks(&mut words);
            }
        }
        Some(words)
    }

    /// What a reply says. Less than all is a loss.
    pub(crate) fn checked(&self, request: Request, reply: Value) -> RedisResult<Value> {
        match (&self.parts, request, &reply) {
            (Some(parts), Request::Release(..), Value::Int(count))
                if usize::try_from(*count).is_ok_and(|count| count < parts.len()) =>
            {
                let text = format!("only {count} of {} were held", parts.len());
                Err(redis::make_extension_error("NOTHELD".to_owned(), Some(text)))
            }
            _ => Ok(reply),
        }
    }

    pub(crate) fn lock_mode(is_read: bool) -> &'static str {
        if is_read { "READ" } else { "WRITE" }
    }
}

/// The token of what the owner holds. One of the locks may have ended by itself.
pub(crate) async fn token_of_any(
    inner: &Inner,
    options: &Options,
    parts: &[One],
    by: Ms,
) -> RedisResult<Value> {
    for one in parts {
        let words = words(Request::Info, &one.key, options, 1);
        let patience = at(by).saturating_duration_since(Instant::now());
        let info = inner.servers.ask(&one.key, &words, patience).await?;
        if let Some(token) = token_of(&info, &options.owner, one.mode()) {
            return Ok(Value::Int(token));
        }
    }
    Ok(Value::Nil)
}

/// Ends what is left of a hold that was lost. Its leases do that anyway.
pub(crate) async fn rest(inner: &Arc<Inner>, key: &[u8], options: &Options, token: u64) {
    if let Some(words) = options.together(Request::Release(token, 0)) {
        let _ = inner.servers.ask(key, &words, Duration::from_millis(500)).await;
    }
}
