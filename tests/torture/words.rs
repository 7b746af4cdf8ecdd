//! The commands that are sent to a server.

use redis::Cmd;

use crate::history::{Ask, Asked, Wait};

/// Turns a request of an owner for a key into a command.
pub type Words = fn(&str, &str, &Asked) -> Cmd;

/// The commands of this module.
pub fn rlock(key: &str, owner: &str, asked: &Asked) -> Cmd {
    let line = match asked {
        Asked::Acquire(ask) => format!("RLOCK.ACQUIRE {key} {owner}{}", acquire(ask)),
        Asked::Release { mode, down_to, token } => {
            let mut line = format!("RLOCK.RELEASE {key} {owner} {}", mode.word());
            token.iter().for_each(|token| line += &format!(" TOKEN {token}"));
            down_to.iter().for_each(|depth| line += &format!(" DEPTH {depth}"));
            line
        }
        Asked::Renew { mode, lease_ms, token, acks } => {
            let mode = mode.word();
            let line = format!("RLOCK.RENEW {key} {owner} {mode} LEASE {lease_ms} TOKEN {token}");
            line + &acknowledged(*acks)
        }
        Asked::Cancel => format!("RLOCK.CANCEL {key} {owner}"),
        Asked::Info => format!("RLOCK.INFO {key} WAITERS 1000"),
        Asked::Look { .. } => format!("RLOCK.INFO {key}"),
        Asked::Count { token } => return count(key, *token),
        Asked::Echo | Asked::HangUp => panic!("{asked:?} is no command about a lock"),
    };
    packed(&line)
}

fn acquire(ask: &Ask) -> String {
    let mut line = format!(" {} LEASE {}", ask.mode.word(), ask.lease_ms);
    match ask.wait {
        Wait::No => {}
        Wait::Block(ms) | Wait::Tell { ms, .. } => line += &format!(" BLOCK {ms}"),
        Wait::Queue(ms) => line += &format!(" QUEUE {ms}"),
    }
    for (is_asked, word) in [(ask.upgrade, " UPGRADE"), (ask.session, " SESSION")] {
        line += if is_asked { word } else { "" };
    }
    ask.limit.iter().for_each(|limit| line += &format!(" LIMIT {limit}"));
    ask.depth.iter().for_each(|depth| line += &format!(" DEPTH {depth}"));
    line + &acknowledged(ask.acks)
}

fn acknowledged(acks: u32) -> String {
    if acks > 0 { format!(" ACKS {acks}") } else { String::new() }
}

/// The same commands, but without asking for acknowledgments.
pub fn without_acks(key: &str, owner: &str, asked: &Asked) -> Cmd {
    let asked = match asked.clone() {
        Asked::Acquire(ask) => Asked::Acquire(Ask { acks: 0, ..ask }),
        Asked::Renew { mode, lease_ms, token, .. } => {
            Asked::Renew { mode, lease_ms, token, acks: 0 }
        }
        other => other,
    };
    rlock(key, owner, &asked)
}

/// Adds one to the counter that the lock guards, if the token is still valid.
fn count(key: &str, token: i64) -> Cmd {
    const SCRIPT: &str = "if redis.call('RLOCK.CHECK',KEYS[1],ARGV[1])==1 \
        then return redis.call('INCR',KEYS[2]) end return false";
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(2).arg(key).arg(format!("{{{key}}}:count")).arg(token);
    command
}

/// A command of plain words.
pub fn packed(line: &str) -> Cmd {
    let mut command = Cmd::new();
    line.split_whitespace().for_each(|word| {
        command.arg(word);
    });
    command
}
