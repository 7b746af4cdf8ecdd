//! The counter behind RLOCK.CHECK: every count is the next number of its key, and no later count
//! has a smaller token.

use std::collections::HashMap;

use super::{Hold, Violation};
use crate::history::{Asked, History, Op, Reply};

pub fn check(history: &History, _: &[Hold]) -> Vec<Violation> {
    let mut by_key: HashMap<&str, Vec<(i64, i64, &Op)>> = HashMap::new();
    for op in &history.ops {
        if let (Asked::Count { token }, Reply::Number(number)) = (&op.asked, &op.reply) {
            by_key.entry(&op.key).or_default().push((*number, *token, op));
        }
    }
    by_key.into_values().flat_map(check_key).collect()
}

fn check_key(mut counts: Vec<(i64, i64, &Op)>) -> Vec<Violation> {
    counts.sort_by_key(|(number, token, _)| (*number, *token));
    let wrong = counts.windows(2).filter_map(|pair| {
        let ((number, token, op), (next_number, next_token, next)) = (pair[0], pair[1]);
        let text = if next_number == number {
            format!("{number} was counted twice")
        } else if next_token < token {
            format!("{next_number} was counted by token {next_token}, {number} by {token} before")
        } else if next.received_ns < op.sent_ns {
            format!("{next_number} was counted before {number}")
        } else {
            return None;
        };
        let (from_ns, to_ns) = (op.sent_ns.min(next.sent_ns), op.received_ns.max(next.received_ns));
        Some(Violation { checker: "counter", text, key: op.key.clone(), from_ns, to_ns })
    });
    wrong.collect()
}
