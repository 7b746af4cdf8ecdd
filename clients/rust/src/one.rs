//! One of several locks that are acquired together.

use redis::{ErrorKind, RedisError};

use crate::Error;
use crate::slot::slot;

/// The server accepts no more locks in one request.
const MOST: usize = 128;

/// One of several locks: a key, and its mode. A text or bytes mean the write lock of that key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct One {
    pub(crate) key: Vec<u8>,
    pub(crate) is_read: bool,
    pub(crate) limit: Option<u32>,
}

impl<K: AsRef<[u8]>> From<K> for One {
    fn from(key: K) -> One {
        One { key: key.as_ref().to_vec(), is_read: false, limit: None }
    }
}

/// The name of a mode in requests.
pub(crate) fn lock_mode(is_read: bool) -> &'static str {
    if is_read { "READ" } else { "WRITE" }
}

impl One {
    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether it is the read lock, or a permit.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.is_read
    }

    pub(crate) fn mode(&self) -> &'static str {
        lock_mode(self.is_read)
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

/// Sorts the locks by key and removes duplicates.
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
