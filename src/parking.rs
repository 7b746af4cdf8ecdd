//! Parked connections: number -> server handle. Parked once, answered once, noticed when they
//! leave.

use std::collections::BTreeMap;

use rlock_core::waits_for::{self, Search, Seen, Stand, Steps, Waits};
use rlock_core::{
    Acquire, ClientId, Input, Lock, Memory, Now, Owner, Refusal, Reply, WaiterId, Wake,
};

use rlock_core::grammar::Access;

use crate::commands;
use crate::executor;
use crate::ffi::{self, Blocked, Ctx, Name, Waiting};
use crate::memories::{LockId, Mark};
use crate::metrics::{self, Metric};
use crate::{alarm, settings, state};

/// The server's own time-out comes so much later than ours, in milliseconds: a net, should ours
/// fail.
const NET_MS: u64 = 100;

/// A parked connection.
pub struct Parked {
    blocked: Option<Blocked>,
    client: Option<ClientId>,
    lock: LockId,
    owner: Owner,
    with_ttl: bool,
    /// What it will be told; `None` while it waits.
    reply: Option<Reply>,
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
    let max = settings::max_waiters();
    if state::with(|state| state.memories.totals().waiters) >= max {
        return Some(Reply::Refused(Refusal::TooManyWaiters { max }));
    }
    let lock = LockId { db: ctx.selected_db(), key: name.bytes().into() };
    // In a cluster a command is shown the keys of its own slot only: the search waits until it is
    // over.
    let who = Stand::Asking(ask.owner, ask.mode, ask.upgrade);
    if !ffi::is_cluster()
        && let Some(refusal) = deadlock(ctx, &lock, &Owner::from(ask.owner), who)
    {
        return Some(Reply::Refused(refusal));
    }
    let waiter = WaiterId::from(state::with(|state| {
        state.last_waiter = state.last_waiter.wrapping_add(1).max(1);
        state.last_waiter
    }));
    let net_ms = if block_ms == 0 { 0 } else { block_ms.saturating_add(NET_MS) };
    let Some(blocked) = ctx.block::<Park>(name, waiter.get(), net_ms) else {
        return Some(Reply::NotNow { wait_ms });
    };
    let parked = Parked {
        blocked: Some(blocked),
        client: ctx.client().map(ClientId::from),
        lock: lock.clone(),
        owner: Owner::from(ask.owner),
        with_ttl,
        reply: None,
    };
    state::with(|state| {
        state.memories.wait_begins(&lock, &parked.owner, waiter);
        if let Some(client) = parked.client {
            state.waits.insert(client, waiter);
        }
        state.parked.insert(waiter, parked);
    });
    let ends_at = match block_ms {
        0 => None,
        ms => Some(state::now().after_ms(ms)),
    };
    let reply = match executor::decide(ctx, name, Input::Park(ask, waiter, ends_at)) {
        Ok(Reply::MustWait { .. }) => {
            if ffi::is_cluster() && settings::detects_deadlocks() {
                search_soon(waiter);
            }
            return None;
        }
        Ok(reply) => reply,
        Err(_) => Reply::Refused(Refusal::WrongType),
    };
    // In between the lock became another one: the connection is parked already, and answered as
    // such.
    answer(Wake { waiter, reply, waited_us: 0 });
    None
}

/// Answers a parked connection: it has the lock, its time is over, or it is told why not.
pub fn answer(wake: Wake) {
    metrics::count_wake(&wake);
    let blocked = state::with(|state| {
        let parked = state.parked.get_mut(&wake.waiter)?;
        parked.reply = Some(wake.reply);
        state.memories.wait_ends(parked.lock.db, &parked.owner, wake.waiter);
        parked.blocked.take()
    });
    if let Some(blocked) = blocked {
        blocked.answer();
    }
}

/// A connection ended. Its sessions, its wait, and a grant that it did not hear of, end with it.
pub fn connection_ended(client: u64) {
    let client = ClientId::from(client);
    wait_ended(client);
    if state::with(|state| state.memories.disconnect(client)) {
        alarm::look_soon();
    }
}

/// A connection will not be there any more to be granted what it waits for.
pub fn wait_ended(client: ClientId) {
    if let Some(waiter) = state::with(|state| state.waits.get(&client).copied()) {
        left(waiter);
    }
}

/// A parked connection is not there to be granted, or to hear of its grant.
fn left(waiter: WaiterId) {
    state::with(|state| state.parked.get_mut(&waiter).map(|parked| parked.blocked = None));
    give_up_place(waiter);
}

fn give_up_place(waiter: WaiterId) {
    let matters = state::with(|state| {
        let parked = state.parked.get_mut(&waiter)?;
        let lock = parked.lock.clone();
        state.memories.wait_ends(lock.db, &parked.owner, waiter);
        let alarm = state.memories.alarm_of(&lock);
        let change = |memory: &mut Memory| (memory.leave(waiter), alarm);
        let matters = state.memories.change(lock.db, &lock.key, change);
        // Those behind may enter now, and a grant may have to be taken back.
        matters.then(|| state.memories.mark(lock, Mark::Left))
    });
    if matters.is_some() {
        alarm::look_soon();
    }
}

struct Park;

