//! A hold of an owner: its levels have one token, one deadline and one loss.

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

/// A hold from its first level to the last one's release, or to the loss.
pub(crate) struct Tenure {
    pub(crate) token: u64,
    pub(crate) options: Options,
    /// The longest lease that a level asked for, in milliseconds.
    pub(crate) lease: AtomicU64,
    pub(crate) state: watch::Sender<State>,
    pub(crate) deadline: watch::Sender<Ms>,
    pub(crate) line: Mutex<Option<Line>>,
    pub(crate) stop: watch::Sender<bool>,
    /// Whether it is renewed: one of [`NOT_YET`], [`ACTIVE`], [`NEVER`] and [`ASLEEP`].
    pub(crate) renewal: AtomicU8,
    /// The task that sleeps until there is something to renew.
    pub(crate) sleeper: Mutex<Option<AbortHandle>>,
    /// A request of its attempts was never answered, so something of it may still be executed.
    pub(crate) lingers: AtomicBool,
    /// How long it is held, for the listener of the user.
    pub(crate) span: Span,
    /// The connection of the session has ended, and the hold is not tied to a new one.
    pub(crate) is_doubted: AtomicBool,
    /// Its last level is being released. If nobody holds the lock now, the hold is not lost.
    pub(crate) is_releasing: AtomicBool,
    /// A task observes who holds the lock.
    pub(crate) is_observed: AtomicBool,
}

/// The server refuses longer leases.
pub(crate) const LONGEST: Duration = Duration::from_secs(7 * 86400);

/// Whether a hold is renewed. No task has been started yet.
pub(crate) const NOT_YET: u8 = 0;
/// A task renews and watches it.
pub(crate) const ACTIVE: u8 = 1;
/// It was canceled, since its last level is being released.
const NEVER: u8 = 2;
/// A task sleeps until there is something to renew.
pub(crate) const ASLEEP: u8 = 3;

impl Tenure {
    pub(crate) fn owner(&self) -> &str {
        &self.options.owner
    }

    /// Whether a user may rely on it. The server may have ended a session whose connection has broken.
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

    /// Changes whether it is renewed. False if the state was another one.
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

    /// Allows a hold whose release failed to be renewed again.
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
