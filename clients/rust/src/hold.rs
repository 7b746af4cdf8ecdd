//! One level of a held lock.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::begun::Begun;
use crate::clock::at;
use crate::machine::Release;
use crate::observer::observe;
use crate::options::Options;
use crate::release::release_later;
use crate::seat::Seat;
use crate::tenure::{State, Tenure, ended};
use crate::{Error, Inner, Locker};

/// One level of a held lock, renewed every third of its lease until it is released or dropped.
#[must_use = "a hold that is dropped is released"]
pub struct Hold {
    inner: Arc<Inner>,
    seat: Arc<Seat>,
    tenure: Arc<Tenure>,
    runtime: Handle,
    is_released: bool,
    /// For one of many keys, the permit that ends with it.
    permit: Option<Box<Hold>>,
    /// A release that has begun. It is used only through `&mut`; the mutex makes a hold `Sync`,
    /// which a request in progress is not.
    begun: Mutex<Option<Begun<Release>>>,
}

/// The signal that a hold is lost, which can be passed on.
#[derive(Clone)]
pub struct Loss {
    inner: Weak<Inner>,
    seat: Weak<Seat>,
    tenure: Arc<Tenure>,
    runtime: Handle,
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loss").field(&self.is_lost()).finish()
    }
}

impl Loss {
    pub(crate) fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Whether the hold is lost, or may be. Also reads the clock.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let state = *self.tenure.state.borrow();
        state == State::Lost || (state == State::Held && !self.tenure.is_sure())
    }

    /// Resolves when the hold is lost: at once when the server reports so, and shortly before the deadline when no
    /// renewal succeeds. After the computer slept, that may be up to a third of the lease late: [`Loss::is_lost`] knows
    /// at once. Never resolves for a hold that was released: a task that does nothing but wait for this should
    /// wait for [`Loss::ended`] instead.
    pub async fn lost(&self) {
        if !self.ended().await {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when the hold has ended: to true if it was lost, as [`Loss::lost`], and to false if it was released.
    pub async fn ended(&self) -> bool {
        if let (Some(inner), Some(seat)) = (self.inner.upgrade(), self.seat.upgrade()) {
            observe(&self.runtime, &inner, &seat, &self.tenure);
        }
        let mut state = self.tenure.state.subscribe();
        ended(&mut state).await;
        *state.borrow() == State::Lost
    }
}

impl Hold {
    pub(crate) fn new(inner: Arc<Inner>, seat: Arc<Seat>, tenure: Arc<Tenure>) -> Hold {
        Hold {
            inner,
            seat,
            tenure,
            runtime: Handle::current(),
            is_released: false,
            permit: None,
            begun: Mutex::default(),
        }
    }

    /// The fencing token: greater than all earlier ones. The resource that is written to should
    /// refuse smaller ones.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.tenure.token
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.seat.key
    }

    /// The owner's name.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.tenure.owner()
    }

    /// The time until which the hold is certain, even if the server does not answer again. It
    /// counts from when the last answered request was sent. Call it again after the computer has
    /// slept: an [`Instant`] does not count that time, but a lease does.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        at(*self.tenure.deadline.borrow()).into_std()
    }

    /// The time until the deadline; zero if it is not held.
    #[must_use]
    pub fn left(&self) -> Duration {
        let left = self.deadline().saturating_duration_since(Instant::now());
        if self.is_held() { left } else { Duration::ZERO }
    }

    /// Whether it is held. Also reads the clock, so it is correct even right after this process slept. False for a
    /// session whose connection has broken, until the server has tied it to a new one.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.tenure.is_sure()
    }

    /// As [`Loss::lost`].
    pub async fn lost(&self) {
        self.loss().lost().await;
    }

    /// The signal, to pass to the work.
    #[must_use]
    pub fn loss(&self) -> Loss {
        let (inner, seat) = (Arc::downgrade(&self.inner), Arc::downgrade(&self.seat));
        Loss { inner, seat, tenure: self.tenure.clone(), runtime: self.runtime.clone() }
    }

    /// Releases the level. The release completes even if this future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold ended before: others may have worked at the same time.
    /// [`Error::Unavailable`] if the release did not reach the server within a lease, for example
    /// because another request of this owner was in progress. It is then released in the
    /// background.
    pub async fn release(mut self) -> Result<(), Error> {
        let permit = self.permit.take();
        let released = self.release_alone().await;
        if let Some(permit) = permit {
            let _ = permit.release_alone().await; // what is lost with it is only a place in line
        }
        released
    }

    async fn release_alone(mut self) -> Result<(), Error> {
        self.is_released = true;
        let begun = self.begun.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        self.seat.release(&self.inner, &self.tenure, begun).await
    }

    pub(crate) fn with_permit(mut self, permit: Hold) -> Hold {
        self.permit = Some(Box::new(permit));
        self
    }
}

impl Hold {
    /// Releases on the calling thread. If the result is `None`, release with [`Hold::release`].
    pub(crate) fn release_quickly(&mut self) -> Option<Result<(), Error>> {
        if self.permit.is_some() {
            return None;
        }
        let (outcome, begun) = self.seat.release_quickly(&self.inner, &self.tenure);
        (self.is_released, self.begun) = (outcome.is_some(), Mutex::new(begun));
        outcome
    }
}

impl Hold {
    pub(crate) fn options(&self) -> &Options {
        &self.tenure.options
    }

    pub(crate) fn locker(&self) -> Locker {
        Locker { inner: self.inner.clone() }
    }

    /// Forgets the hold without releasing it: at the server, it ends with its lease.
    pub(crate) fn leave(mut self) {
        self.is_released = true;
        if !self.tenure.cancel_renewal() {
            self.tenure.stop.send_replace(true);
        }
        if let Ok(mut level) = self.seat.level.clone().try_lock_owned() {
            level.end(&self.tenure, &Ok(()));
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.is_released {
            release_later(
                &self.runtime,
                self.inner.clone(),
                self.seat.clone(),
                self.tenure.clone(),
            );
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, owner) = (self.key().escape_ascii(), self.owner());
        let (token, left) = (self.token(), self.left().as_secs_f32());
        write!(f, "{key} held by {owner}, token {token}, {left:.1} s left")
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key().escape_ascii().to_string();
        f.debug_struct("Hold")
            .field("key", &key)
            .field("owner", &self.owner())
            .field("token", &self.token())
            .field("left", &self.left())
            .finish()
    }
}
