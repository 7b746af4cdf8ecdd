//! A hold of an owner: its levels share one token, one deadline and one loss.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::clock::now;
use crate::machine::Ms;
use crate::node::Line;
use crate::options::Options;
use crate::telemetry::Span;
use crate::util::lock;

/// The state of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Held,
    Lost,
    Released,
}

/// A hold, from its first level to the release of the last one, or to its loss.
pub(crate) struct Tenure {
    pub(crate) token: u64,
    pub(crate) options: Options,
    /// The longest lease that any of its levels asked for, in milliseconds.
    pub(crate) lease: AtomicU64,
    pub(crate) state: watch::Sender<State>,
    pub(crate) deadline: watch::Sender<Ms>,
    pub(crate) line: Mutex<Option<Line>>,
    pub(crate) stop: watch::Sender<bool>,
    /// Whether it is renewed: one of [`NOT_YET`], [`ACTIVE`], [`NEVER`] and [`ASLEEP`].
    pub(crate) renewal: AtomicU8,
    /// The task that sleeps until there is something to renew.
    pub(crate) sleeper: Mutex<Option<AbortHandle>>,
    /// Whether a request of its attempts was never answered, so that the server may still execute
    /// it.
    pub(crate) lingers: AtomicBool,
    /// The time for which it is held, for the user's listener.
    pub(crate) span: Span,
    /// Whether the session's connection has ended, and the hold is not tied to a new one yet.
    pub(crate) is_doubted: AtomicBool,
    /// Whether its last level is being released: if nobody holds the lock then, the hold is not
    /// lost.
    pub(crate) is_releasing: AtomicBool,
    /// Whether a task observes who holds the lock.
    pub(crate) is_observed: AtomicBool,
}

/// The server accepts no longer lease.
pub(crate) const LONGEST: Duration = Duration::from_secs(7 * 86400);

/// States of the renewal. No task has been started yet.
pub(crate) const NOT_YET: u8 = 0;
/// A task renews the hold and watches it.
pub(crate) const ACTIVE: u8 = 1;
/// The renewal was canceled, since the last level is being released.
const NEVER: u8 = 2;
/// A task sleeps until the hold must be renewed.
pub(crate) const ASLEEP: u8 = 3;

impl Tenure {
    pub(crate) fn owner(&self) -> &str {
        &self.options.owner
    }

    /// Whether a user may rely on the hold. If a session's connection has broken, the server may
    /// have ended the hold.
    pub(crate) fn is_sure(&self) -> bool {
        let is_broken = lock(&self.line).as_ref().is_some_and(Line::is_ended);
        self.is_held() && !is_broken && !self.is_doubted.load(Ordering::Acquire)
    }

    /// Reads the clock, so the answer is correct even right after this process slept.
    pub(crate) fn is_held(&self) -> bool {
        *self.state.borrow() == State::Held && now() < *self.deadline.borrow()
    }

    pub(crate) fn lose(&self) {
        self.state.send_if_modified(|state| {
            let is_news = *state == State::Held;
            if is_news {
                *state = State::Lost;
                self.span.ended(true);
            }
            is_news
        });
    }

    /// Changes the state of the renewal. False if it was not in the state `from`.
    pub(crate) fn switch_renewal(&self, from: u8, to: u8) -> bool {
        self.renewal.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Cancels the renewal, unless a task has begun to renew the hold. False if one has.
    pub(crate) fn cancel_renewal(&self) -> bool {
        if self.switch_renewal(ASLEEP, NEVER) {
            if let Some(task) = lock(&self.sleeper).take() {
                task.abort();
            }
            return true;
        }
        self.switch_renewal(NOT_YET, NEVER) || self.renewal.load(Ordering::Acquire) == NEVER
    }

    /// Allows renewals again, for a hold whose release failed.
    pub(crate) fn revive(&self) {
        self.switch_renewal(NEVER, NOT_YET);
    }

    pub(crate) fn extend(&self, deadline: Ms) {
        self.deadline.send_if_modified(|now| {
            let is_later = deadline > *now;
            *now = deadline.max(*now);
            is_later
        });
    }

    /// How long before its deadline a hold is reported as lost, because a signal takes time to arrive.
    pub(crate) fn margin(&self) -> Duration {
        (self.options.lease / 20).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }
}

/// Waits until the hold is lost or released.
pub(crate) async fn ended(state: &mut watch::Receiver<State>) {
    let _ = state.wait_for(|state| *state != State::Held).await;
}
