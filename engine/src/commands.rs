//! The commands that change a lock or query it: from the arguments to the request, the decision and
//! the reply.

use rlock_core::grammar::{Access, Arguments, SeveralKeys};
use rlock_core::manager::Same;
use rlock_core::unit::release_all;
use rlock_core::{
    Acquire, ClientId, Input, Lock, Mode, Patience, Refusal, Reply, ReplyAbout, Token, snapshot,
};

use crate::carry_out::{self, is_decided_here};
use crate::happening::Happening;
use crate::host::{Host, KeyName, OpenKey};
pub use crate::observers::await_holder;
use crate::open_locks::OpenKeys;
use crate::planted::PlantedFault;
use crate::unit::RequestError;
use crate::{
    acks, answers, blocked, groups, replay, reply, several, several_request, sink, timers,
};

const NO_SESSION: &str = "ERR SESSION needs a connection: it is not available in a script, a \
                          function or another module's call";

/// `RLOCK.ACQUIRE`.
///
/// # Errors
/// The error line.
pub fn acquire<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Result<(), String> {
    refuse_if_closing(host, said)?;
    reply_to_acquire(host, name, said.acquire(session_of(host, said)?), said)
}

/// `RLOCK.TAKE`.
///
/// # Errors
/// The error line; nothing changed.
pub fn take<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Result<(), String> {
    refuse_if_closing(host, said)?;
    reply_to_acquire(host, name, said.take(), said)
}

/// Decides, and replies, unless the reply comes late.
fn reply_to_acquire<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    ask: Acquire<'_>,
    said: &Arguments<'_>,
) -> Result<(), String> {
    may_ask(host, said)?;
    let Some(reply) = decide_acquire(host, name, ask, said)? else {
        reply_waiting(host, said);
        return Ok(());
    };
    host.observe(Happening::Acquired(&reply));
    reply::to_acquire(host, &reply, said.with_ttl, said.key, said.owner);
    Ok(())
}

/// Checks preconditions of a request that may get a late reply.
#[inline]
fn may_ask<H: Host>(host: &H, said: &Arguments<'_>) -> Result<(), String> {
    if said.acks == 0 && said.tell.is_none() {
        return Ok(());
    }
    let may = acks::may_confirm(host, said.acks, said.tell.is_some());
    may.and_then(|()| sink::may_tell(host, said)).map_err(|why| why.line(said.key, said.owner))
}

/// Sends the immediate reply to a request whose late reply is a message.
fn reply_waiting<H: Host>(host: &H, said: &Arguments<'_>) {
    if said.tell.is_some() {
        host.reply_waiting();
    }
}

/// The connection to which the holds are to be tied.
fn session_of<H: Host>(host: &H, said: &Arguments<'_>) -> Result<Option<ClientId>, String> {
    match said.session {
        true if !host.can_close() => Err(Refusal::CannotClose.line(said.key, said.owner)),
        true => Ok(Some(host.client().ok_or(NO_SESSION)?)),
        false => Ok(None),
    }
}

/// Decides, and blocks the caller if it must wait; in that case, there is no reply yet.
fn decide_acquire<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    ask: Acquire<'_>,
    said: &Arguments<'_>,
) -> Result<Option<Reply>, String> {
    let decide =
        |ask| carry_out::request(host, name, Input::Acquire(ask)).map_err(RequestError::line);
    // A request that takes its owner's own place needs no new one.
    let has_place = ask.max_queue.is_some() && {
        let id = blocked::id_of(host, name);
        blocked::told_wait(host, said, Same::One(&id, ask.mode)).is_some()
    };
    let ask = Acquire { max_queue: ask.max_queue.filter(|_| !has_place), ..ask };
    let mut reply = decide(ask)?;
    let wants_to_wait =
        matches!(reply, Reply::MustWait { .. } | Reply::Refused(Refusal::SecondUpgrade));
    if wants_to_wait && said.block_ms.is_some() && !sink::may_wait(host, said) {
        reply = decide(Acquire { patience: Patience::None, ..ask })?;
    }
    if let Reply::MustWait { wait_ms } = reply {
        let Some(instead) = blocked::park(host, name, ask, said, wait_ms) else {
            return Ok(None);
        };
        reply = instead;
    }
    if reply == Reply::MustConfirm {
        let input = |parking| Input::Park(ask, parking);
        return Ok(blocked::park_to_confirm(host, name, said, |it| Same::One(it, ask.mode), input));
    }
    Ok(Some(reply))
}

