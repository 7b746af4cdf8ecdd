//! The table of commands.

use super::{Access, Command, Positional, Word};

const LOG_N: &str = "O(log N) with N the number of holders and waiters of the lock";

const M_LOG_N: &str =
    "O(M log N) with M the number of keys and N the number of holders and waiters of each lock";

/// The first arguments of a command that names several keys.
const SEVERAL: &[Positional] = &[Positional::NumKeys, Positional::Keys, Positional::Owner];

/// The version that introduced all commands: the first one.
pub const SINCE: &str = "0.3.0";

/// `RLOCK.ACQUIRE`
pub const ACQUIRE: Command = Command {
    name: "RLOCK.ACQUIRE",
    summary: "Acquires or re-enters a lock; returns the fencing token, or nil if it is \
              unavailable.",
    complexity: LOG_N,
    flags: "write deny-oom fast blocking",
    acl: "write fast blocking",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Owner],
    options: &[
        Word::Read,
        Word::Write,
        Word::Lease,
        Word::Limit,
        Word::Block,
        Word::Queue,
        Word::MaxQueue,
        Word::Upgrade,
        Word::Session,
        Word::Depth,
        Word::Acks,
        Word::WithTtl,
        Word::Tell,
    ],
    needs_one: false,
};

/// `RLOCK.RELEASE`
pub const RELEASE: Command = Command {
    name: "RLOCK.RELEASE",
    summary: "Releases one or more levels of a hold; returns the remaining depth (0 = released).",
    complexity: LOG_N,
    flags: "write fast",
    acl: "write fast",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Owner],
    options: &[Word::Read, Word::Write, Word::Token, Word::DownTo, Word::All],
    needs_one: false,
};

/// `RLOCK.RENEW`
pub const RENEW: Command = Command {
    name: "RLOCK.RENEW",
    summary: "Renews an owner's holds: each deadline becomes now + lease, unless already later.",
    complexity: LOG_N,
    flags: "write fast blocking",
    acl: "write fast blocking",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Owner],
    options: &[Word::Read, Word::Write, Word::Lease, Word::Token, Word::Acks, Word::Tell],
    needs_one: false,
};

/// `RLOCK.MACQUIRE`
pub const MACQUIRE: Command = Command {
    name: "RLOCK.MACQUIRE",
    summary: "Acquires several locks in one step, or none; returns one fencing token, or nil.",
    complexity: M_LOG_N,
    flags: "write deny-oom blocking getkeys-api",
    acl: "write blocking",
    access: Access::Writes,
    positional: SEVERAL,
    options: &[
        Word::Read,
        Word::Write,
        Word::Modes,
        Word::Lease,
        Word::Block,
        Word::MaxQueue,
        Word::Session,
        Word::Acks,
        Word::WithTtl,
        Word::Tell,
    ],
    needs_one: false,
};

/// `RLOCK.MRELEASE`
pub const MRELEASE: Command = Command {
    name: "RLOCK.MRELEASE",
    summary: "Ends an owner's holds of several locks in one step; returns how many it ended.",
    complexity: M_LOG_N,
    flags: "write getkeys-api",
    acl: "write",
    access: Access::Writes,
    positional: SEVERAL,
    options: &[Word::Token],
    needs_one: false,
};

/// `RLOCK.MRENEW`
pub const MRENEW: Command = Command {
    name: "RLOCK.MRENEW",
    summary: "Renews an owner's holds of several locks in one step: all of them, or none.",
    complexity: M_LOG_N,
    flags: "write blocking getkeys-api",
    acl: "write blocking",
    access: Access::Writes,
    positional: SEVERAL,
    options: &[Word::Lease, Word::Token, Word::Acks, Word::Tell],
    needs_one: false,
};

/// `RLOCK.CANCEL`
pub const CANCEL: Command = Command {
    name: "RLOCK.CANCEL",
    summary: "Cancels an owner's waits; returns how many places in the queue it gave up.",
    complexity: "O(log N + G) with N the number of waiters and G that of the owner's waits for \
                 several locks",
    flags: "write fast",
    acl: "write fast",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Owner],
    options: &[],
    needs_one: false,
};

/// `RLOCK.FORCE`
pub const FORCE: Command = Command {
    name: "RLOCK.FORCE",
    summary: "Ends all holds of a lock, whoever owns them; returns how many it ended.",
    complexity: "O(N log N) with N the number of holds ended",
    flags: "write",
    acl: "write dangerous",
    access: Access::Writes,
    positional: &[Positional::Key],
    options: &[Word::Read, Word::Write],
    needs_one: false,
};

