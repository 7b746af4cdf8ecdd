//! Every request gets exactly one valid reply: none is missing, none is extra, no error and no
//! closed connection is without a cause, no nil comes early, and no owner without a hold gets a
//! deadlock.

use std::collections::HashMap;

use super::kept::TOO_DEEP;
use super::{Hold, Violation};
use crate::clock::{ms, ns};
use crate::history::{Asked, History, Op, Reply, Wait};

/// The server measures a wait by the wall clock, which may be adjusted against ours.
const EARLY_NS: u64 = ns(2);

pub fn check(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let mut of_owner: HashMap<&str, Vec<&Hold>> = HashMap::new();
    for hold in holds {
        of_owner.entry(&hold.owner).or_default().push(hold);
    }
    let violation = |op: &Op| {
        let holds = of_owner.get(op.owner.as_str()).map(Vec::as_slice).unwrap_or_default();
        let text = fault_of(history, op, holds)?;
        let text = format!("{text}: {op}");
        let (from_ns, to_ns) = (op.sent_ns, op.received_ns);
        Some(Violation { checker: "replies", text, key: op.key.clone(), from_ns, to_ns })
    };
    history.ops.iter().filter_map(violation).collect()
}

fn fault_of(history: &History, op: &Op, holds_of_owner: &[&Hold]) -> Option<String> {
    let promise = &history.promise;
    match (&op.asked, &op.reply) {
        (_, Reply::Never) => Some("no reply".to_owned()),
        (Asked::HangUp, _) => None,
        (Asked::Acquire(ask), Reply::Error(error))
            if ask.depth > Some(1) && error.starts_with(TOO_DEEP) =>
        {
            None // `kept` knows whether it was
        }
        (_, Reply::Error(error)) => {
            (!promise.excuses(error)).then(|| "an error without a cause".to_owned())
        }
        (asked, Reply::Lost) => {
            let is_own_doing = matches!(asked, Asked::Acquire(_)) && hung_up(history, op);
            let is_allowed = promise.may_close || is_own_doing;
            (!is_allowed).then(|| "the connection ended without a cause".to_owned())
        }
        (Asked::Acquire(ask), Reply::Nil) if !promise.may_unblock => match ask.wait {
            Wait::Block(0) => Some("nil to a wait for ever".to_owned()),
            Wait::Block(wait_ms) | Wait::Tell { ms: wait_ms, again: false } => {
                let waited_ns = op.received_ns - op.sent_ns;
                let is_early = waited_ns + EARLY_NS < ns(wait_ms);
                is_early.then(|| format!("nil after {:.1} of {wait_ms} ms", ms(waited_ns)))
            }
            _ => None,
        },
        (Asked::Acquire(_), Reply::Deadlock) => {
            let may_hold = holds_of_owner
                .iter()
                .any(|hold| hold.asked_ns < op.received_ns && hold.over_ns > op.sent_ns);
            (!may_hold).then(|| "a deadlock of one who holds nothing".to_owned())
        }
        (Asked::Acquire(_), Reply::Token(_) | Reply::Nil) => None,
        // The checker `kept` knows whether it held the lock.
        (Asked::Acquire(ask), Reply::NotHeld) if ask.depth > Some(1) => None,
        (Asked::Renew { .. }, Reply::Number(1) | Reply::NotHeld) => None,
        (Asked::Look { .. }, Reply::Number(1..) | Reply::NotHeld) => None,
        (Asked::Release { .. }, Reply::Number(0..) | Reply::NotHeld) => None,
        (Asked::Cancel, Reply::Number(0 | 1)) => None,
        (Asked::Count { .. }, Reply::Number(1..) | Reply::Nil) => None,
        (Asked::Echo, Reply::Number(_)) | (Asked::Info, Reply::Waiters(_)) => None,
        _ => Some("not a reply to that".to_owned()),
    }
}

/// Whether the client closed the connection itself.
fn hung_up(history: &History, op: &Op) -> bool {
    let at = history.ops.partition_point(|other| other.sent_ns < op.received_ns);
    let mut next = history.ops[at..].iter().filter(|other| other.actor == op.actor);
    next.next().is_some_and(|next| next.asked == Asked::HangUp)
}
