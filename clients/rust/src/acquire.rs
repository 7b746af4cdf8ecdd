//! Acquires a level of a lock.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::Inner;
use crate::at_exit::UndoAtExit;
use crate::begun::Begun;
use crate::clock::{at, ms, now};
use crate::closing::{UnderWay, unless};
use crate::driver::Driver;
use crate::error::{Error, is_passing, timed_out};
use crate::hold::Hold;
use crate::machine::{
    self, Attempt, FOREVER, Input, Ms, Output, Planted, SeatDecision, SeatState, Tell, decide_seat,
};
use crate::node::Line;
use crate::options::Options;
use crate::renewal::{SHORT, start_renewal, watch_new_holds};
use crate::seat::{Level, Seat, SeatGuard};
use crate::space::space_of;
use crate::telemetry::Span;
use crate::tenure::{LONGEST, NOT_YET, State, Tenure};
use crate::util::{PATIENCE, answer, is_true, lock, millis};

impl Seat {
    /// Adds a level. Runs to its end even if the caller gives up, which `gone` signals.
    pub(crate) async fn acquire(
        self: Arc<Seat>,
        inner: Arc<Inner>,
        options: Options,
        begun: Option<Begun<Attempt>>,
        mut gone: watch::Receiver<bool>,
        told: oneshot::Sender<Result<Hold, Error>>,
    ) {
        let begun = match begun {
            Some(begun) => Ok(begun),
            None => self.seated(&inner, &options, &mut gone).await,
        };
        let Begun { level, machine, out, mut driver } = match begun {
            Ok(begun) => begun,
            Err(error) => return drop(told.send(Err(error))),
        };
        let mut own = UndoAtExit::new(inner.clone(), self.clone(), options.clone(), level, machine);
        let level = &mut own.level;
        *lock(&self.caller_gone) = Some(gone.clone());
        driver.watch(gone);
        let (mut told, (free, left)) = (Some(told), oneshot::channel());
        let (mut left, mut granted) = (Some(left), None);
        driver
            .drive(&mut own.machine, out, |driver, tell, is_last| {
                if let Tell::Granted(token, sent, lingers) = tell {
                    if let Some(interrupted) = driver.interrupted() {
                        return Some(interrupted);
                    }
                    let session = driver.take_line();
                    let tenure =
                        self.begin(&inner, level, &options, sent, session, (token, lingers));
                    start_renewal(&inner, (self.clone(), tenure.clone(), sent));
                    granted = Some(Hold::new(inner.clone(), self.clone(), tenure));
                    return Some(Input::Taken);
                }
                if let (Tell::Lost, Some(tenure)) = (&tell, &level.tenure) {
                    tenure.lose();
                }
                let error = Err(driver.error(&tell));
                if let Some(told) = told.take() {
                    answer(told, error, left.take().filter(|_| !is_last));
                }
                None
            })
            .await;
        lock(&self.caller_gone).take();
        own.is_over = true;
        drop((own, free));
        if let (Some(told), Some(hold)) = (told, granted) {
            drop(told.send(Ok(hold))); // if the caller has gone, the hold is dropped, and so released
        }
    }

    async fn seated(
        self: &Arc<Seat>,
        inner: &Arc<Inner>,
        options: &Options,
        gone: &mut watch::Receiver<bool>,
    ) -> Result<Begun<Attempt>, Error> {
        let start = Instant::now();
        let level = unless(inner.closing.signal(), self.take(inner, options, gone)).await??;
        if inner.closing.is_draining() && !level.is_held() {
            return Err(Error::Closed);
        }
        let under_way = inner.closing.begin().await?;
        Ok(self.begin_attempt(inner, level, options, Some(ms(start.elapsed())), under_way))
    }

    /// Takes the seat when it is free; fails if that takes longer than the caller is willing to
    /// wait.
    async fn take(
        &self,
        inner: &Inner,
        options: &Options,
        gone: &mut watch::Receiver<bool>,
    ) -> Result<SeatGuard, Error> {
        if let Ok(level) = self.level.clone().try_lock_owned() {
            return Ok(level);
        }
        let is_undone = self.is_undone.load(Ordering::Acquire)
            || lock(&self.caller_gone).as_ref().is_some_and(|gone| *gone.borrow());
        let state = if is_undone { SeatState::Undone } else { SeatState::Taken };
        let (wait, outage) = (options.wait_ms(), inner.outage);
        let decision = decide_seat(now(), state, wait, machine::PATIENCE, outage);
        let (until, tell) = match decision {
            SeatDecision::Wait(until, tell) => (until, tell),
            SeatDecision::Take => (FOREVER, Tell::Nil),
        };
        tokio::select! {
            biased; // a seat that is free is taken even at the last moment
            level = self.level.clone().lock_owned() => Ok(level),
            () = sleep_until(at(until)) => Err(match tell {
                Tell::Unavailable => Error::Unavailable(timed_out()),
                _ => Error::NotAcquired,
            }),
            () = is_true(gone) => Err(Error::NotAcquired),
        }
    }