impl Waiting for Park {
    fn reply(ctx: &Ctx, waiter: u64) {
        let waiter = WaiterId::from(waiter);
        let told = state::with(|state| {
            let parked = state.parked.get_mut(&waiter)?;
            let reply = parked.reply.clone();
            Some((reply, parked.with_ttl, parked.lock.key.clone(), parked.owner.clone()))
        });
        match told {
            Some((Some(reply), with_ttl, key, owner)) => {
                commands::reply_to_acquire(ctx, &reply, with_ttl, &key, owner.as_bytes());
            }
            // CLIENT UNBLOCK, or the server's own time-out.
            Some((None, with_ttl, key, owner)) => {
                left(waiter);
                metrics::add(Metric::TimedOut, 1);
                let reply = Reply::NotNow { wait_ms: None };
                commands::reply_to_acquire(ctx, &reply, with_ttl, &key, owner.as_bytes());
            }
            None => ctx.reply_null(),
        }
    }

    fn gone(waiter: u64) {
        left(WaiterId::from(waiter));
    }

    fn over(waiter: u64, is_lost: bool) {
        let waiter = WaiterId::from(waiter);
        if is_lost {
            left(waiter);
        }
        state::with(|state| {
            let Some(parked) = state.parked.remove(&waiter) else { return };
            if let Some(client) = parked.client
                && state.waits.get(&client) == Some(&waiter)
            {
                state.waits.remove(&client);
            }
            state.memories.wait_ends(parked.lock.db, &parked.owner, waiter);
            state.memories.answered(&parked.lock, waiter);
        });
    }
}

/// Refuses this wait in the next turn of the server's loop, if it has closed a cycle.
fn search_soon(waiter: WaiterId) {
    fn search(ctx: &Ctx) {
        for waiter in state::with(|state| std::mem::take(&mut state.unsearched)) {
            let waits = state::with(|state| {
                let parked = state.parked.get(&waiter).filter(|parked| parked.blocked.is_some())?;
                Some((parked.lock.clone(), parked.owner.clone()))
            });
            if let Some((lock, owner)) = waits
                && let Some(refusal) = deadlock(ctx, &lock, &owner, Stand::Parked(waiter))
            {
                give_up_place(waiter);
                answer(Wake { waiter, reply: Reply::Refused(refusal), waited_us: 0 });
            }
        }
    }
    state::with(|state| state.unsearched.push(waiter));
    ffi::after(0, search);
}

/// The refusal of a wait that closes a cycle, or would.
fn deadlock(ctx: &Ctx, lock: &LockId, owner: &Owner, who: Stand<'_>) -> Option<Refusal> {
    if !settings::detects_deadlocks() {
        return None;
    }
    if matches!(who, Stand::Asking(..)) && nobody_waits_for(ctx, lock, owner) {
        return None;
    }
    let (seen, steps) = (BTreeMap::new(), &mut Steps::default());
    let mut waits = DbWaits { ctx, db: lock.db, now: state::now(), seen };
    let first = waits.at(lock, who, steps);
    match waits_for::search(&mut waits, owner, first, steps) {
        Search::NoCycle => None,
        Search::GaveUp => {
            metrics::add(Metric::DeadlockSearchesGivenUp, 1);
            None
        }
        Search::Cycle(owners) => {
            metrics::add(Metric::Deadlocks, 1);
            ctx.warn(&waits_for::log_line(&lock.key, &owners));
            Some(Refusal::Cycle(owners.len()))
        }
    }
}

/// So many locks are looked at before a search that may turn out to be needed all the same.
const LOCKS_MAX: usize = 64;

/// Nobody of this database waits for the owner, who is not parked yet: looked at where that is the
/// shorter way, in no more locks than connections are parked before it.
fn nobody_waits_for(ctx: &Ctx, at: &LockId, owner: &Owner) -> bool {
    let now = state::now();
    let crowded = state::with(|state| {
        let memory = state.memories.get(at.db, &at.key)?;
        state.memories.crowded(at.db, memory.queue.blocked_count().min(LOCKS_MAX))
    });
    crowded.is_some_and(|locks| {
        locks.iter().all(|lock| {
            with_lock(ctx, lock, |held, memory| {
                held.nobody_waits_for(memory, owner.as_bytes(), now)
            })
        })
    })
}

/// Looks at a lock and what is remembered of it.
fn with_lock<T>(ctx: &Ctx, at: &LockId, look: impl FnOnce(&Lock, &Memory) -> T) -> T {
    ctx.with_name(at.db, &at.key, |name| {
        let mut key = ctx.open(name, Access::Reads);
        let (free, unknown) = (Lock::default(), Memory::default());
        let held = key.lock(&free).unwrap_or(&free);
        state::with(|state| look(held, state.memories.get(at.db, &at.key).unwrap_or(&unknown)))
    })
}

/// The waits of one database.
struct DbWaits<'c> {
    ctx: &'c Ctx,
    db: libc::c_int,
    now: Now,
    seen: BTreeMap<LockId, Seen>,
}

impl DbWaits<'_> {
    fn at(&mut self, lock: &LockId, who: Stand<'_>, steps: &mut Steps) -> Vec<Owner> {
        let now = self.now;
        let seen = self.seen.entry(lock.clone()).or_default();
        let is_seen = state::with(|state| {
            let memory = state.memories.get(lock.db, &lock.key);
            memory.is_some_and(|memory| seen.covers(memory, who))
        });
        if is_seen {
            return Vec::new();
        }
        with_lock(self.ctx, lock, |held, memory| held.blockers(memory, who, now, seen, steps))
    }
}

impl Waits for DbWaits<'_> {
    type Wait = (WaiterId, LockId);

    fn of(&mut self, owner: &Owner) -> Vec<Self::Wait> {
        state::with(|state| state.memories.waits_of(self.db, owner))
    }

    fn blockers(&mut self, (waiter, lock): &Self::Wait, steps: &mut Steps) -> Vec<Owner> {
        self.at(lock, Stand::Parked(*waiter), steps)
    }
}
