//! Connections whose session is lost: closed, and silent until then.
//!
//! A connection may end its own session's hold, and is told the reply before it is closed. So
//! connections are closed two iterations of the server's loop later, when no command of theirs is
//! being carried out and its reply is written. Until then a filter keeps them from running any
//! further command.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rlock_core::ClientId;

use crate::ffi::{self, Closing, Ctx};
use crate::state;

/// Closing is on its way.
static IS_COMING: AtomicBool = AtomicBool::new(false);

/// Connections are closed so long in one callback.
const PORTION: Duration = Duration::from_millis(2);

struct Lost;

impl Closing for Lost {
    fn is_closing(client: u64) -> bool {
        state::with(|state| state.manager.is_closing(ClientId::from(client)))
    }
}

/// In what a session was lost.
#[derive(Clone, Copy)]
pub enum During<'c> {
    /// A command of ours.
    Command(&'c Ctx),
    /// A command, of which nothing else is known.
    Callback,
    /// No command.
    Sweep,
}

/// Has those connections closed that lost a session, if there are any. To be called after whatever
/// may have had that effect.
pub fn settle(during: During<'_>) {
    if !state::with(|state| state.manager.has_closing()) {
        // What was flushed was loaded again.
        if matches!(during, During::Sweep) {
            ffi::unsilence();
        }
        return;
    }
    if !ffi::silence::<Lost>() {
        close_at_once(during);
    }
    if state::with(|state| state.manager.has_to_close()) {
        close_soon();
    }
}

fn close_soon() {
    fn turn(_: &Ctx) {
        // At 0 ms it could still fire in this iteration, if the clock stands.
        ffi::after(1, close);
    }
    if !IS_COMING.swap(true, Relaxed) {
        ffi::after(0, turn);
    }
}

fn close(ctx: &Ctx) {
    IS_COMING.store(false, Relaxed);
    let began_at = Instant::now();
    while let Some(client) = state::with(|state| state.manager.next_to_close()) {
        ctx.kill(client.get());
        state::with(|state| state.manager.closed(client));
        if began_at.elapsed() > PORTION {
            break;
        }
    }
    if state::with(|state| state.manager.has_to_close()) {
        IS_COMING.store(true, Relaxed);
        ffi::after(0, close);
    } else if !state::with(|state| state.manager.has_closing()) {
        ffi::unsilence();
    }
}

/// Redis 7.0 does not say whose command it is about to run, so nobody can be silenced there. Who
/// certainly runs none now is closed at once; who may be running one is closed after it; and who
/// ended its own session by what runs more than one command, or is over already, later.
fn close_at_once(during: During<'_>) {
    let detached = Ctx::detached();
    let caller = match during {
        During::Command(ctx) => ctx.client(),
        During::Callback | During::Sweep => None,
    };
    let mut later = Vec::new();
    while let Some(client) = state::with(|state| state.manager.next_to_close()) {
        let line = detached.describe_client(client.get()).unwrap_or_default();
        let is_caller = caller == Some(client.get());
        if runs_more(&line) || matches!(during, During::Sweep) && empties(&line) {
            later.push(client);
            continue;
        }
        if !is_caller && (caller.is_some() || matches!(during, During::Sweep) || is_idle(&line)) {
            detached.kill(client.get());
        } else {
            detached.close(client.get());
        }
        state::with(|state| state.manager.closed(client));
    }
    state::with(|state| state.manager.close_later(later));
}

/// It runs no command now: it is blocked, or no word of a command has come from it. In the server's
/// words of it, `argv-mem` are the bytes of such words.
fn is_idle(line: &str) -> bool {
    field(line, "argv-mem") == Some("0") || field(line, "flags").is_some_and(|f| f.contains('b'))
}

/// Its last command runs others.
fn runs_more(line: &str) -> bool {
    let command = field(line, "cmd").unwrap_or_default();
    ["exec", "eval", "evalsha", "fcall"].contains(&command)
}

/// Its last command may have taken the session away, and its reply may be on its way.
fn empties(line: &str) -> bool {
    let command = field(line, "cmd").unwrap_or_default();
    ["flushall", "flushdb", "swapdb"].contains(&command)
}

fn field<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    line.split_ascii_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}
