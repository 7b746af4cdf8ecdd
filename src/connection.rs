//! What `CLIENT LIST` reports about a connection.

use std::borrow::Cow;

use rlock_core::ClientId;
use rlock_core::grammar::Command;
use rlock_core::grammar::commands::COMMANDS;

use crate::ffi::Ctx;

/// The server's commands that wait for a key.
const WAITS_FOR_KEYS: [&str; 10] = [
    "blpop",
    "brpop",
    "blmpop",
    "blmove",
    "brpoplpush",
    "bzpopmin",
    "bzpopmax",
    "bzmpop",
    "xread",
    "xreadgroup",
];

/// A line of `CLIENT LIST`; empty if the connection has ended.
pub struct Line<'l>(Cow<'l, str>);

impl<'l> Line<'l> {
    /// Asks the server for the line of this connection.
    pub fn of(client: ClientId) -> Self {
        let line = Ctx::detached().describe_client(client.get());
        Self(line.unwrap_or_default().into())
    }

    /// The connections of several lines.
    pub fn each(lines: &'l str) -> impl Iterator<Item = Self> {
        lines.lines().map(|line| Self(line.into()))
    }

    fn field(&self, name: &str) -> Option<&str> {
        let words = &mut self.0.split_ascii_whitespace();
        words.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    }

    fn has_flag(&self, flag: char) -> bool {
        self.field("flags").is_some_and(|flags| flags.contains(flag))
    }

    /// The last command, or the one that is running.
    fn command(&self) -> &str {
        self.field("cmd").unwrap_or_default()
    }

    /// The connection's number.
    pub fn id(&self) -> Option<ClientId> {
        self.field("id")?.parse::<u64>().ok().map(ClientId::from)
    }

    /// Whether its command waits in the server, of any kind.
    pub fn is_blocked(&self) -> bool {
        self.has_flag('b')
    }

    /// Whether the server closes it as soon as it can.
    pub fn is_ending(&self) -> bool {
        self.has_flag('A')
    }

    /// Whether nothing remains to be sent.
    pub fn is_written(&self) -> bool {
        self.field("obl") == Some("0") && self.field("oll") == Some("0")
    }

    /// Whether the arguments that have arrived take at least this many bytes.
    pub fn has_arguments_of(&self, bytes: usize) -> bool {
        self.field("argv-mem") == Some(&bytes.to_string())
    }

    /// Whether it executes no command now: it is blocked, or none of its arguments have arrived.
    pub fn is_idle(&self) -> bool {
        self.has_arguments_of(0) || self.is_blocked()
    }

    /// Whether its last command executes other commands.
    pub fn runs_more(&self) -> bool {
        ["exec", "eval", "evalsha", "fcall"].contains(&self.command())
    }

    /// Whether its last command is one of the module's blocking commands.
    pub fn is_ours(&self) -> bool {
        let blocks = |ours: &Command| ours.flags.split(' ').any(|flag| flag == "blocking");
        let is_last = |ours: &Command| ours.name.eq_ignore_ascii_case(self.command());
        COMMANDS.iter().any(|ours| blocks(ours) && is_last(ours))
    }

    /// Whether its last command may have ended the session, with the reply not sent yet.
    pub fn empties(&self) -> bool {
        ["flushall", "flushdb", "swapdb"].contains(&self.command())
    }

    /// Whether one of its commands waits in the server: for a key, or because of a pause. The
    /// module's own blocking commands do not count: they were granted nothing, or are about to get
    /// their reply, and check themselves that they may not run.
    pub fn waits(&self) -> bool {
        // A command that was held back in a pause keeps its arguments until it runs, after the
        // pause.
        let is_next = self.has_flag('u') && !self.has_arguments_of(0);
        (self.is_blocked() || is_next) && !self.is_ours()
    }

    /// Whether its blocked command, if the server serves it now, may open other keys than the one
    /// for which it waits. Redis 7.0 opens only a destination key; later versions execute the whole
    /// command again.
    pub fn may_be_served(&self, runs_again: bool) -> bool {
        let command = self.command();
        // Other modules' callbacks may open any key.
        let is_foreign = command.contains('.') && self.is_blocked() && !self.is_ours();
        let is_run = runs_again && !self.is_idle() && WAITS_FOR_KEYS.contains(&command);
        let moves = ["blmove", "brpoplpush"].contains(&command);
        is_foreign || is_run || !runs_again && moves && self.is_blocked()
    }
}
