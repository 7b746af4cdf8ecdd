//! One handler per command: words -> request -> executor -> reply.

use rlock_core::grammar::{Command, commands};
use rlock_core::{Acquire, ClientId, Input, Mode, Patience, Refusal, Reply, Token, snapshot};

use crate::call::{Call, Serve, line};
use crate::executor;
use crate::ffi::Ctx;
use crate::metrics::{self, Metric};
use crate::parking::{self, Asks};
use crate::show::{Describe, Place, Queues, SlowLog};
use crate::{acks, reply, state};

/// Registers every command.
///
/// # Errors
/// The server refuses one.
pub fn register(ctx: &Ctx) -> Result<(), String> {
    fn add<S: Serve>(ctx: &Ctx) -> Result<(), String> {
        ctx.register_command::<S>(S::COMMAND)
    }
    add::<AcquireLock>(ctx)?;
    add::<ReleaseLock>(ctx)?;
    add::<RenewLock>(ctx)?;
    add::<Cancel>(ctx)?;
    add::<ForceLock>(ctx)?;
    add::<Holds>(ctx)?;
    add::<Check>(ctx)?;
    add::<Describe>(ctx)?;
    add::<Place>(ctx)?;
    add::<Queues>(ctx)?;
    add::<SlowLog>(ctx)?;
    add::<Help>(ctx)?;
    add::<Apply>(ctx)
}

struct AcquireLock;

impl Serve for AcquireLock {
    const COMMAND: &'static Command = &commands::ACQUIRE;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        let (ctx, said) = (call.ctx, &call.said);
        if is_closing(ctx) {
            return Err(Refusal::Closing.line(said.key, said.owner));
        }
        let session = match said.session {
            true if !ctx.can_close() => {
                return Err(Refusal::CannotClose.line(said.key, said.owner));
            }
            true => Some(ClientId::from(ctx.client().ok_or(NO_SESSION)?)),
            false => None,
        };
        let ask = said.acquire(session);
        acks::may_confirm(ctx, ask.acks).map_err(|why| why.line(said.key, said.owner))?;
        let key = call.key()?;
        let mut reply = executor::decide(ctx, key, Input::Acquire(ask)).map_err(line)?;
        if let (Reply::MustWait { .. } | Reply::Refused(Refusal::SecondUpgrade), Some(block_ms)) =
            (&reply, said.block_ms)
        {
            if ctx.denies_blocking() {
                let ask = Acquire { patience: Patience::None, ..ask };
                reply = executor::decide(ctx, key, Input::Acquire(ask)).map_err(line)?;
            } else if let Reply::MustWait { wait_ms } = reply {
                match parking::park(ctx, key, ask, block_ms, said.with_ttl, wait_ms) {
                    Some(instead) => reply = instead,
                    None => return Ok(()),
                }
            }
        }
        if reply == Reply::MustConfirm {
            match parking::park_to_confirm(ctx, key, Asks::Acquire(ask), said) {
                Some(instead) => reply = instead,
                None => return Ok(()),
            }
        }
        if matches!(reply, Reply::NotNow { .. }) {
            metrics::add(Metric::Refused, 1);
        }
        reply::to_acquire(ctx, &reply, said.with_ttl, said.key, said.owner);
        Ok(())
    }
}

/// Whether the caller's connection lost a session and is running the rest of its last command.
fn is_closing(ctx: &Ctx) -> bool {
    state::with(|state| state.manager.has_closing())
        && ctx.client().is_some_and(|client| {
            state::with(|state| state.manager.is_closing(ClientId::from(client)))
        })
}

const NO_SESSION: &str = "ERR SESSION needs a connection of its own: not in a script, a function \
                          or another module's call";

struct ReleaseLock;

impl Serve for ReleaseLock {
    const COMMAND: &'static Command = &commands::RELEASE;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        let ask = call.said.release();
        if executor::is_decided_here(call.ctx) {
            return call.decide_count(Input::Release(ask));
        }
        executor::replay_release(call.ctx, call.key()?, &ask).map_err(line)?;
        call.ctx.reply_ok();
        Ok(())
    }
}

struct RenewLock;

impl Serve for RenewLock {
    const COMMAND: &'static Command = &commands::RENEW;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        let (ctx, said) = (call.ctx, &call.said);
        if is_closing(ctx) {
            return Err(Refusal::Closing.line(said.key, said.owner));
        }
        let ask = said.renew();
        acks::may_confirm(ctx, ask.acks).map_err(|why| why.line(said.key, said.owner))?;
        let mut reply = call.decide(Input::Renew(ask))?;
        if reply == Reply::MustConfirm {
            match parking::park_to_confirm(ctx, call.key()?, Asks::Renew(ask), said) {
                Some(instead) => reply = instead,
                None => return Ok(()),
            }
        }
        if let Reply::Count(_) = reply {
            metrics::add(Metric::Renewed, 1);
        }
        reply::to_acquire(ctx, &reply, false, said.key, said.owner);
        Ok(())
    }
}

struct Cancel;

impl Serve for Cancel {
    const COMMAND: &'static Command = &commands::CANCEL;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        call.decide_count(Input::Cancel(call.said.owner))
    }
}

struct ForceLock;

impl Serve for ForceLock {
    const COMMAND: &'static Command = &commands::FORCE;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        call.decide_count(Input::Force(call.said.mode))
    }
}

struct Holds;

impl Serve for Holds {
    const COMMAND: &'static Command = &commands::HOLDS;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        let (said, now) = (&call.said, state::now());
        let depth = call.look(|lock| {
            [Mode::Write, Mode::Read]
                .into_iter()
                .filter(|mode| said.mode.is_none_or(|only| only == *mode))
                .filter_map(|mode| lock.hold_at(said.owner, mode, now))
                .filter(|hold| !is_pending(call, hold.token))
                .fold(0, |sum: u64, hold| sum.saturating_add(hold.depth.into()))
        })?;
        call.reply_count(depth);
        Ok(())
    }
}

/// Whether this hold is pending: nobody has been told of it, and it may be taken back.
fn is_pending(call: &Call<'_>, token: Token) -> bool {
    let (db, key) = (call.ctx.selected_db(), call.said.key);
    state::with(|state| state.manager.is_pending(db, key, token))
}

struct Check;

impl Serve for Check {
    const COMMAND: &'static Command = &commands::CHECK;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        let (said, now) = (&call.said, state::now());
        let mode = said.mode.unwrap_or(Mode::Write);
        let is_held =
            call.look(|lock| said.token.is_some_and(|token| lock.has_token_at(token, mode, now)))?;
        let is_pending = said.token.is_some_and(|token| is_pending(call, token));
        call.reply_count((is_held && !is_pending).into());
        Ok(())
    }
}

struct Help;

impl Serve for Help {
    const COMMAND: &'static Command = &commands::HELP;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        call.ctx.reply_array(commands::COMMANDS.len().saturating_mul(2));
        for command in commands::COMMANDS {
            call.ctx.reply_bytes(command.usage().as_bytes());
            call.ctx.reply_bytes(format!("    {}", command.summary).as_bytes());
        }
        Ok(())
    }
}

struct Apply;

impl Serve for Apply {
    const COMMAND: &'static Command = &commands::APPLY;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        // The module's own probe of whether the server would accept a write.
        if call.said.payload.is_empty() {
            call.ctx.reply_ok();
            return Ok(());
        }
        let effect = snapshot::load_effect(call.said.payload)
            .map_err(|why| format!("ERR malformed payload: {why}"))?;
        executor::replay(call.ctx, call.key()?, &effect).map_err(line)?;
        call.ctx.reply_ok();
        Ok(())
    }
}
