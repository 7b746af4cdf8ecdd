//! A command with parsed arguments: the input of every handler.

use rlock_core::grammar::{self, Access, Command};
use rlock_core::{Input, Lock, Refusal, Reply};

use crate::executor::{self, Fault};
use crate::ffi::{Arguments, Ctx, Handler, Name};
use crate::settings;

/// Executes one command. `Err` is the error line to reply.
pub trait Serve: 'static {
    /// The command's entry in the core's table.
    const COMMAND: &'static Command;
    /// Replies exactly once, or returns an error line.
    fn serve(call: &Call<'_>) -> Result<(), String>;
}

/// A command with parsed arguments.
pub struct Call<'a> {
    /// The context, for the reply.
    pub ctx: &'a Ctx,
    /// The key; only commands without a key have none.
    pub name: Option<Name<'a>>,
    /// The arguments.
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
    /// The key, for a command that has one.
    ///
    /// # Errors
    /// An error line, for a command without a key.
    pub fn key(&self) -> Result<&Name<'a>, String> {
        self.name.as_ref().ok_or_else(|| "ERR the command needs a key".into())
    }

    /// Lets the core decide; a refusal becomes its error line.
    ///
    /// # Errors
    /// The error line; nothing changed.
    pub fn decide(&self, input: Input<'a>) -> Result<Reply, String> {
        match executor::decide(self.ctx, self.key()?, input).map_err(line)? {
            Reply::Refused(refusal) => Err(refusal.line(self.said.key, self.said.owner)),
            reply => Ok(reply),
        }
    }

    /// Replies with the count that the core decided.
    ///
    /// # Errors
    /// The error line; nothing changed.
    pub fn decide_count(&self, input: Input<'a>) -> Result<(), String> {
        if let Reply::Count(count) = self.decide(input)? {
            self.reply_count(count);
        }
        Ok(())
    }

    /// Replies with a number.
    pub fn reply_count(&self, count: u64) {
        self.ctx.reply_integer(count.cast_signed());
    }

    /// Inspects the lock; a free one if there is none.
    ///
    /// # Errors
    /// The error line, if the key is not a lock.
    pub fn look<T>(&self, at: impl FnOnce(&Lock) -> T) -> Result<T, String> {
        let mut key = self.ctx.open(self.key()?, Access::Reads);
        key.lock(&Lock::default()).map(at).ok_or_else(|| line(Fault::WrongType))
    }
}

/// The error line of a fault.
pub fn line(fault: Fault) -> String {
    match fault {
        Fault::Implausible => {
            "ERR malformed payload: its token is more than a minute ahead of the clock"
        }
        Fault::ReadOnly => "READONLY You can't write against a read only replica.",
        Fault::WrongType => return Refusal::WrongType.line(&[], &[]),
    }
    .into()
}
