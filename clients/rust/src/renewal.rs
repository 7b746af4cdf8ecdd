//! The tasks that renew holds and watch for their loss.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

use crate::Inner;
use crate::clock::{at, ms, now};
use crate::driver::Driver;
use crate::machine::{self, Input, Kept, Level as Released, Ms, Outcome, Output, Planted, Release};
use crate::node::Line;
use crate::seat::{Seat, SeatGuard};
use crate::tenure::{ACTIVE, ASLEEP, LONGEST, NOT_YET, Tenure, ended as hold_ended};
use crate::util::{is_true, lock, millis};

/// How often new holds are checked, and the shortest lease for which that is often enough.
const CHECK_EVERY: Duration = Duration::from_millis(50);
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// A hold that was just granted to a thread, and when its request was sent. Most locks are released
/// before their first renewal, and a task for each of them would cost more than the lock.
pub(crate) type NewHold = (Arc<Seat>, Arc<Tenure>, Ms);

/// Renews and watches a hold from now on. Until its first renewal, one task sleeps, which a release
/// ends.
pub(crate) fn start_renewal(inner: &Arc<Inner>, (seat, tenure, sent): NewHold) {
    let is_urgent = tenure.options.lease < SHORT || lock(&tenure.line).is_some();
    if !tenure.switch_renewal(NOT_YET, if is_urgent { ACTIVE } else { ASLEEP }) {
        return;
    }
    let (inner, asleep) = (inner.clone(), tenure.clone());
    let task = tokio::spawn(async move {
        if !is_urgent {
            sleep_until(at(sent.saturating_add(millis(tenure.options.lease) / 3))).await;
        }
        if is_urgent || tenure.switch_renewal(ASLEEP, ACTIVE) {
            keep(seat, inner, tenure, sent).await;
        }
    });
    if !is_urgent {
        *lock(&asleep.sleeper) = Some(task.abort_handle());
    }
}

/// Starts the renewal of recent grants, until there has been none for a second.
pub(crate) async fn watch_new_holds(inner: Arc<Inner>) {
    let mut idle = 0;
    while idle < 20 {
        sleep(CHECK_EVERY).await;
        let new_holds = std::mem::take(&mut *lock(&inner.new_holds));
        idle = if new_holds.is_empty() { idle + 1 } else { 0 };
        for one in new_holds {
            start_renewal(&inner, one);
        }
    }
    inner.is_watching_new_holds.store(false, Ordering::Release);
    // Takes holds that were granted between the last check and the line above.
    for one in std::mem::take(&mut *lock(&inner.new_holds)) {
        start_renewal(&inner, one);
    }
}

