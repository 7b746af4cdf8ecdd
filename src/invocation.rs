//! A command with parsed arguments: the input of every handler.

use rlock_core::Lock;
use rlock_core::grammar::{self, Command, SeveralKeys};
use rlock_engine::commands;

use crate::ffi::{Argv, Ctx, Handler, Name};
use crate::settings;

/// Executes one command. `Err` is the error line to reply.
pub trait Serve: 'static {
    /// The command's entry in the core's table.
    const COMMAND: &'static Command;
    /// Replies exactly once, or returns an error line.
    fn serve(call: &Invocation<'_>) -> Result<(), String>;
}

/// A command with parsed arguments.
pub struct Invocation<'a> {
    /// The context, for the reply.
    pub ctx: &'a Ctx,
    /// The key; only commands without a key have none.
    pub name: Option<Name<'a>>,
    /// The arguments.
    pub said: grammar::Arguments<'a>,
    /// The keys of a command that names several.
    pub keys: SeveralKeys<'a>,
    words: &'a Argv<'a>,
}

impl<S: Serve> Handler for S {
    fn run(ctx: &Ctx, words: &Argv<'_>) {
        if S::COMMAND.has_several_keys() && ctx.tells_keys(words) {
            return;
        }
        let (name, mut keys) = (words.name(), SeveralKeys::default());
        let read = S::COMMAND.read_several(words.words(), &settings::limits(), &mut keys);
        let done = match read {
            Ok(said) => S::serve(&Invocation { ctx, name, said, keys, words }),
            Err(bad) => Err(bad.line().into()),
        };
        if let Err(line) = done {
            ctx.reply_error(&line);
        }
    }
}

impl<'a> Invocation<'a> {
    /// The key, for a command that has one.
    ///
    /// # Errors
    /// An error line, for a command without a key.
    pub fn key(&self) -> Result<&Name<'a>, String> {
        self.name.as_ref().ok_or_else(|| "ERR the command needs a key".into())
    }

    /// The keys of a command that names several, in the order of the request.
    pub fn names(&self) -> Vec<Name<'a>> {
        self.words.names(self.keys.keys.len())
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
        commands::look(self.ctx, self.key()?, at)
    }
}
