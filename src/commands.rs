//! One handler per command: words -> request -> executor -> reply.

use rlock_core::grammar::{self, Access, Command, commands};
use rlock_core::{
    Acquire, ClientId, Input, Levels, Lock, Mode, Patience, Refusal, Release, Renew, Reply,
    snapshot,
};

use crate::executor::{self, Fault};
use crate::ffi::{Arguments, Ctx, Handler, Name};
use crate::metrics::{self, Metric};
use crate::show::{Describe, Queues};
use crate::{parking, reply, settings, state};

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
    add::<Queues>(ctx)?;
    add::<Help>(ctx)?;
    add::<Apply>(ctx)
}

/// Carries out one command whose words were read. `Err` is the error line that it replies with.
pub trait Serve: 'static {
    /// The command, as the core's table has it.
    const COMMAND: &'static Command;
    /// Must reply exactly once, or return an error line.
    fn serve(call: &Call<'_>) -> Result<(), String>;
}

/// A command whose words were read.
pub struct Call<'a> {
    /// Where to reply to.
    pub ctx: &'a Ctx,
    /// There is one, but for a command without a key.
    pub name: Option<Name<'a>>,
    /// The words.
    pub said: grammar::Arguments<'a>,
}

impl<S: Serve> Handler for S {
    fn run(ctx: &Ctx, arguments: &Arguments<'_>) {
        let name = arguments.name();
        let done = match S::COMMAND.read(arguments.words(), &settings::limits()) {
            Ok(said) => S::serve(&Call { ctx, name, said }),
            Err(bad) => Err(bad.line().into()),
        };
        if let Err(line) = done {
            ctx.reply_error(&line);
        }
    }
}

impl<'a> Call<'a> {
    fn key(&self) -> Result<&Name<'a>, String> {
        self.name.as_ref().ok_or_else(|| "ERR the command needs a key".into())
    }

    /// Lets the core decide; a refusal becomes its error line.
    fn decide(&self, input: Input<'a>) -> Result<Reply, String> {
        match executor::decide(self.ctx, self.key()?, input).map_err(line)? {
            Reply::Refused(refusal) => Err(refusal.line(self.said.key, self.said.owner)),
            reply => Ok(reply),
        }
    }

    /// Replies with the count that the core decided.
    fn decide_count(&self, input: Input<'a>) -> Result<(), String> {
        if let Reply::Count(count) = self.decide(input)? {
            self.reply_count(count);
        }
        Ok(())
    }

    /// Replies with a number.
    pub fn reply_count(&self, count: u64) {
        self.ctx.reply_integer(count.cast_signed());
    }

    /// Looks at the lock; at a free one where there is none.
    pub fn look<T>(&self, at: impl FnOnce(&Lock) -> T) -> Result<T, String> {
        let mut key = self.ctx.open(self.key()?, Access::Reads);
        key.lock(&Lock::default()).map(at).ok_or_else(|| line(Fault::WrongType))
    }
}

fn line(fault: Fault) -> String {
    match fault {
        Fault::Implausible => {
            "ERR malformed payload: its token is more than a minute ahead of the clock"
        }
        Fault::ReadOnly => "READONLY You can't write against a read only replica.",
        Fault::WrongType => return Refusal::WrongType.line(&[], &[]),
    }
    .into()
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
            true => Some(ClientId::from(ctx.client().ok_or(NO_SESSION)?)),
            false => None,
        };
        let patience = match (said.block_ms, said.queue) {
            (Some(_), _) => Patience::Block,
            (None, Some(window)) => Patience::Ticket(window),
            (None, None) => Patience::None,
        };
        let ask = Acquire {
            owner: said.owner,
            mode: said.mode.unwrap_or(Mode::Write),
            lease: said.lease,
            upgrade: said.upgrade,
            depth: said.depth,
            session,
            patience,
        };
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
        if matches!(reply, Reply::NotNow { .. }) {
            metrics::add(Metric::Refused, 1);
        }
        reply::to_acquire(ctx, &reply, said.with_ttl, said.key, said.owner);
        Ok(())
    }
}

/// The caller's connection lost a session, and this is the rest of its last command.
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
        let said = &call.said;
        let levels = match said.depth {
            Some(depth) => Levels::DownTo(depth),
            None if said.all => Levels::All,
            None => Levels::One,
        };
        let (owner, mode, token) = (said.owner, said.mode, said.token);
        let ask = Release { owner, mode, token, levels };
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
        let said = &call.said;
        let (owner, mode, token, lease) = (said.owner, said.mode, said.token, said.lease);
        call.decide_count(Input::Renew(Renew { owner, mode, token, lease }))?;
        metrics::add(Metric::Renewed, 1);
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
                .fold(0, |sum: u64, hold| sum.saturating_add(hold.depth.into()))
        })?;
        call.reply_count(depth);
        Ok(())
    }
}

struct Check;

impl Serve for Check {
    const COMMAND: &'static Command = &commands::CHECK;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        let (said, now) = (&call.said, state::now());
        let mode = said.mode.unwrap_or(Mode::Write);
        let is_held =
            call.look(|lock| said.token.is_some_and(|token| lock.has_token_at(token, mode, now)))?;
        call.reply_count(is_held.into());
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
        // The module asks the server so whether it would let a write through.
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
