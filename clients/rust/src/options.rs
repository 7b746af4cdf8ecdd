//! The options of a request.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError};
use tokio::task::spawn_blocking;

use crate::machine;
use crate::one::{One, lock_mode};
use crate::util::millis;

/// A user's function, which gets the reason why a waiting request has to be repeated.
type OnTrouble = dyn Fn(&RedisError) + Send + Sync;

/// What a request asks for, apart from its key.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) owner: String,
    /// Whether the user named the owner.
    pub(crate) is_named: bool,
    pub(crate) lease: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) is_read: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) max_queue: Option<u32>,
    pub(crate) acks: Option<u32>,
    pub(crate) session: bool,
    pub(crate) upgrade: bool,
    pub(crate) renews: bool,
    /// Several locks, in key order.
    pub(crate) parts: Option<Arc<[One]>>,
    pub(crate) on_trouble: Option<Arc<OnTrouble>>,
}

impl Options {
    pub(crate) fn mode(&self) -> &'static str {
        lock_mode(self.is_read)
    }

    /// Whether grants and renewals count only when replicas have acknowledged them.
    pub(crate) fn has_acks(&self) -> bool {
        self.acks.is_some_and(|acks| acks > 0)
    }

    /// How long it waits; [`machine::FOREVER`] for no limit.
    pub(crate) fn wait_ms(&self) -> machine::Ms {
        self.wait.map_or(machine::FOREVER, millis)
    }

    pub(crate) fn add_acks(&self, words: &mut Cmd) {
        if let Some(acks) = self.acks {
            words.arg("ACKS").arg(acks);
        }
    }

    /// Calls the user's function once, on a thread where it may panic or block.
    pub(crate) fn report_trouble(&mut self, trouble: &RedisError) {
        if self.wait != Some(Duration::ZERO)
            && let Some(report) = self.on_trouble.take()
        {
            let trouble = trouble.clone();
            drop(spawn_blocking(move || report(&trouble)));
        }
    }
}
