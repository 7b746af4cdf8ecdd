//! What is asked on a shared connection, in the words of the server.

use redis::Cmd;

use crate::Options;
use crate::ask::millis;
use crate::machine::{Request, TICKET};

/// A request on a shared connection.
pub(crate) fn words(request: Request, key: &[u8], options: &Options, depth: u32) -> Cmd {
    if let Some(words) = options.together(request) {
        return words;
    }
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
    let mut words = match request {
        Request::Acquire | Request::Queue => options.words(key, depth),
        Request::Place => owned("RLOCK.PLACE"),
        Request::Cancel => owned("RLOCK.CANCEL"),
        Request::Info => named("RLOCK.INFO"),
        Request::Renew(_) => owned("RLOCK.RENEW"),
        Request::Release(..) => owned("RLOCK.RELEASE"),
    };
    match request {
        Request::Queue => {
            words.arg("QUEUE").arg(TICKET);
            options.add_most(&mut words);
        }
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
