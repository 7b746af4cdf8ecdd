//! What is done when a runtime ends before a request has: on the thread that drops its task. So nothing is held once `main`
//! has ended, whatever was under way then.

use std::sync::Arc;

use redis::Value;

use crate::entry::{Entry, Turn};
use crate::held::Held;
use crate::info::token_of;
use crate::machine::{Attempt, Request};
use crate::words::words;
use crate::{Inner, Options};

/// A release. Dropped before it has ended, it sends the request once more, which is harmless.
pub(crate) struct Releasing {
    pub(crate) inner: Arc<Inner>,
    entry: Arc<Entry>,
    pub(crate) held: Arc<Held>,
    /// The right to change the depth, once it is there.
    pub(crate) level: Option<Turn>,
    pub(crate) is_over: bool,
}

impl Releasing {
    pub(crate) fn new(inner: Arc<Inner>, entry: Arc<Entry>, held: Arc<Held>) -> Releasing {
        Releasing { inner, entry, held, level: None, is_over: false }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if self.is_over || !self.held.is_held() {
            return;
        }
        // Whoever has it otherwise is the release of this hold, or a request that undoes itself.
        let level = self.level.take();
        let Some(mut level) = level.or_else(|| self.entry.level.clone().try_lock_owned().ok())
        else {
            return;
        };
        if !level.is_of(&self.held) {
            return;
        }
        let release = Request::Release(self.held.token, level.depth.saturating_sub(1));
        let words = words(release, &self.entry.key, &self.held.options, level.depth);
        self.inner.servers.ask_at_last(&self.entry.key, &words);
        Entry::end(&mut level, &self.held, &Ok(()));
    }
}

/// An acquisition. Dropped before it has ended, it undoes what it may have been granted.
pub(crate) struct Acquiring {
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    options: Options,
    pub(crate) level: Turn,
    pub(crate) machine: Attempt,
    /// That it was to reach.
    depth: u32,
    pub(crate) is_over: bool,
}

impl Acquiring {
    pub(crate) fn new(
        inner: Arc<Inner>,
        entry: Arc<Entry>,
        options: Options,
        level: Turn,
        machine: Attempt,
    ) -> Acquiring {
        let depth = level.depth + 1;
        Acquiring { inner, entry, options, level, machine, depth, is_over: false }
    }

    fn ask(&self, request: Request, key: &[u8]) -> Option<Value> {
        let words = words(request, key, &self.options, self.depth);
        self.inner.servers.ask_at_last(&self.entry.key, &words)
    }

    fn token(&self) -> Option<u64> {
        let token = |key: &[u8], mode: &str| {
            let info = self.ask(Request::Info, key)?;
            token_of(&info, &self.options.owner, mode).map(i64::unsigned_abs)
        };
        match &self.options.parts {
            None => token(&self.entry.key, self.options.mode()),
            Some(parts) => parts.iter().find_map(|one| token(&one.key, one.mode())),
        }
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if self.is_over || !self.machine.leaves_something() {
            return;
        }
        self.ask(Request::Cancel, &self.entry.key);
        if let Some(token) = self.token() {
            self.ask(Request::Release(token, self.depth.saturating_sub(1)), &self.entry.key);
        }
    }
}
