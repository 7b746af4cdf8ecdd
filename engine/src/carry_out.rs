//! The only path of a change: open the key, let the manager decide, save, replicate, publish,
//! reply.

use rlock_core::grammar::Access;
use rlock_core::manager::{At, Decided};
use rlock_core::{Input, Reply};

use crate::happening::Done;
use crate::host::{Host, KeyName};
use crate::unit::{RequestError, answer, decide, open, pass_on, publish_events};
use crate::{groups, reports, timers};

/// Decides a client's request about the lock at `name`, and carries out the effects.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub fn request<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
) -> Result<Reply, RequestError> {
    request_with(host, name, input, CallerHears::Last)
}

/// Like `request`, for a request whose reply is a count. The count is sent before the waiters get
/// their replies: the server writes to connections in the reverse order of their replies, so the
/// lock is handed off one system call earlier.
///
/// # Errors
/// [`RequestError`]; nothing changed.
#[inline]
pub(crate) fn request_count<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
) -> Result<Reply, RequestError> {
    request_with(host, name, input, CallerHears::First)
}

/// Decides a request, carries out the effects, and sets the timers.
#[inline]
fn request_with<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
    hears: CallerHears,
) -> Result<Reply, RequestError> {
    if !host.state(|state| state.manager.is_primary()) {
        return Err(RequestError::ReadOnly);
    }
    // If a group has left several locks, their queues are served together.
    let serving = match input {
        Input::Cancel(_) => Serving::WithOthers,
        _ => Serving::AtOnce,
    };
    let (reply, remembers) = carry_out(host, name, &input, serving, hears)?;
    // Without waiters and sessions, the timers stay as they are.
    if remembers {
        timers::settle_command(host);
    }
    Ok(reply)
}

/// Decides an input that no client caused, for the lock at `name`, and carries out the effects.
/// Does not set the timers.
///
/// # Errors
/// The key is not a lock; nothing changed.
pub(crate) fn by_itself<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
) -> Result<(), RequestError> {
    carry_out(host, name, &input, Serving::Later, CallerHears::Last).map(|_| ())
}

/// When to serve the queue of a lock that a step frees, while groups wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serving {
    /// In this step.
    AtOnce,
    /// After the step, together with the queues of other locks.
    WithOthers,
    /// As a task of its own, after everything that came due together.
    Later,
}

/// When the caller gets its reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallerHears {
    /// The reply is not sent in the step: the code that began the step sends it at the end.
    Last,
    /// Before the waiters, if the reply is a count.
    First,
}

/// Whether commands are requests here; otherwise commands being loaded or replicated are replayed,
/// not decided.
pub fn is_decided_here<H: Host>(host: &H) -> bool {
    // In a Cluster, another primary may migrate a slot to this one, with its effects.
    host.state(|state| state.manager.decides()) && !(host.is_cluster() && host.is_from_primary())
}

/// Decides, and carries out the effects. Returns the reply to the caller, and whether the lock may
/// have waiters or sessions.
#[inline]
fn carry_out<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: &Input<'_>,
    serving: Serving,
    hears: CallerHears,
) -> Result<(Reply, bool), RequestError> {
    let mut key = open(host, || host.open(name, Access::Writes));
    let at = At { db: host.db(), key: name.bytes(), now: host.now() };
    let asks = match input {
        Input::Acquire(ask) | Input::Park(ask, _) => Some(ask.owner),
        _ => None,
    };
    let mut effects = None;
    let is_later = serving != Serving::AtOnce;
    if is_later {
        host.state(|state| state.manager.several_change(true));
    }
    let decided = decide(host, at, name, &mut key, input, &mut effects);
    if is_later {
        host.state(|state| state.manager.several_change(false));
    }
    let (start, decided) = decided?;
    let say = |reply: &Reply| {
        if let (CallerHears::First, Reply::Count(count)) = (hears, reply) {
            host.reply_integer(count.cast_signed());
        }
    };
    match decided {
        Decided::Fast(step, _) => {
            drop(key);
            pass_on(host, at, name, start, None, (&step).into());
            publish_events(host, name, true, step.event.as_slice());
            say(&step.reply);
            return Ok((step.reply, false));
        }
        Decided::MustWait(reply) => {
            drop(key);
            pass_on(host, at, name, start, asks, Done::of_reply(&reply));
            return Ok((reply, false));
        }
        Decided::Step(_) => {}
    }
    let mut effects = effects.unwrap_or_default();
    let (expects_keys, has_groups) =
        host.state(|state| (state.manager.expects_keys(), state.manager.has_group_work()));
    let has_groups = has_groups && serving != Serving::Later;
    if expects_keys {
        host.watch_new_keys();
    }
    drop(key);
    pass_on(host, at, name, start, asks, (&effects).into());
    // What groups can do because of this step is part of it, and is reported with it.
    let others = if has_groups { groups::carry_on(host, name.bytes()) } else { Vec::new() };
    publish_events(host, name, !effects.changes.is_empty(), &effects.events);
    reports::publish(host, &others);
    say(&effects.reply);
    let parked = match input {
        Input::Park(_, parking) | Input::ParkRenew(_, parking) => Some(parking.waiter),
        _ => None,
    };
    answer(host, name, &mut effects, parked);
    if has_groups {
        reports::answer(host, others, parked);
    }
    Ok((effects.reply, true))
}