/// Refuses a caller whose connection has lost a session and is still executing its last command.
fn refuse_if_closing<H: Host>(host: &H, said: &Arguments<'_>) -> Result<(), String> {
    let is_closing = |client| host.state(|state| state.manager.closing.contains(client));
    if !host.state(|state| state.manager.closing.is_empty())
        && host.client().is_some_and(is_closing)
    {
        return Err(Refusal::Closing.line(said.key, said.owner));
    }
    Ok(())
}

/// `RLOCK.RELEASE`, of a client or of the primary.
///
/// # Errors
/// The error line; nothing changed.
pub fn release<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Result<(), String> {
    let ask = said.release();
    if is_decided_here(host) {
        return count(host, name, Input::Release(ask), said);
    }
    replay::release(host, name, &ask).map_err(RequestError::line)?;
    host.reply_ok();
    Ok(())
}

/// `RLOCK.RENEW`.
///
/// # Errors
/// The error line; nothing changed.
pub fn renew<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Result<(), String> {
    refuse_if_closing(host, said)?;
    let ask = said.renew();
    may_ask(host, said)?;
    let reply = decide(host, name, Input::Renew(ask), said)?;
    let park = || {
        let input = |parking| Input::ParkRenew(ask, parking);
        blocked::park_to_confirm(host, name, said, |it| Same::Renewal(it, ask.mode), input)
    };
    reply_renewal(host, reply, Some(&said.key), said, park);
    Ok(())
}

/// Replies to a renewal, about this key, or lets its caller wait (`park`).
fn reply_renewal<H: Host>(
    host: &H,
    mut reply: Reply,
    key: Option<&&[u8]>,
    said: &Arguments<'_>,
    park: impl FnOnce() -> Option<Reply>,
) {
    if reply == Reply::MustConfirm {
        match park() {
            Some(instead) => reply = instead,
            None => return reply_waiting(host, said),
        }
    }
    host.observe(Happening::Renewed(&reply));
    reply_about(host, &reply, key, said);
}

/// `RLOCK.MACQUIRE`; `names` are in the order of the request.
///
/// # Errors
/// The error line; nothing changed.
pub fn macquire<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    said: &Arguments<'_>,
    keys: &SeveralKeys<'_>,
) -> Result<(), String> {
    refuse_if_closing(host, said)?;
    let session = session_of(host, said)?;
    may_ask(host, said)?;
    let mut ask = said.acquire(session);
    if host.has_fault(PlantedFault::SeveralToldAtOnce) {
        ask.acks = 0;
    }
    let decided = several_request::request(host, names, keys, said, ask);
    let Some(decided) = decided.map_err(RequestError::line)? else {
        reply_waiting(host, said);
        return Ok(());
    };
    let ReplyAbout { reply, number } = decided;
    host.observe(Happening::Acquired(&reply));
    reply_about(host, &reply, keys.keys.get(number), said);
    Ok(())
}

/// `RLOCK.MRELEASE`: every hold of the owner, or those with the token; `names` are in the order of
/// the request.
///
/// # Errors
/// The error line; nothing changed.
pub fn mrelease<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    said: &Arguments<'_>,
    keys: &SeveralKeys<'_>,
) -> Result<(), String> {
    let wants = keys.wants(said);
    let mut locks = OpenKeys::open(host, names, &wants).map_err(RequestError::line)?;
    let ended = release_all(&mut locks, wants.len(), said.owner, said.token);
    let ended = ended.map_err(RequestError::line)?;
    // As for `RLOCK.RELEASE`, the caller gets the number before the waiters get their replies.
    locks.finish(groups::carry_on, |host| host.reply_integer(ended.cast_signed()));
    Ok(())
}

/// `RLOCK.MRENEW`; `names` are in the order of the request.
///
/// # Errors
/// The error line; nothing changed.
pub fn mrenew<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    said: &Arguments<'_>,
    keys: &SeveralKeys<'_>,
) -> Result<(), String> {
    refuse_if_closing(host, said)?;
    may_ask(host, said)?;
    let wants = keys.wants(said);
    let decided = several::renew(host, names, &wants, said, None);
    let ReplyAbout { reply, number } = decided.map_err(RequestError::line)?;
    let park = || several::park_renewal(host, names, &wants, said);
    reply_renewal(host, reply, keys.keys.get(number), said, park);
    Ok(())
}

/// Replies to a request for several keys, about one of them.
fn reply_about<H: Host>(host: &H, reply: &Reply, key: Option<&&[u8]>, said: &Arguments<'_>) {
    reply::to_acquire(host, reply, said.with_ttl, key.copied().unwrap_or(said.key), said.owner);
}

