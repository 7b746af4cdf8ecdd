//! One level of a lock that is held.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;

use crate::entry::{Entry, release_later};
use crate::held::{Held, State};
use crate::{Error, Inner};

/// One level of a lock that is held, renewed every third of its lease until it is released or dropped.
#[must_use = "a hold that is dropped is released"]
pub struct Hold {
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    held: Arc<Held>,
    runtime: Handle,
    is_released: bool,
}

/// Tells of the loss of a hold, wherever it is sent to.
#[derive(Clone)]
pub struct Loss(Arc<Held>);

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loss").field(&self.is_lost()).finish()
    }
}

impl Loss {
    pub(crate) fn held(&self) -> &Held {
        &self.0
    }

    /// Whether the hold is lost, or may be: looks at the clock too.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let state = *self.0.state.borrow();
        state == State::Lost || (state == State::Held && !self.0.is_held())
    }

    /// Ends when the hold is lost: at once when the server says so, and shortly before the deadline when no renewal gets
    /// through. Never ends for a hold that was released.
    pub async fn lost(&self) {
        let mut state = self.0.state.subscribe();
        if state.wait_for(|state| *state == State::Lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Hold {
    pub(crate) fn new(inner: Arc<Inner>, entry: Arc<Entry>, held: Arc<Held>) -> Hold {
        Hold { inner, entry, held, runtime: Handle::current(), is_released: false }
    }

    /// The fencing token: greater than all before it. What is written to should refuse a smaller one.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token
    }

    /// What is locked.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.entry.key
    }

    /// The name that holds.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.held.owner()
    }

    /// Until when the hold is sure if nothing more is heard of the server, counted from the moment at which the last
    /// request that was answered had been sent.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.held.deadline.borrow().into_std()
    }

    /// Looks at the clock as well: also right after this process slept.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// As [`Loss::lost`].
    pub async fn lost(&self) {
        self.loss().lost().await;
    }

    /// The signal, to be given to the work.
    #[must_use]
    pub fn loss(&self) -> Loss {
        Loss(self.held.clone())
    }

    /// Leaves the level. It goes to its end even if this future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when the hold ended before: others may have worked at the same time.
    /// [`Error::Unavailable`] when the server could not be told before the lease was over.
    pub async fn release(mut self) -> Result<(), Error> {
        // Dropped on its way, this is done once more by the drop of the hold, which changes nothing if it was done.
        let outcome = self.entry.release(&self.inner, &self.held).await;
        self.is_released = true;
        outcome
    }
}

impl Hold {
    /// On the thread that calls. Nothing: release by [`Hold::release`].
    pub(crate) fn release_quickly(&mut self) -> Option<Result<(), Error>> {
        let outcome = self.entry.release_quickly(&self.inner, &self.held)?;
        self.is_released = true;
        Some(outcome)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.is_released {
            release_later(&self.runtime, self.inner.clone(), self.entry.clone(), self.held.clone());
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key().escape_ascii().to_string();
        f.debug_struct("Hold")
            .field("key", &key)
            .field("owner", &self.owner())
            .field("token", &self.token())
            .finish()
    }
}
