//! The table of commands.

use rlock_core::grammar::Access;
use rlock_core::grammar::commands::COMMANDS;

const ACQUIRE_USAGE: &str = "RLOCK.ACQUIRE key owner [READ | WRITE] [LEASE ms] [LIMIT n] \
                                 [BLOCK ms | QUEUE ms] [MAXQUEUE n] [UPGRADE] [SESSION] [DEPTH n] \
                                 [ACKS n] [WITHTTL] [TELL channel id]";
const RELEASE_USAGE: &str = "RLOCK.RELEASE key owner [READ | WRITE] [TOKEN t] [DEPTH n | ALL]";
const RENEW_USAGE: &str = "RLOCK.RENEW key owner [READ | WRITE] [LEASE ms] [TOKEN t] [ACKS n] \
                               [TELL channel id]";
const MACQUIRE_USAGE: &str = "RLOCK.MACQUIRE numkeys key [key ...] owner [READ | WRITE | MODES \
                              mode [mode ...]] [LEASE ms] [BLOCK ms] [MAXQUEUE n] [SESSION] \
                              [ACKS n] [WITHTTL] [TELL channel id]";
const MRENEW_USAGE: &str = "RLOCK.MRENEW numkeys key [key ...] owner [LEASE ms] [TOKEN t] [ACKS n] \
                            [TELL channel id]";
const FORCE_USAGE: &str = "RLOCK.FORCE key [READ | WRITE]";
const HOLDS_USAGE: &str = "RLOCK.HOLDS key owner [READ | WRITE]";

/// For each command: its usage, its arity (as the server counts), and what it does to its key.
#[test]
fn the_table_of_commands_is_as_documented() {
    let (reads, writes) = (Access::Reads, Access::Writes);
    let table = [
        (ACQUIRE_USAGE, -3, writes),
        (RELEASE_USAGE, -3, writes),
        (RENEW_USAGE, -3, writes),
        (MACQUIRE_USAGE, -4, writes),
        ("RLOCK.MRELEASE numkeys key [key ...] owner [TOKEN t]", -4, writes),
        (MRENEW_USAGE, -4, writes),
        ("RLOCK.CANCEL key owner", 3, writes),
        (FORCE_USAGE, -2, writes),
        ("RLOCK.TAKE key owner [LEASE ms] [ACKS n] [WITHTTL]", -3, writes),
        (HOLDS_USAGE, -3, reads),
        ("RLOCK.CHECK key token [READ | WRITE]", -3, reads),
        ("RLOCK.AWAIT key token [BLOCK ms] [TELL channel id]", -3, reads),
        ("RLOCK.INFO key [HOLDERS n] [WAITERS n]", -2, reads),
        ("RLOCK.PLACE key owner", 3, reads),
        ("RLOCK.QUEUES [COUNT n]", -1, Access::Keyless),
        ("RLOCK.SLOWLOG GET [n] | LEN | RESET", -2, Access::Keyless),
        ("RLOCK.HELP", 1, Access::Keyless),
        ("RLOCK.APPLY key [key ...] payload", -3, writes),
    ];
    let found = COMMANDS.iter().map(|command| (command.usage(), command.arity(), command.access));
    let found: Vec<_> = found.collect();
    let table: Vec<_> =
        table.map(|(usage, arity, access)| (usage.to_string(), arity, access)).into();
    assert_eq!(found, table);
}

#[test]
fn only_what_changes_a_lock_is_a_write() {
    for command in COMMANDS {
        let has = |words: &str, word| words.split(' ').any(|one| one == word);
        let (flags, acl) = (command.flags, command.acl);
        let name = command.name;
        assert_eq!(has(flags, "write"), command.access == Access::Writes, "{name}");
        assert_eq!(has(acl, "write"), command.access == Access::Writes, "{name}");
        let reads = command.access == Access::Reads || name == "RLOCK.QUEUES";
        let acquires = ["RLOCK.ACQUIRE", "RLOCK.MACQUIRE", "RLOCK.TAKE"].contains(&name);
        let blocks = acquires || ["RLOCK.RENEW", "RLOCK.MRENEW", "RLOCK.AWAIT"].contains(&name);
        assert_eq!(has(acl, "read"), reads, "{name}");
        assert_eq!(has(flags, "blocking"), blocks, "{name}");
        assert_eq!(has(acl, "blocking"), blocks, "{name}");
        assert_eq!(
            has(acl, "dangerous"),
            ["RLOCK.FORCE", "RLOCK.TAKE", "RLOCK.SLOWLOG", "RLOCK.APPLY"].contains(&name),
            "{name}"
        );
        let is_admin = ["RLOCK.SLOWLOG", "RLOCK.APPLY"].contains(&name);
        assert_eq!(has(acl, "admin"), is_admin, "{name}");
        // The other commands free memory, or take none: they work under OOM.
        assert_eq!(has(flags, "deny-oom"), acquires, "{name}");
        assert!(command.options.len() <= 32, "{name} has more options than a u32 has bits");
        assert!(command.summary.ends_with('.') && command.complexity.starts_with("O("), "{name}");
    }
}