/// `RLOCK.TAKE`
pub const TAKE: Command = Command {
    name: "RLOCK.TAKE",
    summary: "Ends all holds of a lock and acquires WRITE, ahead of those who wait; returns the \
              token.",
    complexity: "O(N log N) with N the number of holds ended",
    flags: "write deny-oom blocking",
    acl: "write blocking dangerous",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Owner],
    options: &[Word::Lease, Word::Acks, Word::WithTtl],
    needs_one: false,
};

/// `RLOCK.HOLDS`
pub const HOLDS: Command = Command {
    name: "RLOCK.HOLDS",
    summary: "Returns an owner's depth, or 0 if it holds nothing.",
    complexity: LOG_N,
    flags: "readonly fast",
    acl: "read fast",
    access: Access::Reads,
    positional: &[Positional::Key, Positional::Owner],
    options: &[Word::Read, Word::Write],
    needs_one: false,
};

/// `RLOCK.CHECK`
pub const CHECK: Command = Command {
    name: "RLOCK.CHECK",
    summary: "Returns 1 if a live hold has this fencing token, else 0; for fenced writes in \
              scripts.",
    complexity: LOG_N,
    flags: "readonly fast",
    acl: "read fast",
    access: Access::Reads,
    positional: &[Positional::Key, Positional::Token],
    options: &[Word::Read, Word::Write],
    needs_one: false,
};

/// `RLOCK.AWAIT`
pub const AWAIT: Command = Command {
    name: "RLOCK.AWAIT",
    summary: "Returns the holder of WRITE if its token differs from the given one; with BLOCK, \
              waits until it does.",
    complexity: LOG_N,
    flags: "readonly fast blocking",
    acl: "read fast blocking",
    access: Access::Reads,
    positional: &[Positional::Key, Positional::TokenOrZero],
    options: &[Word::Block, Word::Tell],
    needs_one: false,
};

/// `RLOCK.INFO`
pub const INFO: Command = Command {
    name: "RLOCK.INFO",
    summary: "Returns the holders and waiters of a lock.",
    complexity: "O(N) with N the number of holders and waiters returned",
    flags: "readonly",
    acl: "read",
    access: Access::Reads,
    positional: &[Positional::Key],
    options: &[Word::Holders, Word::Waiters],
    needs_one: false,
};

/// `RLOCK.PLACE`
pub const PLACE: Command = Command {
    name: "RLOCK.PLACE",
    summary: "Returns an owner's first place in the queue, counted from 1; 0 if its turn has come, \
              nil if it is not waiting.",
    complexity: "O(log N + N/256) with N the number of waiters",
    flags: "readonly fast",
    acl: "read fast",
    access: Access::Reads,
    positional: &[Positional::Key, Positional::Owner],
    options: &[],
    needs_one: false,
};

/// `RLOCK.QUEUES`
pub const QUEUES: Command = Command {
    name: "RLOCK.QUEUES",
    summary: "Returns the longest queues in the database, longest first.",
    complexity: "O(N) with N the number of locks that have waiters",
    flags: "readonly",
    acl: "read",
    access: Access::Keyless,
    positional: &[],
    options: &[Word::Count],
    needs_one: false,
};

/// `RLOCK.SLOWLOG`
pub const SLOWLOG: Command = Command {
    name: "RLOCK.SLOWLOG",
    summary: "Returns, counts or clears the log of long waits, long holds and prevented deadlocks.",
    complexity: "O(N) with N the number of entries returned",
    flags: "admin allow-stale allow-loading",
    acl: "admin slow dangerous",
    access: Access::Keyless,
    positional: &[],
    options: &[Word::Get, Word::Len, Word::Reset],
    needs_one: true,
};

/// `RLOCK.HELP`
pub const HELP: Command = Command {
    name: "RLOCK.HELP",
    summary: "Returns the syntax and a summary of each command.",
    complexity: "O(1)",
    flags: "readonly fast allow-stale allow-loading",
    acl: "fast",
    access: Access::Keyless,
    positional: &[],
    options: &[],
    needs_one: false,
};

/// `RLOCK.APPLY`
pub const APPLY: Command = Command {
    name: "RLOCK.APPLY",
    summary: "Applies an effect that a primary replicated; not for clients.",
    complexity: "O(N log M) with N the number of changes and M the number of holds of a lock",
    flags: "write admin",
    acl: "write admin dangerous",
    access: Access::Writes,
    positional: &[Positional::LeadingKeys, Positional::Payload],
    options: &[],
    needs_one: false,
};

/// Every command, in the order of `RLOCK.HELP`.
pub const COMMANDS: &[Command] = &[
    ACQUIRE, RELEASE, RENEW, MACQUIRE, MRELEASE, MRENEW, CANCEL, FORCE, TAKE, HOLDS, CHECK, AWAIT,
    INFO, PLACE, QUEUES, SLOWLOG, HELP, APPLY,
];
