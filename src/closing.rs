//! Connections that lost their session: they are closed, and run no command until then.
//!
//! A connection that ends its own session's hold gets the reply before it is closed. So connections
//! are closed two loop iterations later, when they execute no command and their reply is written.
//! Until then, a filter keeps them from executing any further command.
//!
//! The filter is registered while there are sessions: before a command runs it also checks that no
//! session has outlived its deadline. When a stopped process resumes, it reads its sockets before
//! its timers fire.
//!
//! Redis 7.0 does not report whose command it is about to execute. There, a connection that
//! certainly executes none is closed at once, and one that may execute a command is closed by the
//! server after that command. Only a connection that ended its own session inside a transaction or
//! a script is closed later; until then, the filter recognizes it by the size of its arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rlock_core::ClientId;
use rlock_engine::timers::PORTION;
use rlock_engine::{Caller as _, During, Keys, events};

use crate::connection::Line;
use crate::ffi::{self, Caller, Closing, Ctx, Exclusive};
use crate::state;

/// Whether the filter is registered.
static IS_WATCHING: AtomicBool = AtomicBool::new(false);
/// Whether closing is scheduled.
static IS_COMING: AtomicBool = AtomicBool::new(false);

/// How long to wait after a flush until its reply is written: a client that does not read its reply
/// is closed all the same.
const REPLY: Duration = Duration::from_millis(20);

/// How many connections' `CLIENT LIST` lines are requested at once: each takes microseconds.
const SEEN_MAX: usize = 64;

/// The last connection whose command the server has begun, if the server reports that; 0 if there
/// is none.
static CALLER: AtomicU64 = AtomicU64::new(0);
/// Not 0 while a pause may hold back commands: from the first command that is read in the pause
/// until a second or two after its end.
static HELD_BACK: AtomicU8 = AtomicU8::new(0);

/// Since when the reply to their flush is being sent; `None` while the flush may still run.
static REPLYING: Exclusive<BTreeMap<ClientId, Option<Instant>>> = Exclusive::empty();
/// How long it took to ask the server whom it serves, since it last read a command, in
/// microseconds.
static ASKED_US: AtomicU64 = AtomicU64::new(0);
/// On Redis 7.0: connections to close later.
static LATER: Exclusive<BTreeSet<ClientId>> = Exclusive::empty();

struct Lost;

impl Closing for Lost {
    fn is_closing(caller: impl Fn() -> Caller) -> bool {
        ASKED_US.store(0, Relaxed);
        see_pause();
        if ffi::knows_callers()
            && let Caller::Client(id) = caller()
            // A command of a script or of another module runs within that of a connection.
            && (id == CALLER.load(Relaxed) || ffi::is_connection(id))
        {
            CALLER.store(id, Relaxed);
        }
        events::command_is_read(&Ctx::detached());
        if state::with(|state| state.manager.closing.is_empty()) {
            return false;
        }
        if !ffi::knows_callers() && LATER.with(|later| later.is_empty()) {
            return false;
        }
        match caller() {
            Caller::Client(id) => is_closing(ClientId::from(id)),
            Caller::Unknown(bytes) => LATER.with(|later| later.clone()).into_iter().any(|client| {
                // The flushed locks may have been loaded again.
                if !is_closing(client) {
                    return false;
                }
                let line = Line::of(client);
                !line.is_blocked() && line.has_arguments_of(bytes)
            }),
        }
    }
}

fn is_closing(client: ClientId) -> bool {
    state::with(|state| state.manager.closing.contains(client))
}

/// Watches commands while there are sessions. Call this after anything that may begin one.
pub fn watch() {
    /// How long the filter outlives the last session, in milliseconds.
    const LINGER_MS: u64 = 1000;
    // A command's handler must not remove the filter.
    fn rest(_: &Ctx) {
        HELD_BACK.store(HELD_BACK.load(Relaxed).saturating_sub(1), Relaxed);
        see_pause();
        if state::with(|state| state.manager.watches_commands()) {
            ffi::after(LINGER_MS, rest);
        } else {
            IS_WATCHING.store(false, Relaxed);
            ffi::unsilence();
        }
    }
    if !IS_WATCHING.swap(true, Relaxed) {
        ffi::silence::<Lost>();
        ffi::after(LINGER_MS, rest);
    }
}

