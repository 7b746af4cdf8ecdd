//! The destination of a request's late reply: a blocked connection, or a message to a channel. Only
//! this file distinguishes the two.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use rlock_core::grammar::{Arguments, TellTo};
use rlock_core::manager::{Line, LockId, Parked};
use rlock_core::slow::Outcome;
use rlock_core::{Owner, Parking, Refusal, Right, WaiterId};

use crate::happening::Happening;
use crate::host::{Host, KeyName};
use crate::planted::PlantedFault;
use crate::{reply, slot, timers};

/// Whether a request may wait: it blocks its connection, or asks for a message.
pub(crate) fn may_wait<H: Host>(host: &H, said: &Arguments<'_>) -> bool {
    said.block_ms.is_some() && (said.tell.is_some() || !host.denies_blocking())
}

/// Checks that a message may be sent to the channel that the request names.
///
/// # Errors
/// The refusal; nothing changed.
pub(crate) fn may_tell<H: Host>(host: &H, said: &Arguments<'_>) -> Result<(), Refusal> {
    let Some(TellTo { channel, .. }) = said.tell else { return Ok(()) };
    if host.is_cluster() && slot::of(channel) != slot::of(said.key) {
        return Err(Refusal::ChannelElsewhere);
    }
    let user = host.any_user();
    if !host.may_publish((!user.is_empty()).then_some(&user), channel) {
        return Err(Refusal::ChannelNotPermitted);
    }
    if host.knows_listeners() { Ok(()) } else { Err(Refusal::NotListed) }
}

/// The user of a request that waits.
pub(crate) fn user_of<H: Host>(host: &H, said: &Arguments<'_>) -> Rc<[u8]> {
    if said.tell.is_some() { host.any_user() } else { host.user() }
}

/// A description of the caller, as of one that waits for `lock`.
pub(crate) fn asker<H: Host>(host: &H, lock: LockId, said: &Arguments<'_>) -> Parked {
    let (owner, user) = (Owner::from(said.owner), user_of(host, said));
    Parked::new(client_of(host, said), lock, owner, user, said.with_ttl)
}

/// The connection whose end ends the wait.
pub(crate) fn client_of<H: Host>(host: &H, said: &Arguments<'_>) -> Option<rlock_core::ClientId> {
    if said.tell.is_none() || said.session { host.client() } else { None }
}

