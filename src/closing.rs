//! Connections that lost their session: they are closed, and run no command until then.
//!
//! A connection that ends its own session's hold gets the reply before it is closed. So connections
//! are closed two loop iterations later, when none of their commands is running and the reply is
//! written. Until then a filter keeps them from running any further command.
//!
//! The filter is there while there are sessions: before a command runs it also checks that no
//! session has outlived its deadline. A process that was stopped runs what it finds in its sockets
//! before its timers.
//!
//! Redis 7.0 does not say whose command it is about to run. There a connection that certainly runs
//! none is closed at once, and the server closes one that may be running a command after that
//! command. Only a connection that ended its own session by something that runs several commands is
//! closed later; until then the filter recognises it by the size of its arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rlock_core::ClientId;
use rlock_core::grammar::Command;
use rlock_core::grammar::commands::COMMANDS;
use rlock_engine::timers::PORTION;
use rlock_engine::{During, events};

use crate::ffi::{self, Caller, Closing, Ctx, Exclusive};
use crate::state;

/// The filter is there.
static IS_WATCHING: AtomicBool = AtomicBool::new(false);
/// Closing is scheduled.
static IS_COMING: AtomicBool = AtomicBool::new(false);

/// How long to wait after a flush until its reply is written: a client that does not read is closed
/// all the same.
const REPLY: Duration = Duration::from_millis(20);

/// Of so many connections the server is asked for their lines at once: each takes microseconds.
const SEEN_MAX: usize = 64;

/// Since when the reply to their flush is under way.
static REPLYING: Exclusive<BTreeMap<ClientId, Instant>> = Exclusive::empty();
/// On Redis 7.0: connections to close later.
static LATER: Exclusive<BTreeSet<ClientId>> = Exclusive::empty();

struct Lost;

impl Closing for Lost {
    fn is_closing(caller: impl FnOnce() -> Caller) -> bool {
        events::command_is_read(&Ctx::detached());
        if !state::with(|state| state.manager.has_closing()) {
            return false;
        }
        if !ffi::knows_callers() && LATER.with(|later| later.is_empty()) {
            return false;
        }
        match caller() {
            Caller::Client(id) => state::with(|state| state.manager.is_closing(ClientId::from(id))),
            Caller::Unknown(bytes) => LATER.with(|later| later.clone()).into_iter().any(|client| {
                // The flushed locks may have been loaded again.
                if !state::with(|state| state.manager.is_closing(client)) {
                    return false;
                }
                let line = Ctx::detached().describe_client(client.get());
                line.is_some_and(|line| {
                    !is_blocked(&line) && field(&line, "argv-mem") == Some(&bytes.to_string())
                })
            }),
        }
    }
}

