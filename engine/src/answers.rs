//! Replies to blocked connections.

use rlock_core::manager::WaitEnd;
use rlock_core::{Reply, Token, WaiterId, Wake};

use crate::happening::Happening;
use crate::host::{Deferred, Host};
use crate::sink::{self, Audience, Listener};

/// How many late replies are sent in one loop iteration.
const LATE_MAX: usize = 256;

/// Sends the replies of a step to its waiters. `parked` is the one that this very command blocked.
pub(crate) fn send_of_step<H: Host>(host: &H, wakes: Vec<Wake>, parked: Option<WaiterId>) {
    // A step grants nobody without a check that somebody listens.
    let audience = Audience::default();
    send_all(host, wakes, parked, |wake| match wake.reply {
        Reply::Granted { .. } => Listener::Asked,
        _ => Listener::Unknown(&audience),
    });
}

/// Sends replies to waiters, of which this very command may have blocked one.
pub(crate) fn send<H: Host>(host: &H, wakes: Vec<Wake>, parked: Option<WaiterId>) {
    let audience = Audience::of_decided(host, wakes.iter().map(|wake| wake.waiter));
    send_all(host, wakes, parked, |_| Listener::Unknown(&audience));
}

fn send_all<'a, H: Host>(
    host: &H,
    mut wakes: Vec<Wake>,
    parked: Option<WaiterId>,
    listener: impl Fn(&Wake) -> Listener<'a>,
) {
    if wakes.is_empty() {
        return;
    }
    // A grant that enters in the same step may be reported before it.
    if wakes.len() > 1 {
        wakes.sort_by_key(granted_token);
    }
    // A reply would leave before the writes of the running script are in the append-only file.
    let all_late = host.must_answer_later();
    for wake in wakes {
        let is_late = all_late || parked == Some(wake.waiter);
        if is_late || sink::is_late(host, wake.waiter) {
            send_later(host, &wake);
        } else if note(host, &wake) {
            sink::send(host, wake.waiter, listener(&wake));
        }
    }
}

fn granted_token(wake: &Wake) -> Option<Token> {
    if let Reply::Granted { token, .. } = wake.reply { Some(token) } else { None }
}

/// Sends the replies that came due outside a transition.
pub(crate) fn send_due<H: Host>(host: &H) {
    send(host, host.state(|state| state.manager.take_answers()), None);
}

/// Sends replies to a connection that this very command blocked: only after the command has ended,
/// which Redis 7.2 asserts.
pub(crate) fn send_later<H: Host>(host: &H, wake: &Wake) {
    if note(host, wake) {
        later(host, vec![wake.waiter]);
    }
}

/// Sends these replies in a later loop iteration.
pub(crate) fn later<H: Host>(host: &H, waiters: Vec<WaiterId>) {
    let is_first = host.state(|state| {
        let is_first = state.late.is_empty() && !waiters.is_empty();
        state.late.extend(waiters);
        is_first
    });
    if is_first {
        host.defer(0, Deferred::Answer);
    }
}

/// [`Deferred::Answer`].
pub(crate) fn send_late<H: Host>(host: &H) {
    let late: Vec<WaiterId> = host.state(|state| {
        let portion = state.late.len().min(LATE_MAX);
        state.late.drain(..portion).collect()
    });
    let has_rest = host.state(|state| !state.late.is_empty());
    let audience = Audience::of_decided(host, late.iter().copied());
    for waiter in late {
        sink::send(host, waiter, Listener::Unknown(&audience));
    }
    // If there is no rest, whoever adds the next reply schedules this.
    if has_rest {
        host.defer(0, Deferred::Answer);
    }
}

/// Sends an observer its reply, which no counter counts.
pub(crate) fn tell<H: Host>(host: &H, waiter: WaiterId, end: WaitEnd) {
    if host.state(|state| state.manager.tell(waiter, end)) {
        match sink::is_late(host, waiter) {
            true => later(host, vec![waiter]),
            false => sink::send(host, waiter, Listener::Unknown(&Audience::default())),
        }
    }
}

fn note<H: Host>(host: &H, wake: &Wake) -> bool {
    let is_answered = host.state(|state| state.manager.answer(wake));
    if is_answered {
        host.observe(Happening::Answered(wake));
    }
    is_answered
}
