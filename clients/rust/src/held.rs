//! A hold: its deadline, its loss, and the tasks that renew and watch it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until};

use crate::ask::{Ask, is_true, millis};
use crate::clock::{at, ms, now};
use crate::entry::{Entry, Turn};
use crate::machine::{self, Input, Kept, Level as Released, Ms, Outcome, Output, Planted, Release};
use crate::node::Line;
use crate::servers::lock;
use crate::telemetry::Span;
use crate::{Inner, Options};

/// The state of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Held,
    Lost,
    Released,
}

/// A hold from its first level to the last one's release, or to the loss.
pub(crate) struct Held {
    pub(crate) token: u64,
    pub(crate) options: Options,
    /// The longest that a level asked for, in milliseconds.
    pub(crate) lease: AtomicU64,
    pub(crate) state: watch::Sender<State>,
    pub(crate) deadline: watch::Sender<Ms>,
    pub(crate) line: Mutex<Option<Line>>,
    pub(crate) stop: watch::Sender<bool>,
    /// Whether tasks renew and watch it: not yet, yes, or never again.
    pub(crate) care: AtomicU8,
    /// The task that sleeps until there is something to renew.
    pub(crate) sleeper: Mutex<Option<AbortHandle>>,
    /// A request of its attempts was never answered.
    pub(crate) lingers: AtomicBool,
    /// Its time, for listeners.
    pub(crate) span: Span,
    /// The connection of the session has ended, and the hold is not tied to a new one.
    pub(crate) is_doubted: AtomicBool,
    /// Its last level is being released: that nobody holds the lock is no loss.
    pub(crate) is_releasing: AtomicBool,
    /// A task observes who holds the lock.
    pub(crate) is_observed: AtomicBool,
}

/// The server refuses longer leases.
pub(crate) const LONGEST: Duration = Duration::from_secs(7 * 86400);

pub(crate) const NOT_YET: u8 = 0;
const CARED_FOR: u8 = 1;
const ASLEEP: u8 = 3;
const NEVER: u8 = 2;

/// How soon to watch a hold, and the shortest lease for which that is soon enough.
const NURSING: Duration = Duration::from_millis(50);
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// A hold that was just granted to a thread. Most locks are released before there is anything to renew, and two tasks for each would
/// cost more than the lock.
pub(crate) type Newborn = (Arc<Entry>, Arc<Held>, Ms);

impl Held {
    pub(crate) fn owner(&self) -> &str {
        &self.options.owner
    }

    /// Whether a user may rely on it. The server may have ended a session whose connection has broken.
    pub(crate) fn is_sure(&self) -> bool {
        let is_broken = lock(&self.line).as_ref().is_some_and(Line::is_ended);
        self.is_held() && !is_broken && !self.is_doubted.load(Ordering::Acquire)
    }

    /// Correct even right after this process slept, before any task has noticed.
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

