//! Blocked connections: the server keeps them blocked for us, asks for their reply, and reports
//! when they depart.

use std::rc::Rc;

use rlock_core::grammar::{Access, Arguments};
use rlock_core::manager::{LockId, Manager, Parked, Wait, World, search};
use rlock_core::slow::Outcome;
use rlock_core::waits_for::{Search, Stand};
use rlock_core::{
    Acquire, ClientId, Input, Lock, Memory, Owner, Parking, Refusal, Renew, Reply, WaiterId, Wake,
};

use crate::ffi::{self, Ctx, Exclusive, Name, Waiting};
use crate::metrics::{self, Metric};
use crate::{answers, executor, reply, settings, state, timers};

/// How many milliseconds after ours the server's own timeout fires, in case ours fails.
const NET_MS: u64 = 100;

/// Blocked connections for which the search for a cycle is still to be done.
static UNSEARCHED: Exclusive<Vec<WaiterId>> = Exclusive::empty();

/// Blocks the caller after [`Reply::MustWait`]. Returns the reply to send at once instead, if it
/// cannot wait.
pub fn park<'a>(
    ctx: &Ctx,
    name: &Name<'_>,
    ask: Acquire<'a>,
    block_ms: u64,
    with_ttl: bool,
    wait_ms: Option<u64>,
) -> Option<Reply> {
    let bounds = settings::bounds();
    if let Err(refusal) = state::with(|state| state.manager.may_park(&bounds)) {
        return Some(Reply::Refused(refusal));
    }
    let lock = LockId { db: ctx.selected_db(), key: name.bytes().into() };
    let (owner, user): (Owner, Rc<str>) = (ask.owner.into(), ctx.user_name().into());
    let wait = Wait { lock: &lock, owner: &owner, user: &user, stand: (&ask).into() };
    // In a cluster a command can open only keys of its own slot, so the search runs after it.
    if !ffi::is_cluster()
        && let Some(refusal) = deadlock(ctx, wait)
    {
        return Some(Reply::Refused(refusal));
    }
    let net_ms = if block_ms == 0 { 0 } else { block_ms.saturating_add(NET_MS) };
    let parked = Parked::new(ctx.client().map(ClientId::from), lock, owner, user, with_ttl);
    let Some(parking) = block(ctx, name, parked, (block_ms > 0).then_some(block_ms), net_ms) else {
        return Some(Reply::NotNow { wait_ms });
    };
    let stays = decide(ctx, name, Input::Park(ask, parking));
    if matches!(stays, Some(Reply::MustWait { .. }))
        && ffi::is_cluster()
        && settings::detects_deadlocks()
    {
        search_soon(parking.waiter);
    }
    None
}

