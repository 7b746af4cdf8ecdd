//! Short histories that begin with a free lock, checked against a model of forty lines: is there an
//! order of the operations, consistent with real time, in which every reply is right?

use std::collections::BTreeMap;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use super::Violation;
use crate::history::{Ask, Asked, History, Mode, Op, Reply};

/// The most operations in a window, because the search is exponential.
const OPS_MAX: usize = 30;
const PREFIX: &str = "window:";
/// The shortest lease, less the difference of the clocks: no lease expires within a shorter window.
const LEASE_NS_MIN: u64 = 990_000_000;

/// The number of windows, and the wrong ones.
pub fn windows(history: &History) -> (usize, Vec<Violation>) {
    let mut by_key: BTreeMap<&str, Vec<&Op>> = BTreeMap::new();
    for op in history.ops.iter().filter(|op| op.key.starts_with(PREFIX)) {
        if op.asked != Asked::Echo {
            by_key.entry(&op.key).or_default().push(op);
        }
    }
    let is_whole = |ops: &Vec<&Op>| ops.len() <= OPS_MAX && ops.iter().all(|op| is_known(op));
    let is_touched = |ops: &Vec<&Op>| {
        let (from_ns, to_ns) = (ops[0].sent_ns, ops.iter().map(|op| op.received_ns).max().unwrap());
        let mut ends = history.events.iter().filter(|event| event.mark.ends_holds());
        ends.any(|event| event.from_ns <= to_ns && event.to_ns >= from_ns)
    };
    // A client that was stopped meanwhile may have lost its lease.
    let is_short = |ops: &Vec<&Op>| {
        ops.iter().all(|op| op.received_ns.saturating_sub(ops[0].sent_ns) < LEASE_NS_MIN)
    };
    by_key.retain(|_, ops| is_whole(ops) && is_short(ops) && !is_touched(ops));
    let wrong = by_key.iter().filter(|(_, ops)| !is_linearizable(ops));
    let wrong = wrong.map(|(key, ops)| Violation {
        checker: "windows",
        text: format!("no order of these {} operations explains their replies", ops.len()),
        key: (*key).to_owned(),
        from_ns: ops[0].sent_ns,
        to_ns: ops.iter().map(|op| op.received_ns).max().unwrap(),
    });
    (by_key.len(), wrong.collect())
}

fn is_known(op: &Op) -> bool {
    matches!(
        (&op.asked, &op.reply),
        (Asked::Acquire(_), Reply::Token(_) | Reply::Nil | Reply::Deadlock)
            | (Asked::Release { .. }, Reply::Number(_) | Reply::NotHeld)
    )
}

fn is_linearizable(ops: &[&Op]) -> bool {
    let mut moments: Vec<(u64, bool, &Op)> = Vec::new();
    for op in ops {
        moments.push((op.sent_ns, false, op));
        moments.push((op.received_ns, true, op));
    }
    // At equal times the request comes first, since their order is unknown.
    moments.sort_by_key(|(at_ns, is_reply, _)| (*at_ns, *is_reply));
    let mut tester = LinearizabilityTester::new(PlainLock::default());
    for (_, is_reply, op) in moments {
        let is_history = if is_reply {
            tester.on_return(op.actor, op.reply.clone()).is_ok()
        } else {
            tester.on_invoke(op.actor, (op.owner.clone(), op.asked.clone())).is_ok()
        };
        assert!(is_history, "one actor asked two things at once");
    }
    tester.is_consistent()
}

/// The model: who holds, and the last token. It does not know who waits, so it allows a refused
/// READ whenever another owner reads.
#[derive(Clone, Debug, Default)]
struct PlainLock {
    holds: BTreeMap<(String, Mode), (i64, i64)>,
    last_token: i64,
}

impl PlainLock {
    fn is_in_the_way(&self, owner: &str, mode: Mode) -> bool {
        let others = self.holds.keys().filter(|(other, _)| other != owner);
        others.into_iter().any(|(_, held)| mode == Mode::Write || *held == Mode::Write)
    }

    /// All permits are taken, by others, and this owner has none.
    fn is_full(&self, owner: &str, limit: u32) -> bool {
        let is_in = self.holds.keys().any(|(holder, _)| holder == owner);
        let readers = self.holds.keys().filter(|(_, mode)| *mode == Mode::Read);
        !is_in && readers.count() >= limit as usize
    }

    fn others_hold(&self, owner: &str) -> bool {
        self.holds.keys().any(|(other, _)| other != owner)
    }

    fn holds(&self, owner: &str, mode: Mode) -> Option<&(i64, i64)> {
        self.holds.get(&(owner.to_owned(), mode))
    }

    fn acquires(&mut self, owner: &str, ask: &Ask, reply: &Reply) -> bool {
        let mode = ask.mode;
        let own = self.holds(owner, mode).copied();
        let waits_for_itself =
            mode == Mode::Write && own.is_none() && self.holds(owner, Mode::Read).is_some();
        let has_write = self.holds(owner, Mode::Write).is_some();
        let next = match (reply, own) {
            (Reply::Deadlock, _) => return waits_for_itself,
            (Reply::Nil, own) => {
                return own.is_none() && !has_write && self.others_hold(owner) && !waits_for_itself;
            }
            (Reply::Token(token), Some((own, depth))) if *token == own => (own, depth + 1),
            (Reply::Token(token), None) if *token > self.last_token => (*token, 1),
            _ => return false,
        };
        let is_full = ask.limit.is_some_and(|limit| self.is_full(owner, limit));
        if waits_for_itself || self.is_in_the_way(owner, mode) || is_full {
            return false;
        }
        self.last_token = self.last_token.max(next.0);
        self.holds.insert((owner.to_owned(), mode), next);
        true
    }

    fn releases(
        &mut self,
        owner: &str,
        mode: Mode,
        token: Option<i64>,
        down_to: Option<i64>,
        reply: &Reply,
    ) -> bool {
        let own = self.holds(owner, mode).copied();
        let own = own.filter(|(held, _)| token.is_none_or(|token| token == *held));
        let Some((held, depth)) = own else {
            let is_no_error = token.is_none() && down_to.is_some();
            return *reply == if is_no_error { Reply::Number(0) } else { Reply::NotHeld };
        };
        let left = down_to.map_or(depth - 1, |to| depth.min(to));
        match left {
            0 => self.holds.remove(&(owner.to_owned(), mode)),
            _ => self.holds.insert((owner.to_owned(), mode), (held, left)),
        };
        *reply == Reply::Number(left)
    }
}

impl SequentialSpec for PlainLock {
    type Op = (String, Asked);
    type Ret = Reply;

    /// Only needed for operations without a reply, of which a window has none.
    fn invoke(&mut self, _: &Self::Op) -> Reply {
        Reply::Lost
    }

    fn is_valid_step(&mut self, op: &Self::Op, reply: &Reply) -> bool {
        let (owner, asked) = op;
        match asked {
            Asked::Acquire(ask) => self.acquires(owner, ask, reply),
            Asked::Release { mode, down_to, token } => {
                self.releases(owner, *mode, *token, *down_to, reply)
            }
            _ => false,
        }
    }
}
