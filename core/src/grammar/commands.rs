//! The table of commands.

use super::{Access, Command, Positional, Word};

const V0_1: &str = "0.1.0";
const V0_2: &str = "0.2.0";

const LOG_N: &str = "O(log N) with N the number of those who hold the lock or wait for it";

/// `RLOCK.ACQUIRE`
pub const ACQUIRE: Command = Command {
    name: "RLOCK.ACQUIRE",
    since: V0_1,
    summary: "Holds a lock, or enters it once more, and returns the fencing token; nil if \
              somebody is in the way.",
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
        Word::WithTtl,
    ],
};

/// `RLOCK.RELEASE`
pub const RELEASE: Command = Command {
    name: "RLOCK.RELEASE",
    since: V0_1,
    summary: "Leaves one level of a hold, or more, and returns the depth that is left; 0 is let \
              go.",
    complexity: LOG_N,
    flags: "write fast",
    acl: "write fast",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Owner],
    options: &[Word::Read, Word::Write, Word::Token, Word::DownTo, Word::All],
};

/// `RLOCK.RENEW`
pub const RENEW: Command = Command {
    name: "RLOCK.RENEW",
    since: V0_1,
    summary: "Extends an owner's deadlines to no earlier than now + lease.",
    complexity: LOG_N,
    flags: "write fast",
    acl: "write fast",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Owner],
    options: &[Word::Read, Word::Write, Word::Lease, Word::Token],
};

/// `RLOCK.CANCEL`
pub const CANCEL: Command = Command {
    name: "RLOCK.CANCEL",
    since: V0_1,
    summary: "Ends an owner's waits; returns how many places it gave up.",
    complexity: "O(log N) with N the number of those who wait",
    flags: "write fast",
    acl: "write fast",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Owner],
    options: &[],
};

/// `RLOCK.FORCE`
pub const FORCE: Command = Command {
    name: "RLOCK.FORCE",
    since: V0_1,
    summary: "Ends everybody's holds and returns how many.",
    complexity: "O(N log N) with N the number of holds ended",
    flags: "write",
    acl: "write dangerous",
    access: Access::Writes,
    positional: &[Positional::Key],
    options: &[Word::Read, Word::Write],
};

/// `RLOCK.HOLDS`
pub const HOLDS: Command = Command {
    name: "RLOCK.HOLDS",
    since: V0_1,
    summary: "Returns an owner's depth; 0 is not held.",
    complexity: LOG_N,
    flags: "readonly fast",
    acl: "read fast",
    access: Access::Reads,
    positional: &[Positional::Key, Positional::Owner],
    options: &[Word::Read, Word::Write],
};

/// `RLOCK.CHECK`
pub const CHECK: Command = Command {
    name: "RLOCK.CHECK",
    since: V0_1,
    summary: "Returns 1 if a live hold has this fencing token, else 0: for a fenced write in a \
              script.",
    complexity: LOG_N,
    flags: "readonly fast",
    acl: "read fast",
    access: Access::Reads,
    positional: &[Positional::Key, Positional::Token],
    options: &[Word::Read, Word::Write],
};

/// `RLOCK.INFO`
pub const INFO: Command = Command {
    name: "RLOCK.INFO",
    since: V0_1,
    summary: "Returns how a lock is held and by whom.",
    complexity: "O(N) with N the number of holders and waiters that are listed",
    flags: "readonly",
    acl: "read",
    access: Access::Reads,
    positional: &[Positional::Key],
    options: &[Word::Holders, Word::Waiters],
};

/// `RLOCK.PLACE`
pub const PLACE: Command = Command {
    name: "RLOCK.PLACE",
    since: V0_2,
    summary: "Returns an owner's first place among those who wait, 1 is the first; 0 is its turn, \
              nil if it does not wait.",
    complexity: "O(log N + N/256) with N the number of those who wait",
    flags: "readonly fast",
    acl: "read fast",
    access: Access::Reads,
    positional: &[Positional::Key, Positional::Owner],
    options: &[],
};

/// `RLOCK.QUEUES`
pub const QUEUES: Command = Command {
    name: "RLOCK.QUEUES",
    since: V0_1,
    summary: "Returns the longest queues of the database, longest first.",
    complexity: "O(N) with N the number of locks that somebody waits for",
    flags: "readonly",
    acl: "read",
    access: Access::Keyless,
    positional: &[],
    options: &[Word::Count],
};

/// `RLOCK.HELP`
pub const HELP: Command = Command {
    name: "RLOCK.HELP",
    since: V0_1,
    summary: "Returns lines of help.",
    complexity: "O(1)",
    flags: "readonly fast allow-stale allow-loading",
    acl: "fast",
    access: Access::Keyless,
    positional: &[],
    options: &[],
};

/// `RLOCK.APPLY`
pub const APPLY: Command = Command {
    name: "RLOCK.APPLY",
    since: V0_1,
    summary: "Carries out an effect that a primary replicated; never needed by clients.",
    complexity: "O(N log M) with N the number of changes and M the number of holds",
    flags: "write admin",
    acl: "write admin dangerous",
    access: Access::Writes,
    positional: &[Positional::Key, Positional::Payload],
    options: &[],
};

/// Every command, in the order of `RLOCK.HELP`.
pub const COMMANDS: &[Command] =
    &[ACQUIRE, RELEASE, RENEW, CANCEL, FORCE, HOLDS, CHECK, INFO, PLACE, QUEUES, HELP, APPLY];
