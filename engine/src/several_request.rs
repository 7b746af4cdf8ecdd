//! A request for several locks: it is granted or refused at once, replaces a waiting one with TELL,
//! or waits itself.

use rlock_core::grammar::{Arguments, SeveralKeys};
use rlock_core::manager::{Group, LockId, OwnWait};
use rlock_core::{Acquire, OwnPlace, Reply, ReplyAbout, Unit};

use crate::blocked;
use crate::given_up::GivenUp;
use crate::host::Host;
use crate::open_locks::OpenKeys;
use crate::unit::RequestError;
use crate::{groups, several, sink, timers};

/// Decides a request for several locks. `None` means that the reply comes later.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn request<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    keys: &SeveralKeys<'a>,
    said: &Arguments<'a>,
    ask: Acquire<'a>,
) -> Result<Option<ReplyAbout>, RequestError> {
    let wants = keys.wants(said);
    let may_wait = sink::may_wait(host, said);
    let place = if may_wait { OwnPlace::Ticket } else { OwnPlace::None };
    let unit = Unit { wants: &wants, ask, place };
    if may_wait
        && let Some(own) = several::told_wait(host, &wants, false, said)
        && !own.is_granted
    {
        let instead = takes_place(host, names, &unit, said, own);
        return Ok(instead.map(|reply| unit.about_all(reply)));
    }
    let mut about = several::acquire(host, names, &unit, None)?;
    if may_wait && matches!(about.reply, Reply::NotNow { .. }) {
        let mut acks = 0;
        if !GivenUp::of(host, &wants, ask.owner).is_nothing() {
            (about, acks) = dry_run_without_tickets(host, names, &unit)?;
        }
        if matches!(about.reply, Reply::NotNow { .. } | Reply::MustConfirm) {
            return Ok(several::park(host, names, &unit, said, about, acks));
        }
    }
    if about.reply == Reply::MustConfirm {
        let instead = several::park_to_confirm(host, names, &unit, said);
        return Ok(instead.map(|reply| ReplyAbout { reply, ..about }));
    }
    Ok(Some(about))
}

/// A request replaces a waiting one with TELL. Returns the reply to send at once instead, if there
/// is one.
fn takes_place<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    unit: &Unit<'_, '_>,
    said: &Arguments<'_>,
    own: OwnWait,
) -> Option<Reply> {
    let (waiter, is_told) = (own.waiter, said.tell.is_some());
    if let Err(refusal) = blocked::may_begin(host, said, is_told) {
        return Some(Reply::Refused(refusal));
    }
    let stands_at = host.state(|state| state.manager.stands_at(waiter));
    let first = unit.wants.first().map(|want| LockId { db: host.db(), key: want.key.into() });
    let parked = sink::asker(host, stands_at.or(first)?, said);
    let Some(parking) = sink::open(host, waiter, names, parked, said, true) else {
        return Some(Reply::NotNow { wait_ms: None });
    };
    let mut by = Group::new(host.db(), unit.wants, &unit.ask, &parking);
    by.is_told = is_told;
    host.state(|state| state.manager.replace_group(waiter, by));
    timers::settle(host);
    None
}

/// The reply that a request would get if its owner's tickets were withdrawn: an error, or that it
/// has to wait. If it need not wait, the reply is [`Reply::MustConfirm`], with the number of
/// replicas that must acknowledge it. Only due items are handled: after an error, the tickets
/// remain.
fn dry_run_without_tickets<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    unit: &Unit<'_, '_>,
) -> Result<(ReplyAbout, u8), RequestError> {
    let mut locks = OpenKeys::open(host, names, unit.wants)?;
    let judged = match unit.judge_all(&mut locks)? {
        Ok(judged) => Ok(judged),
        Err(_) => unit.judge_without_tickets(&mut locks)?,
    };
    let outcome = match judged {
        Ok(judged) => match judged.may_tie(&locks) {
            Ok(()) => (unit.about_all(Reply::MustConfirm), judged.acks),
            Err(refused) => (unit.about_all(refused), 0),
        },
        Err(about) => (about, 0),
    };
    locks.finish(groups::carry_on, |_| {});
    Ok(outcome)
}