/// Renews the hold every third of its lease, until it is released or lost.
async fn keep(seat: Arc<Seat>, inner: Arc<Inner>, tenure: Arc<Tenure>, sent: Ms) {
    let (mut stop, mut state) = (tenure.stop.subscribe(), tenure.state.subscribe());
    let mut deadline = tenure.deadline.subscribe();
    let mut ended = lock(&tenure.line).as_ref().map(Line::ended);
    let (mut closed, mut is_closed) = (inner.closing.signal(), false);
    let mut lease = millis(tenure.options.lease.min(LONGEST));
    let mut machine = machine::Hold::new(
        Kept {
            token: tenure.token,
            lease,
            sent,
            margin: ms(tenure.margin()),
            session: ended.is_some(),
            has_acks: tenure.options.has_acks(),
            renews: tenure.options.renews,
        },
        Planted::Nothing,
    );
    let mut driver = Driver::new(inner.clone(), seat.clone(), tenure.options.clone(), 1);
    let (mut guard, mut operation, mut is_stopping) = (None::<SeatGuard>, None, false);
    let (mut input, mut out) = (Input::Call, Vec::new());
    loop {
        machine.step(now(), input, &mut out);
        tenure.extend(machine.deadline());
        for output in out.drain(..) {
            match output {
                Output::Tell(_) => {
                    tenure.lose();
                    // A hold that may still be tied to the connection ends with it.
                    drop(lock(&tenure.line).take());
                    let may_return = tenure.options.session && tenure.options.is_named;
                    let guard = seat.level.clone().try_lock_owned().ok();
                    if let Some(guard) = guard.filter(|_| may_return) {
                        tokio::spawn(undo_tie(inner.clone(), seat.clone(), tenure.clone(), guard));
                    }
                }
                Output::Done => return,
                Output::Leave => {
                    if let Some(guard) = guard.take().filter(|_| machine.is_unsure()) {
                        tokio::spawn(undo_tie(inner.clone(), seat.clone(), tenure.clone(), guard));
                    }
                }
                Output::Doubt => tenure.is_doubted.store(true, Ordering::Release),
                Output::Tied => {
                    let line = driver.take_line();
                    ended = line.as_ref().map(Line::ended);
                    *lock(&tenure.line) = line;
                    tenure.is_doubted.store(false, Ordering::Release);
                }
                output => {
                    if matches!(output, Output::Send(..)) {
                        lease = tenure.lease.load(Ordering::Acquire);
                        machine.lengthen(lease);
                        driver.lengthen(lease);
                    }
                    if driver.begin(&output) {
                        operation = Some(output);
                    }
                }
            }
        }
        let Some(operation) = &operation else { return };
        if *operation == Output::Seat {
            guard = seat.level.clone().try_lock_owned().ok();
            input = Input::Seat(guard.as_ref().map(|level| level.depth));
            continue;
        }
        deadline.borrow_and_update();
        input = tokio::select! {
            biased;
            () = hold_ended(&mut state) => Input::Released,
            () = is_true(&mut stop), if !is_stopping => {
                is_stopping = true;
                Input::Releasing
            }
            () = is_true(&mut closed), if !is_closed => {
                is_closed = true;
                if lock(&tenure.line).is_some() { Input::Gone } else { Input::Close }
            }
            () = end_of(ended.as_mut()), if ended.is_some() => {
                ended = None;
                Input::Untied
            }
            _ = deadline.changed() => {
                Input::Extend(deadline.borrow_and_update().saturating_sub(lease))
            }
            input = driver.end(operation) => input,
        };
        if is_failed_renewal(operation, &input) && !is_stopping {
            tenure.span.telemetry().failed_renewal();
        }
    }
}

/// Undoes a session that was lost, or a request to tie it that was never answered, and keeps the
/// seat until then. Otherwise, the owner's next hold could be tied to a closed connection.
async fn undo_tie(inner: Arc<Inner>, seat: Arc<Seat>, tenure: Arc<Tenure>, guard: SeatGuard) {
    let Some(under_way) = inner.closing.begin_now() else { return };
    let lost = Released {
        patience: 0,
        lease: tenure.lease.load(Ordering::Acquire),
        depth: 1,
        token: tenure.token,
        deadline: 0,
        lingers: true,
    };
    let (mut machine, mut out) = (Release::new(lost, Planted::Nothing), Vec::new());
    machine.step(now(), Input::Cancel, &mut out);
    let mut driver = Driver::new(inner, seat, tenure.options.clone(), 1).begun(under_way);
    driver.drive(&mut machine, out, |_, _, _| None).await;
    drop(guard);
}

fn is_failed_renewal(operation: &Output, input: &Input) -> bool {
    match (operation, input) {
        (Output::Send(..), Input::Ended(outcome)) => {
            !matches!(outcome, Outcome::Token(_) | Outcome::Waiting)
        }
        (Output::Wait(_), Input::Message(outcome)) => !matches!(outcome, Outcome::Token(_)),
        (Output::Wait(_), Input::Time) => true,
        _ => false,
    }
}

async fn end_of(ended: Option<&mut watch::Receiver<bool>>) {
    if let Some(ended) = ended {
        is_true(ended).await;
    }
}