fn see_pause() {
    static IS_FORGETTING: AtomicBool = AtomicBool::new(false);
    // A command that is held back runs later, past the filter, when it may no longer be the last
    // one.
    fn forget(_: &Ctx) {
        IS_FORGETTING.store(false, Relaxed);
        CALLER.store(0, Relaxed);
    }
    if Ctx::detached().is_paused() {
        HELD_BACK.store(2, Relaxed);
        if !IS_FORGETTING.swap(true, Relaxed) {
            ffi::after(1, forget);
        }
    }
}

/// Closes the connections that lost a session, if there are any. Call this after anything that may
/// have that effect.
pub fn settle(ctx: &Ctx, during: During) {
    if state::with(|state| state.manager.closing.is_empty()) {
        return;
    }
    if !ffi::knows_callers() {
        close_at_once(ctx, during);
        see_who_flushed();
    }
    see_who_replies(during);
    close_waiting(during);
    watch();
    if state::with(|state| state.manager.closing.has_to_close()) {
        close_soon();
    }
}

/// Closes the connections whose last command still waits in the server. The command has passed the
/// filter already, so it would run as soon as a key is filled or a pause ends.
fn close_waiting(during: During) {
    /// This many connections are closed in one step, or more if the time allows; the others follow
    /// in the next loop iterations.
    const IN_ONE_STEP: (usize, Duration) = (100, Duration::from_millis(10));
    let detached = Ctx::detached();
    let began_at = Instant::now();
    let is_few = state::with(|state| state.manager.closing.lost_count()) <= SEEN_MAX;
    let sees_all = is_few || HELD_BACK.load(Relaxed) > 0;
    let mut closed: usize = 0;
    while closed < IN_ONE_STEP.0 || began_at.elapsed() < IN_ONE_STEP.1 {
        let Some(client) = state::with(|state| state.manager.closing.next_lost()) else { return };
        // The flags cost less than the line, but do not show a pause.
        if !sees_all && !detached.is_blocked(client.get()) {
            continue;
        }
        let line = Line::of(client);
        let may_go = || !is_replying(client, &line) && !may_be_next(client, during);
        if line.waits() && may_go() && !is_running(client, during) {
            detached.kill(client.get());
            state::with(|state| state.manager.closing.closed(client));
            closed = closed.saturating_add(1);
        }
    }
}

/// Whether the server may be serving the connections that are blocked at a key, and has not reached
/// this one yet. Closing it now would make the server use freed memory, so it is closed in the next
/// loop iteration.
fn may_be_next(client: ClientId, during: During) -> bool {
    /// Each connection's line takes microseconds. If one command ends many sessions on a server
    /// with many connections, the remaining connections are closed in the next loop iteration.
    const LONG_US: u64 = 10_000;
    if during != During::Removal {
        return false;
    }
    let asked_us = ASKED_US.load(Relaxed);
    if asked_us > LONG_US {
        return true;
    }
    let began_at = Instant::now();
    let lines = Ctx::detached().describe_clients().unwrap_or_default();
    let runs_again = ffi::knows_callers();
    // The caller's command runs for the first time, so the server is not serving blocked
    // connections yet.
    let is_other = |id: ClientId| id != client && id.get() != CALLER.load(Relaxed);
    let is_served = |line: Line| line.may_be_served(runs_again) && line.id().is_some_and(is_other);
    let serves = Line::each(&lines).any(is_served);
    let took_us = u64::try_from(began_at.elapsed().as_micros()).unwrap_or(u64::MAX);
    ASKED_US.store(asked_us.saturating_add(took_us), Relaxed);
    serves
}

/// Whether a connection that lost its session is executing a command, or is being served.
fn is_running(client: ClientId, during: During) -> bool {
    if ffi::knows_callers() {
        return during != During::Sweep && client.get() == CALLER.load(Relaxed);
    }
    // Redis 7.0 closes any other connection as soon as it can, and marks it until then.
    Ctx::detached().close(client.get());
    !Line::of(client).is_ending()
}

fn close_soon() {
    fn turn(_: &Ctx) {
        // With 0 ms, it could fire in this same iteration if the clock does not advance.
        ffi::after(1, close);
    }
    if !IS_COMING.swap(true, Relaxed) {
        ffi::after(0, turn);
    }
}

