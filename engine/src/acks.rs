//! Grants whose reply waits for acknowledgments: while there are any, the engine checks the
//! replicas before each sleep of the server's loop.

use rlock_core::Refusal;
use rlock_core::manager::Manager;

use crate::happening::Happening;
use crate::host::{Deferred, Host, Replication};
use crate::{answers, timers};

/// How long the subscription outlives the last wait for acknowledgments, in milliseconds.
const LINGER_MS: u64 = 1000;

/// Checks that the caller can wait until this many replicas have acknowledged its request.
///
/// # Errors
/// The caller cannot be blocked, or there are too few replicas.
pub(crate) fn may_confirm<H: Host>(host: &H, acks: u8, is_told: bool) -> Result<(), Refusal> {
    if !is_told && host.denies_blocking() {
        return Err(Refusal::CannotConfirm);
    }
    if Manager::may_confirm(acks, host.state(|state| state.acks.online)).is_ok() {
        return Ok(());
    }
    let answer = Manager::may_confirm(acks, see(host).acknowledged.len());
    if answer.is_err() {
        host.observe(Happening::TooFewReplicas);
    }
    answer
}

/// The current state of the replication stream.
fn see<H: Host>(host: &H) -> Replication {
    let replication = host.replication();
    host.state(|state| state.acks.online = replication.acknowledged.len());
    replication
}

/// A replica disconnected.
pub fn replica_left<H: Host>(host: &H) {
    host.state(|state| state.acks.online = 0);
}

/// A replica connected. The server is still adding it, so it is asked later.
pub fn replica_came<H: Host>(host: &H) {
    host.defer(0, Deferred::Greet);
}

/// [`Deferred::Greet`]: asks a newly connected replica for its offset. A replica counts only after
/// its first acknowledgment, and without writes it would send none.
pub(crate) fn request_first_ack<H: Host>(host: &H) {
    if host.state(|state| state.manager.is_primary()) && !host.is_paused() {
        host.ask_replicas();
    }
}

/// Subscribes to the sleeps of the server's loop, because a decision waits for acknowledgments.
pub(crate) fn watch<H: Host>(host: &H) {
    if !host.state(|state| std::mem::replace(&mut state.acks.is_on, true)) {
        host.watch_sleep(true);
        host.defer(LINGER_MS, Deferred::Unsubscribe);
    }
}

/// [`Deferred::Unsubscribe`]. Never called within [`before_sleep`]: the server would continue to
/// use what this frees.
pub(crate) fn unsubscribe_if_idle<H: Host>(host: &H) {
    if host.state(|state| state.manager.awaits_acks()) {
        host.defer(LINGER_MS, Deferred::Unsubscribe);
    } else {
        host.state(|state| state.acks.is_on = false);
        host.watch_sleep(false);
    }
}

/// Confirms what enough replicas have acknowledged, and asks them for more acknowledgments. The
/// server calls this before it sleeps, while [`Host::watch_sleep`] is on.
pub fn before_sleep<H: Host>(host: &H) {
    if !host.state(|state| state.manager.awaits_acks()) {
        return;
    }
    let mut replication = see(host);
    let is_asking = host.state(|state| {
        state.acks.is_asking |= state.manager.stream_is(replication.offset);
        state.acks.is_asking
    });
    // While the server is paused, it asserts that nothing is written.
    if is_asking && !host.is_paused() {
        host.state(|state| state.acks.is_asking = false);
        host.ask_replicas();
    }
    let now = host.now();
    let (wakes, granted) = host.state(|state| {
        state.manager.acked(&mut replication.acknowledged, now);
        (state.manager.take_answers(), state.manager.take_told_groups())
    });
    (0..granted).for_each(|_| host.observe(Happening::GrantedSeveral));
    let has_groups = host.state(|state| state.manager.has_group_work());
    let is_news = !wakes.is_empty() || has_groups;
    answers::send(host, wakes, None);
    if is_news {
        timers::settle(host);
    }
}