/// `RLOCK.CANCEL`.
///
/// # Errors
/// The error line; nothing changed.
pub fn cancel<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Result<(), String> {
    let (db, owner) = (host.db(), said.owner);
    let groups = host.state(|state| state.manager.groups_of(db, name.bytes(), owner));
    if !groups.is_empty() {
        look(host, name, |_| ())?;
    }
    for waiter in &groups {
        let wait_ms = groups::time_to_wait(host, *waiter);
        let (reply, now) = (Reply::NotNow { wait_ms }, host.now());
        host.state(|state| state.manager.cancel_group(*waiter, name.bytes(), reply, now));
    }
    let reply = decide(host, name, Input::Cancel(owner), said)?;
    if !groups.is_empty() {
        answers::send_due(host);
        timers::settle(host);
    }
    if let Reply::Count(count) = reply {
        let count = count.cast_signed();
        host.reply_integer(count.saturating_add(i64::try_from(groups.len()).unwrap_or(i64::MAX)));
    }
    Ok(())
}

/// `RLOCK.FORCE`.
///
/// # Errors
/// The error line; nothing changed.
pub fn force<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Result<(), String> {
    count(host, name, Input::Force(said.mode), said)
}

/// `RLOCK.HOLDS`.
///
/// # Errors
/// The error line, if the key is not a lock.
pub fn holds<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Result<(), String> {
    let now = host.now();
    let depth = look(host, name, |lock| {
        [Mode::Write, Mode::Read]
            .into_iter()
            .filter(|mode| said.mode.is_none_or(|only| only == *mode))
            .filter_map(|mode| lock.hold_at(said.owner, mode, now))
            .filter(|hold| !is_pending(host, name, hold.token))
            .fold(0, |sum: i64, hold| sum.saturating_add(hold.depth.into()))
    })?;
    host.reply_integer(depth);
    Ok(())
}

/// `RLOCK.CHECK`.
///
/// # Errors
/// The error line, if the key is not a lock.
pub fn check<H: Host>(host: &H, name: &H::Name<'_>, said: &Arguments<'_>) -> Result<(), String> {
    let (now, mode) = (host.now(), said.mode.unwrap_or(Mode::Write));
    let is_held = look(host, name, |lock| {
        said.token.is_some_and(|token| lock.has_token_at(token, mode, now))
    })?;
    let is_pending = said.token.is_some_and(|token| is_pending(host, name, token));
    host.reply_integer((is_held && !is_pending).into());
    Ok(())
}

/// `RLOCK.APPLY`: all of the effects, or none; `names` are in key order.
///
/// # Errors
/// The error line; nothing changed.
pub fn apply<H: Host>(
    host: &H,
    names: &[H::Name<'_>],
    said: &Arguments<'_>,
    _: &SeveralKeys<'_>,
) -> Result<(), String> {
    // The engine's own probe of whether the server would accept a write.
    let is_probe = said.payload.is_empty() && names.len() == 1;
    if !is_probe {
        let effects = snapshot::load_effects(said.payload, names.len())
            .map_err(|why| format!("ERR malformed payload: {why}"))?;
        replay::effects(host, names, &effects).map_err(RequestError::line)?;
    }
    host.reply_ok();
    Ok(())
}

/// Inspects the lock; a free one if there is none.
///
/// # Errors
/// The error line, if the key is not a lock.
pub fn look<H: Host, T>(
    host: &H,
    name: &H::Name<'_>,
    at: impl FnOnce(&Lock) -> T,
) -> Result<T, String> {
    let mut key = host.open(name, Access::Reads);
    key.lock(&Lock::default()).map(at).ok_or_else(|| RequestError::WrongType.line())
}

/// Whether this hold is pending: it was not reported to anybody, and may be revoked.
fn is_pending<H: Host>(host: &H, name: &H::Name<'_>, token: Token) -> bool {
    let db = host.db();
    host.state(|state| state.manager.is_pending(db, name.bytes(), token))
}

/// Lets the core decide; a refusal becomes its error line.
fn decide<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
    said: &Arguments<'_>,
) -> Result<Reply, String> {
    match carry_out::request(host, name, input).map_err(RequestError::line)? {
        Reply::Refused(refusal) => Err(refusal.line(said.key, said.owner)),
        reply => Ok(reply),
    }
}

/// Replies with the count that the core decided.
fn count<H: Host>(
    host: &H,
    name: &H::Name<'_>,
    input: Input<'_>,
    said: &Arguments<'_>,
) -> Result<(), String> {
    match carry_out::request_count(host, name, input).map_err(RequestError::line)? {
        Reply::Refused(refusal) => Err(refusal.line(said.key, said.owner)),
        _ => Ok(()),
    }
}
