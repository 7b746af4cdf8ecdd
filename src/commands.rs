//! One handler per command: words -> request -> executor -> reply.

use rlock_core::grammar::{self, Access, Command, commands};
use rlock_core::{Acquire, Input, Levels, Lock, Mode, Release, Renew, Reply, snapshot};

use crate::describe::Info;
use crate::executor::{self, Fault};
use crate::ffi::{Arguments, Content, Ctx, Handler, Name};
use crate::metrics::{self, Metric};
use crate::{settings, state};

/// Registers every command.
///
/// # Errors
/// The server refuses one.
pub fn register(ctx: &Ctx) -> Result<(), String> {
    fn add<S: Serve>(ctx: &Ctx) -> Result<(), String> {
        ctx.register_command::<S>(S::COMMAND, &Info::new(S::COMMAND))
    }
    add::<AcquireLock>(ctx)?;
    add::<ReleaseLock>(ctx)?;
    add::<RenewLock>(ctx)?;
    add::<ForceLock>(ctx)?;
    add::<Holds>(ctx)?;
    add::<Check>(ctx)?;
    add::<Describe>(ctx)?;
    add::<Help>(ctx)?;
    add::<Apply>(ctx)
}

/// Carries out one command whose words were read. `Err` is the error line that it replies with.
trait Serve: 'static {
    const COMMAND: &'static Command;
    fn serve(call: &Call<'_>) -> Result<(), String>;
}

struct Call<'a> {
    ctx: &'a Ctx,
    /// There is one, but for a command without a key.
    name: Option<Name<'a>>,
    said: grammar::Arguments<'a>,
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

    fn reply_count(&self, count: u64) {
        self.ctx.reply_integer(count.cast_signed());
    }

    /// Looks at the lock; at a free one where there is none.
    fn look<T>(&self, at: impl FnOnce(&Lock) -> T) -> Result<T, String> {
        let mut key = self.ctx.open(self.key()?, Access::Reads);
        match key.content() {
            Content::Missing => Ok(at(&Lock::default())),
            Content::Lock(lock) => Ok(at(lock)),
            Content::Other => Err(line(Fault::WrongType)),
        }
    }
}

fn line(fault: Fault) -> String {
    match fault {
        Fault::ReadOnly => "READONLY You can't write against a read only replica.",
        Fault::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
    }
    .into()
}

struct AcquireLock;

impl Serve for AcquireLock {
    const COMMAND: &'static Command = &commands::ACQUIRE;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        let said = &call.said;
        let reply = call.decide(Input::Acquire(Acquire {
            owner: said.owner,
            mode: said.mode.unwrap_or(Mode::Write),
            lease: said.lease,
            upgrade: said.upgrade,
            depth: said.depth,
        }))?;
        if said.with_ttl {
            call.ctx.reply_array(2);
        }
        let ms = match reply {
            Reply::Granted { token, left_ms } => {
                call.reply_count(token.get());
                left_ms
            }
            Reply::NotNow { wait_ms } => {
                call.ctx.reply_null();
                wait_ms
            }
            Reply::Count(_) | Reply::Refused(_) => 0,
        };
        if said.with_ttl {
            call.reply_count(ms);
        }
        Ok(())
    }
}

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
        call.decide_count(Input::Release(Release { owner, mode, token, levels }))
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

struct Describe;

impl Serve for Describe {
    const COMMAND: &'static Command = &commands::INFO;

    fn serve(call: &Call<'_>) -> Result<(), String> {
        let (ctx, now) = (call.ctx, state::now());
        call.look(|lock| {
            ctx.reply_map(4);
            ctx.reply_bytes(b"mode");
            ctx.reply_bytes(lock.mode_at(now).map_or("free", Mode::lower).as_bytes());
            ctx.reply_bytes(b"holders");
            ctx.reply_array(lock.holds_at(now).count());
            for (owner, mode, hold) in lock.holds_at(now) {
                ctx.reply_map(7);
                ctx.reply_bytes(b"owner");
                ctx.reply_bytes(owner.as_bytes());
                ctx.reply_bytes(b"mode");
                ctx.reply_bytes(mode.lower().as_bytes());
                for (field, number) in [
                    ("depth", hold.depth.into()),
                    ("token", hold.token.get()),
                    ("ttl-ms", hold.deadline.left_at(now)),
                    ("held-ms", hold.token.age_ms(now)),
                    ("session", 0),
                ] {
                    ctx.reply_bytes(field.as_bytes());
                    call.reply_count(number);
                }
            }
            ctx.reply_bytes(b"queue-length");
            call.reply_count(0);
            ctx.reply_bytes(b"waiters");
            ctx.reply_array(0);
        })
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
        let effect = snapshot::load_effect(call.said.payload)
            .map_err(|why| format!("ERR malformed payload: {why}"))?;
        executor::replay(call.ctx, call.key()?, &effect).map_err(line)?;
        call.ctx.reply_ok();
        Ok(())
    }
}