fn close(ctx: &Ctx) {
    IS_COMING.store(false, Relaxed);
    let began_at = Instant::now();
    let mut later = Vec::new();
    while let Some(client) = state::with(|state| state.manager.closing.next_to_close()) {
        if is_replying(client, &Line::of(client)) {
            later.push(client);
            continue;
        }
        ctx.kill(client.get());
        state::with(|state| state.manager.closing.closed(client));
        if began_at.elapsed() > PORTION {
            break;
        }
    }
    // Some have closed by themselves.
    LATER.with(|all| all.retain(|client| is_closing(*client)));
    REPLYING.with(|all| all.retain(|client, _| is_closing(*client)));
    let is_patient =
        !later.is_empty() && !state::with(|state| state.manager.closing.has_to_close());
    state::with(|state| state.manager.closing.close_later(later));
    if state::with(|state| state.manager.closing.has_to_close()) {
        IS_COMING.store(true, Relaxed);
        ffi::after(if is_patient { 1 } else { 0 }, close);
    }
}

/// Redis 7.0: closes the connections that may be closed now.
fn close_at_once(ctx: &Ctx, during: During) {
    let detached = Ctx::detached();
    let caller = if during == During::Command { ctx.client() } else { None };
    let (is_removal, is_sweep) = (during == During::Removal, during == During::Sweep);
    let is_callback = is_removal || during == During::Callback;
    let mut later = Vec::new();
    while let Some(client) = state::with(|state| state.manager.closing.next_to_close()) {
        let line = Line::of(client);
        let is_caller = caller == Some(client);
        let is_later = LATER.with(|later| later.contains(&client));
        // The reply must reach a connection that was granted in this loop iteration, or whose reply
        // the server is asking for.
        let is_told = line.is_blocked()
            && line.is_ours()
            && (is_callback || !state::with(|state| state.manager.is_parked(client)));
        let is_in_line = is_removal && line.is_blocked() && !line.is_ours();
        let is_next = is_in_line && (may_be_next(client, during) || is_running(client, during));
        // Its command may be the one that was read.
        let is_read = during == During::Reading && !line.is_idle();
        let replies = is_told || line.runs_more() || is_sweep && line.empties();
        if is_later || is_read || is_next || replies {
            later.push(client);
            continue;
        }
        let is_idle = !is_caller && (caller.is_some() || is_sweep || line.is_idle());
        if is_idle || line.waits() && !is_running(client, during) {
            detached.kill(client.get());
        } else {
            detached.close(client.get());
        }
        state::with(|state| state.manager.closing.closed(client));
    }
    LATER.with(|all| all.extend(&later));
    state::with(|state| state.manager.closing.close_later(later));
}

/// Redis 7.0: a connection that flushed its own session may have sent further commands before the
/// loss is known.
fn see_who_flushed() {
    let flushed = state::with(|state| {
        let flushed = state.manager.closing.just_flushed();
        flushed.iter().take(SEEN_MAX).copied().collect::<Vec<_>>()
    });
    // This includes idle connections: the server may read their next commands in this iteration,
    // after the flush.
    LATER.with(|later| later.extend(flushed));
}

/// A connection that lost its session by its own flush gets the reply before it is closed.
fn see_who_replies(during: During) {
    let caller = ClientId::from(CALLER.load(Relaxed));
    if during == During::Callback && is_closing(caller) {
        REPLYING.with(|all| all.insert(caller, None));
    }
}

/// Whether its flush is still running in another thread, as on Redis 7.4 and later, or its reply is
/// not written yet.
fn is_replying(client: ClientId, line: &Line) -> bool {
    let has_flushed = match ffi::knows_callers() {
        true => REPLYING.with(|all| all.contains_key(&client)),
        false => line.empties() && !line.is_blocked(),
    };
    if !has_flushed || line.is_written() && !line.is_blocked() {
        return false;
    }
    REPLYING.with(|all| {
        let since = all.entry(client).or_default();
        if line.is_blocked() {
            *since = None;
            return true;
        }
        since.get_or_insert_with(Instant::now).elapsed() < REPLY
    })
}
