//! A request for several locks: it is granted or refused at once, takes the place of one that waits
//! with TELL, or waits itself.

use rlock_core::grammar::{Access, Arguments, SeveralKeys, Want};
use rlock_core::manager::{At, LockId, Replacement};
use rlock_core::{Lock, OwnPlace, Refusal, Reply, Standing};

use crate::blocked::{self, OwnWait};
use crate::given_up::GivenUp;
use crate::host::{Host, KeyName, OpenKey};
use crate::open_locks::{AcquireAll, OpenLocks, Several};
use crate::sink::{self, Block};
use crate::state::State;
use crate::unit::RequestError;
use crate::{groups, several, timers};

/// Decides a request for several locks. `None`: the reply comes later.
///
/// # Errors
/// [`RequestError`]; nothing changed.
pub(crate) fn request<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    keys: &SeveralKeys<'a>,
    said: &Arguments<'a>,
    mut ask: AcquireAll<'a>,
) -> Result<Option<Several>, RequestError> {
    let wants = keys.wants(said);
    if let Some(own) = blocked::told_group_wait(host, &wants, false, said)
        && !own.is_granted
    {
        return Ok(takes_place(host, names, &wants, ask, said, own));
    }
    if !sink::may_wait(host, said) {
        let (reply, number) = several::acquire(host, names, &wants, ask, None)?;
        return Ok(confirmed(host, names, &wants, ask, said, reply, number));
    }
    ask.place = OwnPlace::Ticket;
    // An error changes nothing: its tickets stay.
    if lacks_sessions(host, names, &wants, ask) {
        let number = wants.first().map_or(0, |want| want.number);
        return Ok(Some((Reply::Refused(Refusal::TooManySessions), number)));
    }
    let (mut reply, mut number) = several::acquire(host, names, &wants, ask, None)?;
    if matches!(reply, Reply::NotNow { .. }) {
        let mut acks = 0;
        if !GivenUp::of(host, &wants, ask.owner).is_nothing() {
            ((reply, number), acks) = would_be(host, names, &wants, ask)?;
        }
        if matches!(reply, Reply::NotNow { .. } | Reply::MustConfirm) {
            return Ok(several::park(host, names, &wants, ask, said, (reply, number), acks));
        }
    }
    Ok(confirmed(host, names, &wants, ask, said, reply, number))
}

/// A request takes the place of one with TELL. Returns the reply to send at once instead.
fn takes_place<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'_>],
    ask: AcquireAll<'_>,
    said: &Arguments<'_>,
    own: OwnWait,
) -> Option<Several> {
    let (waiter, number) = (own.waiter, wants.first().map_or(0, |want| want.number));
    let is_told = said.tell.is_some();
    if let Err(refusal) = blocked::may_begin(host, said, is_told) {
        return Some((Reply::Refused(refusal), number));
    }
    let stands_at = host.state(|state| state.manager.stands_at(waiter));
    let first = wants.first().map(|want| LockId { db: host.db(), key: want.key.into() });
    let parked = sink::asker(host, stands_at.or(first)?, said);
    let client = parked.client;
    let block = Block::of(said, true);
    let Some(parking) = sink::open(host, waiter, names, parked, said, block) else {
        return Some((Reply::NotNow { wait_ms: None }, number));
    };
    let AcquireAll { session, lease, acks, .. } = ask;
    let by = Replacement { client, session, lease, acks, ends_at: parking.ends_at, is_told };
    host.state(|state| state.manager.replace_group(waiter, by));
    timers::settle(host);
    None
}

/// The reply to a caller that does not wait for the locks, unless it is to wait for
/// acknowledgments.
fn confirmed<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
    said: &Arguments<'a>,
    reply: Reply,
    number: usize,
) -> Option<Several> {
    match reply {
        Reply::MustConfirm => several::park_to_confirm(host, names, wants, ask, said, number),
        reply => Some((reply, number)),
    }
}

/// The reply to a request once its owner's tickets are withdrawn: an error, or that it has to wait.
/// [`Reply::MustConfirm`] if it need not, and how many replicas must acknowledge it then. Nothing
/// changes.
fn would_be<'a, H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'a>],
    ask: AcquireAll<'a>,
) -> Result<(Several, u8), RequestError> {
    let mut locks = OpenLocks::open(host, names, wants)?;
    let judged = match locks.judge_all(ask)? {
        Ok(judged) => Ok(judged),
        Err(_) => locks.judge_without(ask),
    };
    locks.finish(groups::carry_on, |_| {});
    let number = wants.first().map_or(0, |want| want.number);
    Ok(match judged {
        Ok(judged) => ((Reply::MustConfirm, number), ask.acks.max(judged.pending_acks)),
        Err(said) => (said, 0),
    })
}

/// Whether there may be no more sessions for a request that could enter all of its locks once its
/// owner's tickets are withdrawn: it is refused then, and they stay.
fn lacks_sessions<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    wants: &[Want<'_>],
    ask: AcquireAll<'_>,
) -> bool {
    let bounds = host.settings().bounds;
    let is_near = |state: &State<H::Blocked>| state.manager.may_tie(&bounds, wants.len()).is_err();
    if ask.session.is_none() || !host.state(|state| is_near(state)) {
        return false;
    }
    let mut more: usize = 0;
    for want in wants {
        let Some(name) = names.get(want.number) else { return false };
        let at = At { db: host.db(), key: name.bytes(), now: host.now() };
        let (mut key, free) = (host.open(name, Access::Reads), Lock::default());
        let Some(lock) = key.lock(&free) else { return false };
        let ties = host.state(|state| {
            match state.manager.judge_without(at, &bounds, lock, ask.claim(want)) {
                Standing::Covered(hold) => Some(!state.manager.has_session(at, hold.token)),
                Standing::Open => Some(true),
                Standing::Barred { .. } | Standing::WouldDeadlock => None,
            }
        });
        let Some(ties) = ties else { return false };
        more = more.saturating_add(ties.into());
    }
    host.state(|state| state.manager.may_tie(&bounds, more)).is_err()
}
