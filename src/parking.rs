//! Connections that are blocked: the server parks them for us, asks for their reply, and says when
//! they leave.

use std::cell::RefCell;
use std::rc::Rc;

use rlock_core::grammar::Access;
use rlock_core::manager::{LockId, Manager, Parked, Wait, World, search};
use rlock_core::waits_for::{Search, Stand};
use rlock_core::{
    Acquire, ClientId, Input, Lock, Memory, Owner, Parking, Refusal, Reply, WaiterId, Wake,
};

use crate::ffi::{self, Ctx, Name, Waiting};
use crate::metrics::{self, Metric};
use crate::{answers, executor, reply, settings, state, timers};

/// The server's own time-out comes so much later than ours, in milliseconds: a net, should ours
/// fail.
const NET_MS: u64 = 100;

thread_local! {
    /// Blocked connections that may have closed a cycle of waits, which nobody has looked for yet.
    static UNSEARCHED: RefCell<Vec<WaiterId>> = const { RefCell::new(Vec::new()) };
}

/// Parks the caller, whom [`Reply::MustWait`] was told. What it is told at once instead, if it
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
    // In a cluster a command is shown the keys of its own slot only: the search waits until it is
    // over.
    if !ffi::is_cluster()
        && let Some(refusal) = deadlock(ctx, wait)
    {
        return Some(Reply::Refused(refusal));
    }
    let waiter = state::with(|state| state.manager.next_waiter());
    let net_ms = if block_ms == 0 { 0 } else { block_ms.saturating_add(NET_MS) };
    let Some(blocked) = ctx.block::<Park>(name, waiter.get(), net_ms) else {
        return Some(Reply::NotNow { wait_ms });
    };
    let client = ctx.client().map(ClientId::from);
    let parked = Parked::new(client, lock, owner, user, with_ttl);
    state::with(|state| {
        state.manager.park_begins(waiter, parked);
        state.blocked.insert(waiter, blocked);
    });
    let ends_at = match block_ms {
        0 => None,
        ms => Some(state::now().after_ms(ms)),
    };
    let parking = Parking { waiter, client, ends_at };
    let reply = match executor::decide(ctx, name, Input::Park(ask, parking)) {
        Ok(Reply::MustWait { .. }) => {
            if ffi::is_cluster() && settings::detects_deadlocks() {
                search_soon(waiter);
            }
            return None;
        }
        Ok(reply) => reply,
        Err(_) => Reply::Refused(Refusal::WrongType),
    };
    // In between the lock became another one.
    answers::tell_later(&Wake { waiter, reply, waited_us: 0 });
    None
}

/// A connection ended. Its sessions, its wait, and a grant that it did not hear of, end with it.
pub fn connection_ended(client: u64) {
    state::with(|state| state.manager.connection_ended(ClientId::from(client)));
    timers::settle();
}

struct Park;

impl Waiting for Park {
    fn reply(ctx: &Ctx, waiter: u64) {
        let waiter = WaiterId::from(waiter);
        let parked = state::with(|state| state.manager.parked(waiter).cloned());
        let Some(parked) = parked else { return ctx.reply_null() };
        // Without a reply of ours: CLIENT UNBLOCK, or the server's own time-out.
        let told = parked.reply.clone().unwrap_or_else(|| {
            let now = state::now();
            let see = |lock: &Lock, memory: &Memory| lock.known_wait_of(memory, waiter, now);
            let wait_ms = Hands { ctx }.lock(&parked.lock, see);
            left(waiter);
            metrics::add(Metric::TimedOut, 1);
            Reply::NotNow { wait_ms }
        });
        let (key, owner) = (&parked.lock.key, parked.owner.as_bytes());
        reply::to_acquire(ctx, &told, parked.with_ttl, key, owner);
    }

    fn gone(waiter: u64) {
        left(WaiterId::from(waiter));
    }

    fn over(waiter: u64, is_lost: bool) {
        let waiter = WaiterId::from(waiter);
        state::with(|state| {
            state.blocked.remove(&waiter);
            state.manager.unparked(waiter, is_lost);
        });
        timers::settle();
    }
}

/// A blocked connection is not there to be granted, or to hear of its grant.
fn left(waiter: WaiterId) {
    state::with(|state| {
        state.blocked.remove(&waiter);
        state.manager.left(waiter);
    });
    timers::settle();
}

/// Refuses this wait in the next iteration of the server's loop, if it has closed a cycle.
fn search_soon(waiter: WaiterId) {
    fn search(ctx: &Ctx) {
        for waiter in UNSEARCHED.take() {
            let parked = state::with(|state| state.manager.parked(waiter).cloned());
            let Some(parked) = parked.filter(|parked| parked.reply.is_none() && !parked.is_gone)
            else {
                continue;
            };
            let (lock, owner, user) = (&parked.lock, &parked.owner, &*parked.user);
            let wait = Wait { lock, owner, user, stand: Stand::Parked(waiter) };
            if let Some(refusal) = deadlock(ctx, wait) {
                state::with(|state| state.manager.refuse(waiter));
                let reply = Reply::Refused(refusal);
                answers::tell(ctx, vec![Wake { waiter, reply, waited_us: 0 }]);
            }
        }
        timers::settle();
    }
    UNSEARCHED.with_borrow_mut(|unsearched| unsearched.push(waiter));
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
            let line = state::with(|state| state.manager.deadlock_line(&cycle, now));
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