/// Watches commands while there are sessions. Call this after anything that may begin one.
pub fn watch() {
    /// How long the filter outlives the last session, in milliseconds.
    const LINGER_MS: u64 = 1000;
    // A command's handler may not end the filter.
    fn rest(_: &Ctx) {
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

/// Closes the connections that lost a session, if there are any. Call this after anything that may
/// have that effect.
pub fn settle(ctx: &Ctx, during: During) {
    if !state::with(|state| state.manager.has_closing()) {
        return;
    }
    if !ffi::knows_callers() {
        close_at_once(ctx, during);
        see_who_flushed();
    }
    close_waiting();
    watch();
    if state::with(|state| state.manager.has_to_close()) {
        close_soon();
    }
}

/// Closes those whose command waits in the server, past the filter: it would run when a key is
/// filled or a pause ends.
fn close_waiting() {
    /// So many are closed in one step, and more if that takes no longer than the time; the others
    /// follow in the next loop iterations.
    const IN_ONE_STEP: (usize, Duration) = (100, Duration::from_millis(10));
    let detached = Ctx::detached();
    let began_at = Instant::now();
    let is_few = state::with(|state| state.manager.lost_count()) <= SEEN_MAX;
    let mut closed: usize = 0;
    while closed < IN_ONE_STEP.0 || began_at.elapsed() < IN_ONE_STEP.1 {
        let Some(client) = state::with(|state| state.manager.next_lost()) else { return };
        // The flags cost less than the line, but say nothing of a pause.
        if !is_few && !detached.is_blocked(client.get()) {
            continue;
        }
        let line = detached.describe_client(client.get()).unwrap_or_default();
        if waits(&line) && !empties(&line) {
            detached.kill(client.get());
            state::with(|state| state.manager.closed(client));
            closed = closed.saturating_add(1);
        }
    }
}

fn close_soon() {
    fn turn(_: &Ctx) {
        // At 0 ms it could still fire in this iteration if the clock does not advance.
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
    while let Some(client) = state::with(|state| state.manager.next_to_close()) {
        let line = ctx.describe_client(client.get()).unwrap_or_default();
        if is_replying(client, &line) {
            later.push(client);
            continue;
        }
        ctx.kill(client.get());
        state::with(|state| state.manager.closed(client));
        if began_at.elapsed() > PORTION {
            break;
        }
    }
    // Some have closed on their own.
    let closing = state::with(|state| {
        let is_closing = |client: &ClientId| state.manager.is_closing(*client);
        LATER.with(|all| all.iter().copied().filter(is_closing).collect())
    });
    LATER.with(|later| *later = closing);
    REPLYING.with(|all| all.retain(|client, _| later.contains(client)));
    let is_patient = !later.is_empty() && !state::with(|state| state.manager.has_to_close());
    state::with(|state| state.manager.close_later(later));
    if state::with(|state| state.manager.has_to_close()) {
        IS_COMING.store(true, Relaxed);
        ffi::after(if is_patient { 1 } else { 0 }, close);
    }
}

/// Redis 7.0: closes the connections that may be closed now.
fn close_at_once(ctx: &Ctx, during: During) {
    let detached = Ctx::detached();
    let caller = match during {
        During::Command => ctx.client(),
        During::Callback | During::Reading | During::Sweep => None,
    };
    let is_callback = matches!(during, During::Callback);
    let is_reading = matches!(during, During::Reading);
    let is_sweep = matches!(during, During::Sweep);
    let mut later = Vec::new();
    while let Some(client) = state::with(|state| state.manager.next_to_close()) {
        let line = detached.describe_client(client.get()).unwrap_or_default();
        let is_caller = caller == Some(client.get());
        let is_later = LATER.with(|later| later.contains(&client));
        // It was granted in this loop iteration, or the server is asking for its reply: that must
        // reach it.
        let is_told = is_blocked(&line)
            && is_ours(&line)
            && (is_callback || !state::with(|state| state.manager.is_parked(client)));
        // Perhaps its command is the one that was read.
        let is_read = is_reading && !is_idle(&line);
        if is_later || is_read || is_told || runs_more(&line) || is_sweep && empties(&line) {
            later.push(client);
            continue;
        }
        if !is_caller && (caller.is_some() || is_sweep || is_idle(&line)) {
            detached.kill(client.get());
        } else {
            detached.close(client.get());
        }
        state::with(|state| state.manager.closed(client));
    }
    LATER.with(|all| all.extend(&later));
    state::with(|state| state.manager.close_later(later));
}

/// Redis 7.0: a connection that flushed its own session may have sent further commands before the
/// loss is known.
fn see_who_flushed() {
    let flushed = state::with(|state| {
        let flushed = state.manager.just_flushed();
        flushed.iter().take(SEEN_MAX).copied().collect::<Vec<_>>()
    });
    // Those that run nothing now, too: the server may read them after the flush in this iteration.
    LATER.with(|later| later.extend(flushed));
}

/// Whether its flush still runs in another thread, as on Redis 7.4 and later, or its reply is not
/// written yet.
fn is_replying(client: ClientId, line: &str) -> bool {
    let is_written = field(line, "obl") == Some("0") && field(line, "oll") == Some("0");
    if !empties(line) || is_written && !is_blocked(line) {
        return false;
    }
    REPLYING.with(|all| {
        if is_blocked(line) {
            all.remove(&client);
            return true;
        }
        all.entry(client).or_insert_with(Instant::now).elapsed() < REPLY
    })
}

/// Whether it runs no command now: it is blocked, or none of its arguments have arrived (`argv-mem`
/// is their size).
fn is_idle(line: &str) -> bool {
    field(line, "argv-mem") == Some("0") || is_blocked(line)
}

fn is_blocked(line: &str) -> bool {
    field(line, "flags").is_some_and(|flags| flags.contains('b'))
}

/// Whether its last command runs others.
fn runs_more(line: &str) -> bool {
    let command = field(line, "cmd").unwrap_or_default();
    ["exec", "eval", "evalsha", "fcall"].contains(&command)
}

/// Whether a command of it waits in the server: for a key, or since a pause. Our own that block are
/// not meant: they were granted nothing, or are about to get their reply, and see that they may not
/// run.
fn waits(line: &str) -> bool {
    let has_flag = |flag| field(line, "flags").is_some_and(|flags| flags.contains(flag));
    // Held back in a pause that is over, it keeps its arguments until it runs.
    let is_next = has_flag('u') && field(line, "argv-mem") != Some("0");
    (has_flag('b') || is_next) && !is_ours(line)
}

/// Whether its last command is one of ours that block.
fn is_ours(line: &str) -> bool {
    let command = field(line, "cmd").unwrap_or_default();
    let blocks = |ours: &Command| ours.flags.split(' ').any(|flag| flag == "blocking");
    COMMANDS.iter().any(|ours| blocks(ours) && ours.name.eq_ignore_ascii_case(command))
}

/// Whether its last command may have ended the session, with its reply still under way.
fn empties(line: &str) -> bool {
    let command = field(line, "cmd").unwrap_or_default();
    ["flushall", "flushdb", "swapdb"].contains(&command)
}

fn field<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    line.split_ascii_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}