/// Begins to wait with this number, or continues a wait with another destination. `None` if the
/// server does not allow it; nothing has changed then.
pub(crate) fn open<H: Host>(
    host: &H,
    waiter: WaiterId,
    names: &[H::Name<'_>],
    parked: Parked,
    said: &Arguments<'_>,
    is_of_several: bool,
) -> Option<Parking> {
    let client = parked.client;
    let block_ms = said.block_ms.filter(|ms| *ms > 0);
    let is_aside = is_of_several || host.blocks_aside();
    if is_aside {
        host.watch_new_keys();
    }
    let ends_in_ms = match said.tell {
        None => {
            let blocked = match is_aside {
                true => block_aside(host, names, waiter.get())?,
                false => host.block(names, waiter.get())?,
            };
            host.state(|state| {
                state.manager.tell_ends(waiter);
                state.manager.park_begins(waiter, parked);
                state.blocked.insert(waiter, blocked);
            });
            block_ms
        }
        Some(to) => {
            host.state(|state| state.manager.tell_begins(waiter, parked, to));
            host.observe(Happening::Waits(waiter));
            let most = host.settings().bounds.max_tell_ms;
            Some(block_ms.map_or(most, |ms| ms.min(most)))
        }
    };
    let since = host.now();
    let ends_at = ends_in_ms.map(|ms| since.after_ms(ms));
    Some(Parking { waiter, client, since, ends_at, is_of_several })
}

/// Asks the server to block the caller at none of its keys: for each new key, the server checks
/// every connection that is blocked there, and a grant of many locks creates many keys. The engine
/// learns of values at free names in another way ([`crate::events::key_came`]).
fn block_aside<H: Host>(host: &H, names: &[H::Name<'_>], waiter: u64) -> Option<H::Blocked> {
    let first = names.first().map_or(&[][..], KeyName::bytes);
    let at = LockId { db: host.db(), key: aside(first, host.is_cluster()).as_ref().into() };
    host.with_name(&at, |name| host.block(std::slice::from_ref(name), waiter))
}

/// A name that is no key's, in the same hash slot; in a Cluster, a key that is empty, or has braces
/// but no hash tag, serves as its own.
fn aside(key: &[u8], is_cluster: bool) -> Cow<'_, [u8]> {
    const ASIDE: &[u8] = b"\0rlock";
    if !is_cluster {
        return ASIDE.into();
    }
    let hashed = slot::hashed(key);
    let has_tag = hashed.len() < key.len();
    if key.is_empty() || !has_tag && key.iter().any(|byte| b"{}".contains(byte)) {
        return key.into();
    }
    [b"{", hashed, b"}", ASIDE].concat().into()
}

fn hears<H: Host>(host: &H, user: Option<&[u8]>, channel: &[u8]) -> bool {
    (host.has_listener(channel) || host.has_fault(PlantedFault::ListenersNotAsked))
        && may_publish(host, user, channel)
}

fn may_publish<H: Host>(host: &H, user: Option<&[u8]>, channel: &[u8]) -> bool {
    host.may_publish(user, channel) || host.has_fault(PlantedFault::ChannelRightsForgotten)
}

/// Which channels have subscribers, asked for several requests with a single question to the
/// server.
#[derive(Default)]
pub(crate) struct Audience(BTreeMap<Publisher, bool>);

/// A user that publishes, and a channel.
type Publisher = (Option<Rc<[u8]>>, Rc<[u8]>);

impl Audience {
    /// Which of these requests have a subscriber.
    pub(crate) fn of<H: Host>(host: &H, waiters: impl ExactSizeIterator<Item = WaiterId>) -> Self {
        if waiters.len() < 2 || host.state(|state| state.manager.tell_count() == 0) {
            return Self::default();
        }
        let line = |waiter| host.state(|state| state.manager.told_line(waiter));
        let lines = waiters.filter_map(line);
        let mut all: BTreeMap<_, bool> =
            lines.map(|line| ((line.user.clone(), line.channel.clone()), false)).collect();
        if all.is_empty() {
            return Self::default();
        }
        let mut listening = {
            let channels: Vec<&[u8]> = all.keys().map(|(_, channel)| &**channel).collect();
            host.have_listeners(&channels).into_iter()
        };
        let is_asked = !host.has_fault(PlantedFault::ListenersNotAsked);
        for ((user, channel), hears) in &mut all {
            let listens = listening.next() == Some(true) || !is_asked;
            *hears = listens && may_publish(host, user.as_deref(), channel);
        }
        Self(all)
    }

    /// Like `of`, for requests whose results are decided. Without a Cluster, a message reaches only
    /// this server's subscribers, and publishing reports whether there are any: so no question is
    /// needed.
    pub(crate) fn of_decided<H: Host>(
        host: &H,
        waiters: impl ExactSizeIterator<Item = WaiterId>,
    ) -> Self {
        if host.is_cluster() { Self::of(host, waiters) } else { Self::default() }
    }

    /// Whether a message may be sent whose content is decided.
    fn may_hear<H: Host>(&self, host: &H, line: &Line) -> bool {
        match host.is_cluster() {
            true => self.hears(host, line),
            false => may_publish(host, line.user.as_deref(), &line.channel),
        }
    }

    fn hears<H: Host>(&self, host: &H, line: &Line) -> bool {
        if self.0.is_empty() {
            return hears(host, line.user.as_deref(), &line.channel);
        }
        let known = self.0.get(&(line.user.clone(), line.channel.clone()));
        known.copied().unwrap_or_else(|| hears(host, line.user.as_deref(), &line.channel))
    }
}

/// Who waits.
pub(crate) struct Waiting {
    /// `None` for another module, which may do everything.
    pub(crate) user: Option<Rc<[u8]>>,
    /// Where the message goes, for a request with `TELL`.
    line: Option<Rc<Line>>,
}

/// Who waits with this number; `None` if nobody does any longer.
pub(crate) fn waiting<H: Host>(host: &H, waiter: WaiterId) -> Option<Waiting> {
    host.state(|state| {
        if let Some(line) = state.manager.told_line(waiter) {
            return Some(Waiting { user: line.user.clone(), line: Some(line) });
        }
        let parked = state.manager.parked(waiter)?;
        Some(Waiting { user: Some(parked.user.clone()), line: None })
    })
}

/// The permission of this waiter for a lock; `is_allowed` asks for that of its user.
pub(crate) fn right_of<H: Host>(
    host: &H,
    waiter: WaiterId,
    audience: &Audience,
    is_allowed: impl FnOnce(&[u8]) -> bool,
) -> Right {
    let Some(Waiting { user, line }) = waiting(host, waiter) else { return Right::Unheard };
    if line.is_some_and(|line| !audience.hears(host, &line)) {
        return Right::Unheard;
    }
    let may = user.is_none_or(|user| is_allowed(&user));
    if may { Right::May } else { Right::MayNot }
}

/// Whether the reply of this waiter has to wait until the running command, script or transaction
/// ends.
pub(crate) fn is_late<H: Host>(host: &H, waiter: WaiterId) -> bool {
    host.state(|state| state.manager.is_told(waiter)) && host.is_in_longer()
}

/// Whether it is known that the recipient of a reply listens.
#[derive(Clone, Copy)]
pub(crate) enum Listener<'a> {
    /// The step that decided the reply has checked it.
    Asked,
    /// Nothing has been checked since the reply was decided, except for these.
    Unknown(&'a Audience),
}

/// Sends the reply that was set: makes the server ask for it, for a blocked connection, or
/// publishes the message.
pub(crate) fn send<H: Host>(host: &H, waiter: WaiterId, listener: Listener<'_>) {
    if let Some(blocked) = host.state(|state| state.blocked.remove(&waiter)) {
        return host.unblock(blocked);
    }
    let Some(due) = host.state(|state| state.manager.due_message(waiter)) else { return };
    let Some(end) = &due.end else { return ended(host, waiter) };
    let (line, owner) = (&due.line, due.owner.as_deref().map_or(&[][..], Owner::as_bytes));
    let (is_known, may_hear) = match listener {
        Listener::Asked => (true, true),
        Listener::Unknown(audience) => (host.is_cluster(), audience.may_hear(host, line)),
    };
    let message = reply::message_of(&due.id, end, &line.lock.key, owner);
    if !may_hear || !host.publish_message(&line.channel, &message) && !is_known {
        host.observe(Happening::Untold(waiter));
        return leave(host, waiter, Outcome::Disconnected);
    }
    if host.has_fault(PlantedFault::ToldTwice) {
        host.publish_message(&line.channel, &message);
    }
    host.observe(Happening::Told);
    if host.has_fault(PlantedFault::MessageUnheard) {
        return leave(host, waiter, Outcome::Disconnected);
    }
    ended(host, waiter);
}

/// The request has its reply: a message that was sent, whose grant is final, or one at once.
pub(crate) fn ended<H: Host>(host: &H, waiter: WaiterId) {
    if host.state(|state| state.manager.heard_or_forgotten(waiter)) {
        timers::settle(host);
    }
}

/// The request can no longer be granted, or nobody can get the reply to its grant.
pub(crate) fn leave<H: Host>(host: &H, waiter: WaiterId, by: Outcome) {
    let now = host.now();
    host.state(|state| {
        state.blocked.remove(&waiter);
        state.manager.departed(waiter, by, now);
    });
    timers::settle(host);
}