    fn turn(&self, from: u8, to: u8) -> bool {
        self.care.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether no task renews it; if so, none ever will.
    pub(crate) fn needs_no_care(&self) -> bool {
        if self.turn(ASLEEP, NEVER) {
            if let Some(task) = lock(&self.sleeper).take() {
                task.abort();
            }
            return true;
        }
        self.turn(NOT_YET, NEVER) || self.care.load(Ordering::Acquire) == NEVER
    }

    /// Makes a hold whose release failed be watched again.
    pub(crate) fn revive(&self) {
        self.turn(NEVER, NOT_YET);
    }

    pub(crate) fn extend(&self, deadline: Ms) {
        self.deadline.send_if_modified(|now| {
            let is_later = deadline > *now;
            *now = deadline.max(*now);
            is_later
        });
    }

    /// How long before its deadline a hold is given up, because a signal takes time to arrive.
    pub(crate) fn margin(&self) -> Duration {
        (self.options.lease / 20).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }
}

/// Renews and watches from now on. Most locks are released before there is anything to renew: until then one task sleeps,
/// which the release ends.
pub(crate) fn look_after(inner: &Arc<Inner>, (entry, held, sent): Newborn) {
    let is_urgent = held.options.lease < SHORT || lock(&held.line).is_some();
    if !held.turn(NOT_YET, if is_urgent { CARED_FOR } else { ASLEEP }) {
        return;
    }
    let (inner, asleep) = (inner.clone(), held.clone());
    let task = tokio::spawn(async move {
        if !is_urgent {
            sleep_until(at(sent.saturating_add(millis(held.options.lease) / 3))).await;
        }
        if is_urgent || held.turn(ASLEEP, CARED_FOR) {
            keep(entry, inner, held, sent).await;
        }
    });
    if !is_urgent {
        *lock(&asleep.sleeper) = Some(task.abort_handle());
    }
}

/// Watches recent grants, until there was none for a second.
pub(crate) async fn nurse(inner: Arc<Inner>) {
    let mut idle = 0;
    while idle < 20 {
        sleep(NURSING).await;
        let newborn = std::mem::take(&mut *lock(&inner.newborn));
        idle = if newborn.is_empty() { idle + 1 } else { 0 };
        for one in newborn {
            look_after(&inner, one);
        }
    }
    inner.is_nursed.store(false, Ordering::Release);
    // What was granted between the last check and that.
    for one in std::mem::take(&mut *lock(&inner.newborn)) {
        look_after(&inner, one);
    }
}

/// Renews every third of the lease until it is released or lost.
async fn keep(entry: Arc<Entry>, inner: Arc<Inner>, held: Arc<Held>, sent: Ms) {
    let (mut stop, mut state) = (held.stop.subscribe(), held.state.subscribe());
    let mut deadline = held.deadline.subscribe();
    let mut ended = lock(&held.line).as_ref().map(Line::ended);
    let (mut closed, mut is_closed) = (inner.closing.signal(), false);
    let mut lease = millis(held.options.lease.min(LONGEST));
    let mut machine = machine::Hold::new(
        Kept {
            token: held.token,
            lease,
            sent,
            margin: ms(held.margin()),
            session: ended.is_some(),
            has_acks: held.options.has_acks(),
            renews: true,
        },
        Planted::Nothing,
    );
    let mut ask = Ask::new(inner.clone(), entry.clone(), held.options.clone(), 1);
    let (mut seat, mut operation, mut is_stopping) = (None::<Turn>, None, false);
    let (mut input, mut out) = (Input::Call, Vec::new());
    loop {
        machine.step(now(), input, &mut out);
        held.extend(machine.deadline());
        for output in out.drain(..) {
            match output {
                Output::Tell(_) => {
                    held.lose();
                    drop(lock(&held.line).take()); // what may still be tied to it ends with it
                    let may_return = held.options.session && held.options.is_named;
                    let seat = entry.level.clone().try_lock_owned().ok();
                    if let Some(seat) = seat.filter(|_| may_return) {
                        tokio::spawn(undo_tie(inner.clone(), entry.clone(), held.clone(), seat));
                    }
                }
                Output::Done => return,
                Output::Leave => {
                    if let Some(seat) = seat.take().filter(|_| machine.is_unsure()) {
                        let (inner, entry, held) = (inner.clone(), entry.clone(), held.clone());
                        tokio::spawn(undo_tie(inner, entry, held, seat));
                    }
                }
                Output::Doubt => held.is_doubted.store(true, Ordering::Release),
                Output::Tied => {
                    let line = ask.take_line();
                    ended = line.as_ref().map(Line::ended);
                    *lock(&held.line) = line;
                    held.is_doubted.store(false, Ordering::Release);
                }
                output => {
                    if matches!(output, Output::Send(..)) {
                        lease = held.lease.load(Ordering::Acquire);
                        machine.lengthen(lease);
                        ask.lengthen(lease);
                    }
                    if ask.begin(&output) {
                        operation = Some(output);
                    }
                }
            }
        }
        let Some(operation) = &operation else { return };
        if *operation == Output::Seat {
            seat = entry.level.clone().try_lock_owned().ok();
            input = Input::Seat(seat.as_ref().map(|level| level.depth));
            continue;
        }
        deadline.borrow_and_update();
        input = tokio::select! {
            biased;
            () = is_over(&mut state) => Input::Released,
            () = is_true(&mut stop), if !is_stopping => {
                is_stopping = true;
                Input::Releasing
            }
            () = is_true(&mut closed), if !is_closed => {
                is_closed = true;
                if lock(&held.line).is_some() { Input::Gone } else { Input::Close }
            }
            () = end_of(ended.as_mut()), if ended.is_some() => {
                ended = None;
                Input::Untied
            }
            _ = deadline.changed() => {
                Input::Extend(deadline.borrow_and_update().saturating_sub(lease))
            }
            input = ask.end(operation) => input,
        };
        if is_failed_renewal(operation, &input) && !is_stopping {
            held.span.telemetry().failed_renewal();
        }
    }
}

/// Keeps the seat until a session that was lost, or a request to tie it that nobody answered, can do nothing any more: the
/// owner's next hold would be tied to a connection that is closed.
async fn undo_tie(inner: Arc<Inner>, entry: Arc<Entry>, held: Arc<Held>, seat: Turn) {
    let Some(under_way) = inner.closing.begin_now() else { return };
    let lost = Released {
        patience: 0,
        lease: held.lease.load(Ordering::Acquire),
        depth: 1,
        token: held.token,
        deadline: 0,
        lingers: true,
    };
    let (mut machine, mut out) = (Release::new(lost, Planted::Nothing), Vec::new());
    machine.step(now(), Input::Cancel, &mut out);
    let mut ask = Ask::new(inner, entry, held.options.clone(), 1).begun(under_way);
    ask.drive(&mut machine, out, |_, _, _| None).await;
    drop(seat);
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

pub(crate) async fn is_over(state: &mut watch::Receiver<State>) {
    let _ = state.wait_for(|state| *state != State::Held).await;
}

async fn end_of(ended: Option<&mut watch::Receiver<bool>>) {
    if let Some(ended) = ended {
        is_true(ended).await;
    }
}
