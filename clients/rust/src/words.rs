//! The requests to the server, word by word.

use redis::{Cmd, RedisResult, Value};

use crate::machine::{Ms, Request};
use crate::one::One;
use crate::options::Options;
use crate::util::millis;

/// Seven days. A longer wait is sent without a limit.
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
        // An attempt that has no time limit at the server still ends by its own clock.
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

/// Begins a request for all keys.
fn named(name: &str, parts: &[One], owner: &str) -> Cmd {
    let mut words = redis::cmd(name);
    words.arg(parts.len());
    for one in parts {
        words.arg(&one.key);
    }
    words.arg(owner);
    words
}

impl Options {
    /// A request that does not wait.
    fn words(&self, key: &[u8], depth: u32) -> Cmd {
        if let Some(words) = self.together(Request::Acquire(None)) {
            return words;
        }
        let mut words = redis::cmd("RLOCK.ACQUIRE");
        words.arg(key).arg(&self.owner).arg(self.mode());
        if let Some(limit) = self.limit {
            words.arg("LIMIT").arg(limit);
        }
        words.arg("LEASE").arg(millis(self.lease)).arg("DEPTH").arg(depth);
        if self.upgrade {
            words.arg("UPGRADE");
        }
        self.add_acks(&mut words);
        words
    }
    /// The request for all keys at once, if there are several and the request has that form.
    pub(crate) fn together(&self, request: Request) -> Option<Cmd> {
        let parts = self.parts.as_ref()?;
        let mut words = match request {
            Request::Acquire(_) => named("RLOCK.MACQUIRE", parts, &self.owner),
            Request::Renew(_) => named("RLOCK.MRENEW", parts, &self.owner),
            Request::Release(..) => named("RLOCK.MRELEASE", parts, &self.owner),
            _ => return None,
        };
        match request {
            Request::Renew(token) => {
                words.arg("LEASE").arg(millis(self.lease)).arg("TOKEN").arg(token);
                self.add_acks(&mut words);
            }
            Request::Release(token, _) => {
                words.arg("TOKEN").arg(token);
            }
            _ => {
                words.arg("MODES");
                for one in parts.iter() {
                    match one.limit {
                        Some(count) => words.arg(count),
                        None => words.arg(if one.is_read { "READ" } else { "WRITE" }),
                    };
                }
                words.arg("LEASE").arg(millis(self.lease));
                self.add_acks(&mut words);
            }
        }
        Some(words)
    }

    /// Checks a reply: if fewer locks than all of them were released, the hold was lost.
    pub(crate) fn checked(&self, request: Request, reply: Value) -> RedisResult<Value> {
        match (&self.parts, request, &reply) {
            (Some(parts), Request::Release(..), Value::Int(count))
                if usize::try_from(*count).is_ok_and(|count| count < parts.len()) =>
            {
                let text = format!("only {count} of {} were held", parts.len());
                Err(redis::make_extension_error("NOTHELD".to_owned(), Some(text)))
            }
            _ => Ok(reply),
        }
    }
}
