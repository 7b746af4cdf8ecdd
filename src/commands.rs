//! One handler per command.

use rlock_core::grammar::{Command, commands};
use rlock_engine::commands as engine;
use rlock_engine::reply::Replies;

use crate::ffi::{Argv, Ctx, Handler};
use crate::invocation::{Invocation, Serve, serve_several};
use crate::show::{ShowInfo, ShowPlace, ShowQueues, ShowSlowLog};

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
    ctx.register_command::<AcquireSeveral>(&commands::MACQUIRE)?;
    ctx.register_command::<ReleaseSeveral>(&commands::MRELEASE)?;
    ctx.register_command::<RenewSeveral>(&commands::MRENEW)?;
    add::<Cancel>(ctx)?;
    add::<ForceLock>(ctx)?;
    add::<TakeLock>(ctx)?;
    add::<Holds>(ctx)?;
    add::<Check>(ctx)?;
    add::<AwaitHolder>(ctx)?;
    add::<ShowInfo>(ctx)?;
    add::<ShowPlace>(ctx)?;
    add::<ShowQueues>(ctx)?;
    add::<ShowSlowLog>(ctx)?;
    add::<Help>(ctx)?;
    ctx.register_command::<Apply>(&commands::APPLY)
}

/// A command that the engine serves.
macro_rules! by_engine {
    ($handler:ident, $command:ident, $serve:ident) => {
        struct $handler;

        impl Serve for $handler {
            const COMMAND: &'static Command = &commands::$command;

            fn serve(call: &Invocation<'_>) -> Result<(), String> {
                engine::$serve(call.ctx, call.key()?, call.args)
            }
        }
    };
}

by_engine!(AcquireLock, ACQUIRE, acquire);
by_engine!(ReleaseLock, RELEASE, release);
by_engine!(RenewLock, RENEW, renew);
by_engine!(Cancel, CANCEL, cancel);
by_engine!(ForceLock, FORCE, force);
by_engine!(TakeLock, TAKE, take);
by_engine!(Holds, HOLDS, holds);
by_engine!(Check, CHECK, check);
by_engine!(AwaitHolder, AWAIT, await_holder);

/// Like `by_engine!`, for several keys.
macro_rules! several_by_engine {
    ($handler:ident, $command:ident, $serve:ident) => {
        struct $handler;

        impl Handler for $handler {
            fn run(ctx: &Ctx, words: &Argv<'_>) {
                serve_several(ctx, words, &commands::$command, engine::$serve::<Ctx>);
            }
        }
    };
}

several_by_engine!(AcquireSeveral, MACQUIRE, macquire);
several_by_engine!(ReleaseSeveral, MRELEASE, mrelease);
several_by_engine!(RenewSeveral, MRENEW, mrenew);
several_by_engine!(Apply, APPLY, apply);

struct Help;

impl Serve for Help {
    const COMMAND: &'static Command = &commands::HELP;

    fn serve(call: &Invocation<'_>) -> Result<(), String> {
        call.ctx.reply_array(commands::COMMANDS.len().saturating_mul(2));
        for command in commands::COMMANDS {
            call.ctx.reply_bytes(command.usage().as_bytes());
            call.ctx.reply_bytes(format!("    {}", command.summary).as_bytes());
        }
        Ok(())
    }
}