/// A request whose reply waits for acknowledgements.
#[derive(Clone, Copy)]
pub enum Asks<'a> {
    /// `RLOCK.ACQUIRE`
    Acquire(Acquire<'a>),
    /// `RLOCK.RENEW`
    Renew(Renew<'a>),
}

/// Blocks the caller after [`Reply::MustConfirm`]. Returns the reply to send at once instead, if it
/// cannot be blocked.
pub fn park_to_confirm(
    ctx: &Ctx,
    name: &Name<'_>,
    asks: Asks<'_>,
    said: &Arguments<'_>,
) -> Option<Reply> {
    if ctx.denies_blocking() {
        return Some(Reply::Refused(Refusal::CannotConfirm));
    }
    let lock = LockId { db: ctx.selected_db(), key: name.bytes().into() };
    let (owner, user): (Owner, Rc<str>) = (said.owner.into(), ctx.user_name().into());
    let parked = Parked::new(ctx.client().map(ClientId::from), lock, owner, user, said.with_ttl);
    let net_ms = settings::bounds().confirm_ms.saturating_add(NET_MS);
    let ends_in = said.block_ms.filter(|ms| *ms > 0);
    let Some(parking) = block(ctx, name, parked, ends_in, net_ms) else {
        return Some(Reply::Refused(Refusal::CannotConfirm));
    };
    let input = match asks {
        Asks::Acquire(ask) => Input::Park(ask, parking),
        Asks::Renew(ask) => Input::ParkRenew(ask, parking),
    };
    decide(ctx, name, input);
    None
}

/// Asks the server to block the caller.
fn block(
    ctx: &Ctx,
    name: &Name<'_>,
    parked: Parked,
    ends_in_ms: Option<u64>,
    net_ms: u64,
) -> Option<Parking> {
    let waiter = state::with(|state| state.manager.next_waiter());
    let blocked = ctx.block::<Park>(name, waiter.get(), net_ms)?;
    let client = parked.client;
    state::with(|state| {
        state.manager.park_begins(waiter, parked);
        state.blocked.insert(waiter, blocked);
    });
    Some(Parking { waiter, client, ends_at: ends_in_ms.map(|ms| state::now().after_ms(ms)) })
}

/// Lets the manager decide for a caller that is now blocked. Returns `MustWait` or `Pending` if it
/// stays blocked; any other reply is sent later.
fn decide(ctx: &Ctx, name: &Name<'_>, input: Input<'_>) -> Option<Reply> {
    let (Input::Park(_, parking) | Input::ParkRenew(_, parking)) = input else { return None };
    let reply = match executor::decide(ctx, name, input) {
        Ok(reply @ (Reply::MustWait { .. } | Reply::Pending)) => return Some(reply),
        Ok(reply) => reply,
        Err(_) => Reply::Refused(Refusal::WrongType),
    };
    // The lock changed in between.
    let waiter = parking.waiter;
    answers::tell_later(&Wake { waiter, reply, waited_us: 0, acks_us: None });
    None
}

/// A connection closed. Its sessions, its wait, and a grant whose reply it did not get, end with
/// it.
pub fn connection_ended(client: u64) {
    let now = state::now();
    state::with(|state| state.manager.connection_ended(ClientId::from(client), now));
    timers::settle();
}

struct Park;

impl Waiting for Park {
    fn key_came(waiter: u64) {
        let is_awaited = state::with(|state| {
            let lock = state.manager.parked(WaiterId::from(waiter))?.lock.clone();
            Some(state.manager.key_came(lock.db, &lock.key))
        });
        if is_awaited == Some(true) {
            timers::settle();
        }
    }

    fn reply(ctx: &Ctx, waiter: u64) {
        let waiter = WaiterId::from(waiter);
        let parked = state::with(|state| state.manager.parked(waiter).cloned());
        let Some(parked) = parked else { return ctx.reply_null() };
        // Without a reply of ours: CLIENT UNBLOCK, or the server's own timeout.
        let told = parked.reply.clone().unwrap_or_else(|| {
            let now = state::now();
            if let Some(refusal) = &parked.refusal {
                left(waiter, Outcome::Unblocked);
                let reply = Reply::Refused(refusal.clone());
                let wake = Wake { waiter, reply, waited_us: 0, acks_us: None };
                metrics::count_wake(&wake);
                return wake.reply;
            }
            let see = |lock: &Lock, memory: &Memory| lock.known_wait_of(memory, waiter, now);
            let wait_ms = Hands { ctx }.lock(&parked.lock, see);
            left(waiter, Outcome::Unblocked);
            metrics::add(Metric::TimedOut, 1);
            Reply::NotNow { wait_ms }
        });
        let (key, owner) = (&parked.lock.key, parked.owner.as_bytes());
        reply::to_acquire(ctx, &told, parked.with_ttl, key, owner);
    }

    fn gone(waiter: u64) {
        left(WaiterId::from(waiter), Outcome::Disconnected);
    }

    fn over(waiter: u64, is_lost: bool) {
        let waiter = WaiterId::from(waiter);
        if is_lost {
            left(waiter, Outcome::Disconnected);
        }
        let is_news = state::with(|state| {
            state.blocked.remove(&waiter);
            state.manager.unparked(waiter)
        });
        if is_news {
            timers::settle();
        }
    }
}

/// The connection can no longer be granted the lock, or get the reply to its grant.
fn left(waiter: WaiterId, by: Outcome) {
    let now = state::now();
    state::with(|state| {
        state.blocked.remove(&waiter);
        state.manager.left(waiter, by, now);
    });
    timers::settle();
}

/// Refuses this wait in the next loop iteration, if it has closed a cycle.
fn search_soon(waiter: WaiterId) {
    fn search(ctx: &Ctx) {
        for waiter in UNSEARCHED.with(std::mem::take) {
            let parked = state::with(|state| state.manager.parked(waiter).cloned());
            let Some(parked) = parked.filter(|parked| parked.reply.is_none() && !parked.is_gone)
            else {
                continue;
            };
            let (lock, owner, user) = (&parked.lock, &parked.owner, &*parked.user);
            let wait = Wait { lock, owner, user, stand: Stand::Parked(waiter) };
            if let Some(refusal) = deadlock(ctx, wait) {
                let now = state::now();
                state::with(|state| state.manager.refuse(waiter, now));
                let reply = Reply::Refused(refusal);
                answers::tell(ctx, vec![Wake { waiter, reply, waited_us: 0, acks_us: None }]);
            }
        }
        timers::settle();
    }
    UNSEARCHED.with(|unsearched| unsearched.push(waiter));
    ffi::after(0, search);
}

/// The refusal of a wait that closes a cycle, or would.
fn deadlock(ctx: &Ctx, wait: Wait<'_>) -> Option<Refusal> {
    if !settings::detects_deadlocks() {
        return None;
    }
    let now = state::now();
    match search(&mut Hands { ctx }, wait, now) {
        Search::NoCycle => None,
        Search::GaveUp => {
            metrics::add(Metric::DeadlockSearchesGivenUp, 1);
            None
        }
        Search::Cycle(cycle) => {
            metrics::add(Metric::Deadlocks, 1);
            let line = state::with(|state| state.manager.deadlock(&wait, &cycle, now));
            line.into_iter().for_each(|line| ctx.warn(&line));
            Some(Refusal::Cycle(cycle.len()))
        }
    }
}

/// The server's locks, for the search.
struct Hands<'c> {
    ctx: &'c Ctx,
}

impl World for Hands<'_> {
    fn manager<T>(&mut self, see: impl FnOnce(&Manager) -> T) -> T {
        state::with(|state| see(&state.manager))
    }

    fn lock<T>(&mut self, id: &LockId, see: impl FnOnce(&Lock, &Memory) -> T) -> T {
        self.ctx.with_name(id.db, &id.key, |name| {
            let mut key = self.ctx.open(name, Access::Reads);
            let (free, unknown) = (Lock::default(), Memory::default());
            let held = key.lock(&free).unwrap_or(&free);
            state::with(|state| {
                let memory = state.manager.memory(id.db, &id.key).unwrap_or(&unknown);
                see(held, memory)
            })
        })
    }
}
