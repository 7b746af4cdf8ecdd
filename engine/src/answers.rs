//! Replies to blocked connections.

use rlock_core::manager::WaitEnd;
use rlock_core::{WaiterId, Wake};

use crate::happening::Happening;
use crate::host::{Deferred, Host};

/// Sends blocked connections the replies to their waits.
pub(crate) fn send<H: Host>(host: &H, wakes: Vec<Wake>) {
    if wakes.is_empty() {
        return;
    }
    // A reply would leave before the writes of the running script are in the append-only file.
    let is_late = host.must_answer_later();
    for wake in wakes {
        if is_late {
            send_later(host, &wake);
        } else if note(host, &wake) {
            unblock(host, wake.waiter);
        }
    }
}

/// Sends the replies that came due outside a transition.
pub(crate) fn send_due<H: Host>(host: &H) {
    send(host, host.state(|state| state.manager.take_answers()));
}

/// Replies to a connection that this command blocked: not before the command has ended, which
/// Redis 7.2 asserts.
pub(crate) fn send_later<H: Host>(host: &H, wake: &Wake) {
    if !note(host, wake) {
        return;
    }
    let is_first = host.state(|state| {
        state.late.push(wake.waiter);
        state.late.len() == 1
    });
    if is_first {
        host.defer(0, Deferred::Answer);
    }
}

/// [`Deferred::Answer`].
pub(crate) fn send_late<H: Host>(host: &H) {
    for waiter in host.state(|state| std::mem::take(&mut state.late)) {
        unblock(host, waiter);
    }
}

/// Sends an observer its reply. No counter counts it.
pub(crate) fn tell<H: Host>(host: &H, waiter: WaiterId, end: WaitEnd) {
    if host.state(|state| state.manager.tell(waiter, end)) {
        unblock(host, waiter);
    }
}

fn note<H: Host>(host: &H, wake: &Wake) -> bool {
    let is_answered = host.state(|state| state.manager.answer(wake));
    if is_answered {
        host.observe(Happening::Answered(wake));
    }
    is_answered
}

fn unblock<H: Host>(host: &H, waiter: WaiterId) {
    if let Some(blocked) = host.state(|state| state.blocked.remove(&waiter)) {
        host.unblock(blocked);
    }
}
