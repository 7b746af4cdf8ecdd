//! A granted hold stays: while it is proven, no reply to its owner contradicts it, re-entry keeps
//! the token, and the depth is the number of levels acquired and not released.

use super::{Hold, Violation};
use crate::history::{Asked, History, Op, Reply};

/// The error for `DEPTH n` of an owner that is not at n - 1: its hold has ended.
pub const TOO_DEEP: &str = "ERR DEPTH must be at most the current depth + 1";

pub fn check(history: &History, holds: &[Hold]) -> Vec<Violation> {
    holds.iter().filter(|hold| hold.counts).flat_map(|hold| check_hold(history, hold)).collect()
}

fn check_hold(history: &History, hold: &Hold) -> Vec<Violation> {
    let mut found = Vec::new();
    let is_first = |op: &Op| op.sent_ns == hold.asked_ns;
    let mut depth = is_first(&history.ops[hold.ops[0]]).then_some(0);
    // By its owner: certainly or, if the reply was lost, perhaps.
    let (mut is_let_go, mut may_be_let_go) = (false, false);
    for op in hold.ops.iter().map(|place| &history.ops[*place]) {
        // With failover a released hold may come back, and a level may be lost.
        let is_exact = history.promise.holds_at_once;
        let is_certain =
            hold.from_ns <= op.sent_ns && op.received_ns < hold.lasts_ns && !may_be_let_go;
        let text = match (&op.asked, &op.reply) {
            (Asked::Acquire(_), Reply::Error(error)) if error.starts_with(TOO_DEEP) => {
                is_certain.then(|| "its depth was forgotten".to_owned())
            }
            (asked, Reply::Lost | Reply::Never | Reply::Error(_)) => {
                depth = None;
                may_be_let_go |= matches!(asked, Asked::Release { .. });
                None
            }
            (Asked::Acquire(ask), Reply::Token(token)) if *token == hold.token => {
                depth = depth.map(|d| ask.depth.map_or(d + 1, |wanted| d.max(wanted)));
                may_be_let_go = false;
                (is_exact && is_let_go).then(|| "its token was given again".to_owned())
            }
            (Asked::Acquire(_), Reply::Token(token)) if is_certain => {
                Some(format!("token {token} was given to it as well"))
            }
            (Asked::Acquire(_), Reply::NotHeld) => {
                (is_let_go, may_be_let_go) = (true, true);
                is_certain.then(|| "entering it deeper was refused".to_owned())
            }
            (Asked::Acquire(_), Reply::Nil) if is_certain => {
                Some("entering again was refused".to_owned())
            }
            (Asked::Release { down_to, .. }, Reply::Number(left)) => {
                let expected = depth.map(|d| down_to.map_or(d - 1, |to| d.min(to)));
                depth = Some(*left);
                let is_wrong = expected.is_some_and(|expected| expected != *left);
                let is_wrong = is_exact && is_certain && is_wrong;
                is_let_go |= *left == 0;
                may_be_let_go = is_let_go;
                is_wrong.then(|| format!("depth {left} is left, not {expected:?}"))
            }
            (Asked::Renew { .. }, Reply::Number(1)) | (Asked::Look { .. }, Reply::Number(_)) => {
                may_be_let_go = is_let_go;
                None
            }
            (Asked::Release { .. } | Asked::Renew { .. } | Asked::Look { .. }, Reply::NotHeld) => {
                (is_let_go, may_be_let_go) = (true, true);
                is_certain.then(|| "it was lost".to_owned())
            }
            _ => None,
        };
        found.extend(text.map(|text| violation(hold, op, &text)));
    }
    found
}

fn violation(hold: &Hold, op: &Op, text: &str) -> Violation {
    let text = format!("{text}: {} {:?} by token {}", hold.owner, hold.mode, hold.token);
    let (from_ns, to_ns) = (hold.asked_ns, op.received_ns);
    Violation { checker: "kept", text, key: hold.key.clone(), from_ns, to_ns }
}
