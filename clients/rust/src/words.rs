//! What is asked on a shared connection, in the words of the server.

use redis::Cmd;

use crate::Options;
use crate::ask::millis;
use crate::machine::{Ms, Request};

/// Seven days: above, a wait has no limit for the server.
const LONGEST_BLOCK: Ms = 604_800_000;

/// A request for a lock.
pub(crate) fn acquire(
    block: Option<Ms>,
    is_session: bool,
    key: &[u8],
    options: &Options,
    depth: u32,
) -> Cmd {
    let mut words = options.words(key, depth);
    if is_session {
        words.arg("SESSION");
    }
    if let Some(block) = block {
        // The attempt still ends by its own clock.
        words.arg("BLOCK").arg(if block > LONGEST_BLOCK { 0 } else { block });
        if let Some(most) = options.max_queue {
            words.arg("MAXQUEUE").arg(most);
        }
    }
    words
}

/// A request on a shared connection.
pub(crate) fn words(request: Request, key: &[u8], options: &Options, depth: u32) -> Cmd {
    let named = |name: &str| {
        let mut words = redis::cmd(name);
        words.arg(key);
        words
    };
    let owned = |name: &str| {
        let mut words = named(name);
        words.arg(&options.owner);
        words
    };
    let mut words = match (request, options.together(request)) {
        (Request::Acquire(block), _) => return acquire(block, false, key, options, depth),
        (_, Some(words)) => return words,
        (Request::Cancel, None) => owned("RLOCK.CANCEL"),
        (Request::Info, None) => named("RLOCK.INFO"),
        (Request::Renew(_), None) => owned("RLOCK.RENEW"),
        (Request::Release(..), None) => owned("RLOCK.RELEASE"),
    };
    match request {
        Request::Info => {
            words.arg("HOLDERS").arg(10_000).arg("WAITERS").arg(0);
        }
        Request::Renew(token) => {
            words.arg(options.mode()).arg("LEASE").arg(millis(options.lease));
            words.arg("TOKEN").arg(token);
            options.add_acks(&mut words);
        }
        Request::Release(token, depth) => {
            words.arg(options.mode()).arg("TOKEN").arg(token).arg("DEPTH").arg(depth);
        }
        _ => {}
    }
    words
}
