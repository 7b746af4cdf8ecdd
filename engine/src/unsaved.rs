//! Several open keys. New locks are put at their keys at the end of the step, because the server
//! then reports new keys to other modules, which may change keys. By then, all effects are
//! replicated, and no other key is open.

use rlock_core::Lock;

use crate::host::{Content, OpenKey};

/// An open key. A new lock is kept aside until [`save`].
pub(crate) struct Unsaved<K> {
    key: K,
    /// The new lock, and the expiry of its key.
    new: Option<(Lock, Option<u64>)>,
}

impl<K> From<K> for Unsaved<K> {
    fn from(key: K) -> Self {
        Self { key, new: None }
    }
}

impl<K: OpenKey> OpenKey for Unsaved<K> {
    fn content(&mut self) -> Content<'_> {
        match &mut self.new {
            Some((lock, _)) => Content::Lock(lock),
            None => self.key.content(),
        }
    }

    fn set(&mut self, lock: Lock) {
        self.new = Some((lock, None));
    }

    fn delete(&mut self) {
        if self.new.take().is_none() {
            self.key.delete();
        }
    }

    fn expires_at(&self) -> Option<u64> {
        self.new.as_ref().map_or_else(|| self.key.expires_at(), |(_, expires_at)| *expires_at)
    }

    fn expire_at(&mut self, at_ms: u64) {
        match &mut self.new {
            Some((_, expires_at)) => *expires_at = Some(at_ms),
            None => self.key.expire_at(at_ms),
        }
    }
}

/// Closes the keys, and puts the new locks at theirs.
pub(crate) fn save<K: OpenKey>(keys: Vec<Unsaved<K>>) {
    let new = |Unsaved { key, new }: Unsaved<K>| Some((key, new?));
    let begun: Vec<_> = keys.into_iter().filter_map(new).collect();
    for (mut key, (lock, expires_at)) in begun {
        key.set(lock);
        expires_at.into_iter().for_each(|at_ms| key.expire_at(at_ms));
    }
}
