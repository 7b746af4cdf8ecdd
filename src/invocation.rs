//! A command with parsed arguments, which every handler gets.

use rlock_core::Lock;
use rlock_core::grammar::{Arguments, BadWord, Command, SeveralKeys};
use rlock_engine::commands;
use rlock_engine::reply::Replies;

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
    pub args: &'a Arguments<'a>,
}

impl<S: Serve> Handler for S {
    fn run(ctx: &Ctx, words: &Argv<'_>) {
        let read = S::COMMAND.read(words.words(), &settings::limits());
        finish(ctx, read, |args| S::serve(&Invocation { ctx, name: words.name(args.key), args }));
    }
}

/// Executes a command that names several keys with the engine's function for it.
pub fn serve_several(ctx: &Ctx, words: &Argv<'_>, command: &Command, serve: ServeSeveral) {
    let has_number = command.has_several_keys();
    if has_number && ctx.tells_keys(words) {
        return;
    }
    let first = if has_number { 2 } else { 1 };
    let mut keys = SeveralKeys::default();
    let read = command.read_several(words.words(), &settings::limits(), &mut keys);
    finish(ctx, read, |args| serve(ctx, &words.names(first, keys.keys.len()), args, &keys));
}

/// The engine's function for a command that names several keys.
pub type ServeSeveral =
    fn(&Ctx, &[Name<'_>], &Arguments<'_>, &SeveralKeys<'_>) -> Result<(), String>;

/// Executes a command whose arguments were parsed, or replies with the error in them.
fn finish<'a>(
    ctx: &Ctx,
    read: Result<Arguments<'a>, BadWord>,
    serve: impl FnOnce(&Arguments<'a>) -> Result<(), String>,
) {
    let done = match &read {
        Ok(args) => serve(args),
        Err(bad) => Err(bad.line().into()),
    };
    if let Err(line) = done {
        ctx.reply_error(&line);
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
