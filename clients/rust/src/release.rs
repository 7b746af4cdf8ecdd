//! Releases a level of a lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::Inner;
use crate::at_exit::ReleaseAtExit;
use crate::begun::Begun;
use crate::clock::{at, now};
use crate::closing::UnderWay;
use crate::driver::Driver;
use crate::error::{Error, timed_out};
use crate::machine::{Input, Level as Released, Output, Planted, Release, Request};
use crate::options::Options;
use crate::seat::{Seat, SeatGuard};
use crate::tenure::Tenure;
use crate::util::answer;

impl Seat {
    /// Releases a level of that tenure. Runs to its end even if the caller gives up.
    pub(crate) async fn release(
        self: &Arc<Seat>,
        inner: &Arc<Inner>,
        tenure: &Arc<Tenure>,
        begun: Option<Begun<Release>>,
    ) -> Result<(), Error> {
        let (tell, told) = oneshot::channel();
        let own = ReleaseAtExit::new(inner.clone(), self.clone(), tenure.clone());
        tokio::spawn(self.clone().releases(begun, own, tell));
        told.await.unwrap_or(Err(Error::Lost))
    }

    async fn releases(
        self: Arc<Seat>,
        begun: Option<Begun<Release>>,
        mut own: ReleaseAtExit,
        told: oneshot::Sender<Result<(), Error>>,
    ) {
        let (inner, tenure) = (own.inner.clone(), own.tenure.clone());
        let mut told = Some(told);
        let mut tell = |outcome| drop(told.take().map(|told| told.send(outcome)));
        let begun = match begun {
            Some(begun) => Some(begun),
            // Another request of this owner may be in progress, even for longer than this hold
            // lasts.
            None => loop {
                let deadline = *tenure.deadline.borrow();
                match timeout_at(at(deadline), self.level.clone().lock_owned()).await {
                    Ok(level) => match inner.closing.begin().await {
                        Ok(under_way) => {
                            break self.begin_release(&inner, level, &tenure, under_way);
                        }
                        Err(_) if !tenure.is_held() => break None,
                        Err(closed) => {
                            own.is_over = true;
                            return tell(Err(closed));
                        }
                    },
                    Err(_) if tenure.is_held() => tell(Err(Error::Unavailable(timed_out()))),
                    Err(_) => break None,
                }
            },
        };
        let Some(Begun { level, mut machine, out, mut driver }) = begun else {
            own.is_over = true;
            return tell(Err(Error::Lost));
        };
        let level = own.level.insert(level);
        if level.depth == 1 && !tenure.cancel_renewal() {
            tenure.stop.send_replace(true);
        }
        let (free, left) = oneshot::channel();
        let (mut left, mut done) = (Some(left), None);
        driver
            .drive(&mut machine, out, |driver, tell, is_last| {
                let outcome = driver.released(&tell);
                level.end(&tenure, &outcome);
                if is_last {
                    done = Some(outcome);
                } else if let Some(told) = told.take() {
                    answer(told, outcome, left.take());
                }
                None
            })
            .await;
        if matches!(done, Some(Err(Error::Lost))) {
            release_others(&inner, &self.key, &tenure.options, tenure.token).await;
        }
        own.is_over = true;
        drop((own, free));
        if let (Some(told), Some(outcome)) = (told, done) {
            drop(told.send(outcome));
        }
    }

    /// `None` if the owner no longer holds that tenure.
    fn begin_release(
        self: &Arc<Seat>,
        inner: &Arc<Inner>,
        level: SeatGuard,
        tenure: &Arc<Tenure>,
        under_way: UnderWay,
    ) -> Option<Begun<Release>> {
        if level.depth == 0 || !level.is_of(tenure) {
            return None;
        }
        tenure.is_releasing.store(level.depth == 1, Ordering::Release);
        let deadline = if tenure.is_held() { *tenure.deadline.borrow() } else { 0 };
        let released = Released {
            patience: deadline.saturating_sub(now()),
            lease: tenure.lease.load(Ordering::Acquire),
            depth: level.depth,
            token: tenure.token,
            deadline,
            lingers: tenure.lingers.load(Ordering::Acquire),
        };
        let mut machine = Release::new(released, Planted::Nothing);
        let mut out = Vec::new();
        machine.step(now(), Input::Call, &mut out);
        let driver = Driver::new(inner.clone(), self.clone(), tenure.options.clone(), level.depth)
            .begun(under_way);
        Some(Begun { level, machine, out, driver })
    }

    /// Sends one request on the calling thread. If that does not decide the release,
    /// [`Seat::release`] continues from the result.
    pub(crate) fn release_quickly(
        self: &Arc<Seat>,
        inner: &Arc<Inner>,
        tenure: &Arc<Tenure>,
    ) -> (Option<Result<(), Error>>, Option<Begun<Release>>) {
        if tenure.options.parts.is_some() {
            return (None, None); // if one of several locks was lost, the others are released afterward
        }
        let Ok(level) = self.level.clone().try_lock_owned() else { return (None, None) };
        if level.depth == 1 && !tenure.cancel_renewal() {
            return (None, None);
        }
        let Some(under_way) = inner.closing.begin_now() else { return (None, None) };
        let Some(mut begun) = self.begin_release(inner, level, tenure, under_way) else {
            return (None, None);
        };
        if !begun.ask_quickly(inner, &self.key) {
            return (None, None);
        }
        let [Output::Tell(tell), Output::Free] = begun.out.as_slice() else {
            return (None, Some(begun));
        };
        let outcome = begun.driver.released(tell);
        begun.level.end(tenure, &outcome);
        (Some(outcome), None)
    }
}

/// Releases in the background. If the runtime has ended, the task is dropped at once, which then
/// releases on this thread.
pub(crate) fn release_later(
    runtime: &Handle,
    inner: Arc<Inner>,
    seat: Arc<Seat>,
    tenure: Arc<Tenure>,
) {
    let own = ReleaseAtExit::new(inner, seat.clone(), tenure);
    let (tell, _) = oneshot::channel(); // nobody waits for the outcome
    runtime.spawn(seat.releases(None, own, tell));
}

/// Releases the remaining locks of a lost hold. Otherwise, they would last until their leases
/// expire.
async fn release_others(inner: &Arc<Inner>, key: &[u8], options: &Options, token: u64) {
    if let Some(words) = options.together(Request::Release(token, 0)) {
        let _ = inner.servers.ask(key, &words, Duration::from_millis(500)).await;
    }
}
