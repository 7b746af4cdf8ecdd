//! Ends requests whose runtime ends before they do, on the thread that drops their tasks. So
//! nothing is held once `main` has ended, whatever was in progress.

use std::sync::Arc;

use redis::Value;

use crate::Inner;
use crate::info::token_of;
use crate::machine::{Attempt, Request};
use crate::options::Options;
use crate::seat::{Seat, SeatGuard};
use crate::tenure::Tenure;
use crate::words::words;

/// A release. If it is dropped before it has ended, it sends the request a second time, which is
/// harmless.
pub(crate) struct ReleaseAtExit {
    pub(crate) inner: Arc<Inner>,
    seat: Arc<Seat>,
    pub(crate) tenure: Arc<Tenure>,
    /// The seat, once it is taken.
    pub(crate) level: Option<SeatGuard>,
    pub(crate) is_over: bool,
}

impl ReleaseAtExit {
    pub(crate) fn new(inner: Arc<Inner>, seat: Arc<Seat>, tenure: Arc<Tenure>) -> ReleaseAtExit {
        ReleaseAtExit { inner, seat, tenure, level: None, is_over: false }
    }
}

impl Drop for ReleaseAtExit {
    fn drop(&mut self) {
        if self.is_over || !self.tenure.is_held() {
            return;
        }
        // If another request has the seat, it is a release of this hold, or a request that undoes
        // itself.
        let level = self.level.take();
        let Some(mut level) = level.or_else(|| self.seat.level.clone().try_lock_owned().ok())
        else {
            return;
        };
        if !level.is_of(&self.tenure) {
            return;
        }
        let release = Request::Release(self.tenure.token, level.depth.saturating_sub(1));
        let words = words(release, &self.seat.key, &self.tenure.options, level.depth);
        self.inner.servers.ask_at_last(&self.seat.key, &words);
        level.end(&self.tenure, &Ok(()));
    }
}

/// An acquisition. If it is dropped before it has ended, it undoes whatever it may have been
/// granted.
pub(crate) struct UndoAtExit {
    inner: Arc<Inner>,
    seat: Arc<Seat>,
    options: Options,
    pub(crate) level: SeatGuard,
    pub(crate) machine: Attempt,
    /// The depth that it requested.
    depth: u32,
    pub(crate) is_over: bool,
}

impl UndoAtExit {
    pub(crate) fn new(
        inner: Arc<Inner>,
        seat: Arc<Seat>,
        options: Options,
        level: SeatGuard,
        machine: Attempt,
    ) -> UndoAtExit {
        let depth = level.depth + 1;
        UndoAtExit { inner, seat, options, level, machine, depth, is_over: false }
    }

    fn ask(&self, request: Request, key: &[u8]) -> Option<Value> {
        let words = words(request, key, &self.options, self.depth);
        self.inner.servers.ask_at_last(&self.seat.key, &words)
    }

    fn token(&self) -> Option<u64> {
        let token = |key: &[u8], mode: &str| {
            let info = self.ask(Request::Info, key)?;
            token_of(&info, &self.options.owner, mode).map(i64::unsigned_abs)
        };
        match &self.options.parts {
            None => token(&self.seat.key, self.options.mode()),
            Some(parts) => parts.iter().find_map(|one| token(&one.key, one.mode())),
        }
    }
}

impl Drop for UndoAtExit {
    fn drop(&mut self) {
        if self.is_over || !self.machine.leaves_something() {
            return;
        }
        self.ask(Request::Cancel, &self.seat.key);
        if let Some(token) = self.token() {
            self.ask(Request::Release(token, self.depth.saturating_sub(1)), &self.seat.key);
        }
    }
}
