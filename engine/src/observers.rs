//! Observers: connections that are blocked until the holder of WRITE differs from the one they know
//! of. They get their replies outside commands, in portions, after the waiters. Nothing is written
//! for them.

use std::rc::Rc;
use std::slice;
use std::time::Duration;

use rlock_core::grammar::{Access, Arguments};
use rlock_core::manager::{At, LockId, ObserverTask, Parked, SeenHold, Sight, WaitEnd};
use rlock_core::{Lock, Refusal, Reply, WaiterId};

use crate::host::{Gate, Host, KeyName, OpenKey};
use crate::planted::PlantedFault;
use crate::{answers, blocked, gate, reply, sink, timers};

/// How long the engine replies to observers in one callback: hand-offs come in between.
const PORTION: Duration = Duration::from_micros(125);

const ON_REPLICA: &str = "ERR RLOCK.AWAIT cannot block on a replica: ask the primary, or leave \
                          out BLOCK";

/// `RLOCK.AWAIT`: replies who holds WRITE if that is news for the caller; otherwise blocks the
/// caller, if it asked for that.
///
/// # Errors
/// The error line.
pub fn await_holder<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    said: &Arguments<'_>,
) -> Result<(), String> {
    sink::may_tell(host, said).map_err(|why| why.line(said.key, &[]))?;
    let may_wait = sink::may_wait(host, said);
    if may_wait && !host.state(|state| state.manager.is_primary()) {
        return Err(ON_REPLICA.into());
    }
    let line = |refusal: Refusal| refusal.line(said.key, &[]);
    let held = see(host, name).map_err(line)?;
    let held = held.as_deref();
    if held.map(|held| held.token) != said.token {
        reply::to_await(host, held);
        return Ok(());
    }
    if !may_wait || !block(host, name, held, said).map_err(line)? {
        host.reply_null();
    } else if said.tell.is_some() {
        host.reply_waiting();
    }
    Ok(())
}

/// Blocks the caller, which knows the lock as `held`. False if the server does not allow it.
fn block<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    held: Option<&SeenHold>,
    said: &Arguments<'_>,
) -> Result<bool, Refusal> {
    let max = host.settings().bounds.max_waiters;
    let id = LockId { db: host.db(), key: name.bytes().into() };
    let (client, user) = (sink::client_of(host, said), sink::user_of(host, said));
    let own =
        said.tell.and_then(|to| host.state(|state| state.manager.told_observer(&id, &user, to)));
    blocked::may_begin(host, said, own.is_some()).map_err(|why| match why {
        Refusal::TooManyWaiters { .. } => Refusal::TooManyObservers { max },
        why => why,
    })?;
    if let Some(own) = own {
        host.state(|state| state.manager.observes_no_more(own));
    }
    let parked = Parked::observer(client, id.clone(), user);
    let (waiter, names) = (blocked::number_of(host, None), slice::from_ref(name));
    let Some(parking) = sink::open(host, waiter, names, parked, said, false) else {
        return Ok(false);
    };
    host.state(|state| state.manager.observe(parking.waiter, id, held, parking.ends_at));
    if host.state(|state| state.manager.expects_keys()) {
        host.watch_new_keys();
    }
    timers::settle(host);
    Ok(true)
}

/// What observers see at a key now.
fn see<H: Host>(host: &H, name: &H::Name<'_>) -> Sight {
    let (at, free) = (At { db: host.db(), key: name.bytes(), now: host.now() }, Lock::default());
    let mut key = host.open(name, Access::Reads);
    let lock = key.lock(&free).ok_or(Refusal::WrongType)?;
    Ok(host.state(|state| state.manager.seen_hold(at, lock)).map(Rc::new))
}

/// [`crate::Deferred::Observers`].
pub(crate) fn come<H: Host>(host: &H) {
    host.state(|state| state.is_telling = false);
    tell_some(host);
    timers::settle(host);
}

/// Replies to a portion of the observers for which there is news, in order of arrival, and to those
/// that timed out.
pub(crate) fn tell_some<H: Host>(host: &H) {
    if host.state(|state| state.manager.observer_count() == 0) {
        return;
    }
    let began_at = host.monotonic();
    let is_over = || host.monotonic().saturating_sub(began_at) > PORTION;
    loop {
        let now = host.now();
        match host.state(|state| state.manager.next_observer_task(now)) {
            None => return,
            Some(ObserverTask::TimedOut(waiter)) => {
                let nil = Reply::NotNow { wait_ms: None };
                answers::tell(host, waiter, WaitEnd::Replied(nil));
            }
            Some(ObserverTask::Look(_)) if host.has_fault(PlantedFault::ObserversForgotten) => {}
            Some(ObserverTask::Look(id)) => look(host, &id, &is_over),
        }
        if is_over() {
            return host.state(|state| state.manager.observers_wait());
        }
    }
}

/// Replies to the observers of one lock until the portion is used up.
fn look<H: Host>(host: &H, id: &LockId, is_over: &impl Fn() -> bool) {
    host.with_name(id, |name| {
        let is_elsewhere = host.is_cluster() && gate::of(host, name) == Gate::Elsewhere;
        let sight = if is_elsewhere { Err(Refusal::TryAgain) } else { see(host, name) };
        // Most observers have the same user.
        let mut known: Option<(Rc<[u8]>, bool)> = None;
        while let Some(waiter) = host.state(|state| state.manager.next_observer(id, &sight)) {
            let end = end_of(&sight, may(host, name, waiter, &mut known));
            answers::tell(host, waiter, end);
            let deadline = sight.as_ref().ok().and_then(|held| Some(held.as_ref()?.deadline));
            if is_over() || deadline.is_some_and(|at| at.is_over_at(host.now())) {
                return host.state(|state| state.manager.look_again(id));
            }
        }
    });
}

fn end_of(sight: &Sight, may_observe: bool) -> WaitEnd {
    match sight {
        Ok(held) if may_observe => WaitEnd::Saw(held.clone()),
        Ok(_) => WaitEnd::Replied(Reply::Refused(Refusal::MayNotObserve)),
        Err(refusal) => WaitEnd::Replied(Reply::Refused(refusal.clone())),
    }
}

/// Whether this observer's user may still observe the lock.
fn may<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    waiter: WaiterId,
    known: &mut Option<(Rc<[u8]>, bool)>,
) -> bool {
    let Some(sink::Waiting { user, .. }) = sink::waiting(host, waiter) else { return false };
    let Some(user) = user else { return true };
    match known {
        Some((same, may)) if *same == user => *may,
        _ => {
            let may = host.may_observe(&user, name);
            *known = Some((user, may));
            may
        }
    }
}