    fn begin_attempt(
        self: &Arc<Seat>,
        inner: &Arc<Inner>,
        mut level: SeatGuard,
        options: &Options,
        waited: Option<Ms>,
        under_way: UnderWay,
    ) -> Begun<Attempt> {
        // The calling thread only sends requests that do not wait.
        let (waited, is_quick) = (waited.unwrap_or(0), waited.is_none());
        if !level.is_held() {
            *level = Level::default(); // the hold is lost, which its task reports
        }
        let has_line = level.tenure.as_ref().is_some_and(|tenure| lock(&tenure.line).is_some());
        let asked = machine::Ask {
            wait: match options.wait_ms() {
                0 => 0,
                FOREVER => FOREVER,
                // One millisecond more, because the machine's time is rounded down.
                wait => wait.saturating_sub(waited).saturating_add(1),
            },
            patience: machine::PATIENCE.saturating_sub(waited).max(1),
            outage: inner.outage,
            lease: millis(options.lease),
            depth: level.depth + 1,
            below: level.tenure.as_ref().map(|tenure| tenure.token),
            hears: !is_quick && inner.servers.hears(&self.key),
            session: options.session && !has_line,
            has_acks: options.has_acks(),
        };
        let mut machine = Attempt::new(asked, Planted::Nothing);
        let mut out = Vec::new();
        machine.step(now(), Input::Call, &mut out);
        let mut driver =
            Driver::new(inner.clone(), self.clone(), options.clone(), asked.depth).begun(under_way);
        if asked.depth == 1 {
            driver.until(inner.closing.drains());
        }
        Begun { level, machine, out, driver }
    }

    /// Sends one request on the calling thread. If that does not decide the acquisition,
    /// [`Seat::acquire`] continues from the result.
    pub(crate) fn quickly(
        self: &Arc<Seat>,
        inner: &Arc<Inner>,
        options: &Options,
    ) -> (Option<Hold>, Option<Begun<Attempt>>) {
        let Ok(level) = self.level.clone().try_lock_owned() else { return (None, None) };
        let Some(under_way) = inner.closing.begin_now() else { return (None, None) };
        if options.session || options.has_acks() || inner.closing.is_draining() {
            return (None, None);
        }
        let mut begun = self.begin_attempt(inner, level, options, None, under_way);
        if !begun.ask_quickly(inner, &self.key) {
            inner.servers.prepare(&self.key);
            return (None, None);
        }
        let Some(&Output::Tell(Tell::Granted(token, sent, lingers))) = begun.out.last() else {
            return (None, Some(begun));
        };
        if begun.driver.interrupted().is_some() {
            return (None, Some(begun)); // it was closed meanwhile
        }
        let tenure = self.begin(inner, &mut begun.level, options, sent, None, (token, lingers));
        let new_hold = (self.clone(), tenure.clone(), sent);
        if options.lease < SHORT {
            start_renewal(inner, new_hold);
        } else {
            lock(&inner.new_holds).push(new_hold);
            if !inner.is_watching_new_holds.swap(true, Ordering::AcqRel) {
                tokio::spawn(watch_new_holds(inner.clone()));
            }
        }
        (Some(Hold::new(inner.clone(), self.clone(), tenure)), None)
    }

    /// Records a grant: a further level of the tenure, or a new tenure.
    fn begin(
        self: &Arc<Seat>,
        inner: &Inner,
        level: &mut Level,
        options: &Options,
        sent: Ms,
        session: Option<Line>,
        (token, lingers): (u64, bool),
    ) -> Arc<Tenure> {
        level.depth += 1;
        let lease = millis(options.lease.min(LONGEST));
        let deadline = sent.saturating_add(lease);
        if let Some(tenure) = &level.tenure {
            tenure.extend(deadline);
            tenure.lease.fetch_max(lease, Ordering::AcqRel);
            tenure.revive();
            tenure.lingers.fetch_or(lingers, Ordering::AcqRel);
            if session.is_some() {
                *lock(&tenure.line) = session;
            }
            return tenure.clone();
        }
        let tenure = Arc::new(Tenure {
            token,
            options: Options { on_trouble: None, ..options.clone() }, // the wait is over
            lease: AtomicU64::new(lease),
            state: watch::Sender::new(State::Held),
            deadline: watch::Sender::new(deadline),
            line: Mutex::new(session),
            stop: watch::Sender::new(false),
            renewal: AtomicU8::new(NOT_YET),
            sleeper: Mutex::default(),
            lingers: AtomicBool::new(lingers),
            span: Span::new(&inner.telemetry, &self.key, options),
            is_doubted: AtomicBool::new(false),
            is_releasing: AtomicBool::new(false),
            is_observed: AtomicBool::new(false),
        });
        inner.closing.remember(self, &tenure);
        level.tenure = Some(tenure.clone());
        tenure
    }
}

/// Finds out which server serves that key, since a named owner's levels are counted there. This
/// takes no longer than the wait, and shortens it.
pub(crate) async fn find_space(
    inner: &Inner,
    key: &[u8],
    options: &mut Options,
) -> Result<(), Error> {
    let (start, mut pause) = (Instant::now(), Duration::from_millis(10));
    let patience = match options.wait {
        Some(Duration::ZERO) => Some(PATIENCE),
        wait => wait,
    };
    let outage = (inner.outage < FOREVER).then(|| Duration::from_millis(inner.outage));
    let patience = patience.into_iter().chain(outage).min();
    loop {
        let left = patience.map_or(PATIENCE, |all| all.saturating_sub(start.elapsed()));
        let error = match inner.servers.names(key, left.min(PATIENCE)).await {
            Ok(names) => {
                inner.servers.space.get_or_init(|| space_of(names));
                options.wait = options.wait.map(|wait| match wait {
                    Duration::ZERO => wait,
                    wait => wait.saturating_sub(start.elapsed()).max(Duration::from_millis(1)),
                });
                return Ok(());
            }
            Err(error) if is_passing(&error) => error,
            Err(error) => return Err(error.into()),
        };
        options.report_trouble(&error);
        let left = patience.map_or(pause, |all| all.saturating_sub(start.elapsed()));
        if left.is_zero() {
            return Err(Error::out_of_patience(error));
        }
        sleep(pause.min(left)).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}
