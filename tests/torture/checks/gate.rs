//! A server's work outside commands obeys the rules of commands: while it lets nobody write (too
//! few replicas, or its disk fails), no waiter is granted, nothing is renewed, and a session's
//! connection is closed when its lease expires.

use std::collections::HashMap;

use super::{Hold, Violation};
use crate::clock::{ms, ns};
use crate::history::{Asked, History, Mark, Op, Reply};

/// Time for a reply to arrive or a connection to close, on a busy machine.
const LATE_NS: u64 = ns(500);

/// A time in which a server let nobody write, and whose server it was.
struct Shut {
    side: Option<u32>,
    from_ns: u64,
    to_ns: u64,
}

impl Shut {
    fn concerns(&self, op: &Op) -> bool {
        self.side.is_none_or(|side| op.actor % 2 == side)
    }

    /// Whether that time contains this one.
    fn covers(&self, from_ns: u64, to_ns: u64) -> bool {
        self.from_ns < from_ns && to_ns < self.to_ns
    }
}

pub fn check(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let shut = history.events.iter().filter_map(|event| match event.mark {
        Mark::Shut(side) => Some(Shut { side, from_ns: event.from_ns, to_ns: event.to_ns }),
        _ => None,
    });
    let shut: Vec<Shut> = shut.collect();
    if shut.is_empty() {
        return Vec::new();
    }
    let written = history.ops.iter().filter_map(|op| {
        let shut = shut.iter().find(|shut| shut.concerns(op) && shut.tells_of_a_write(op))?;
        Some(violation(shut, op, "by a server that lets nobody write"))
    });
    let answered = answered(history);
    let lasting = holds.iter().flat_map(|hold| {
        let found = shut.iter().filter_map(|shut| outlasts(history, &answered, hold, shut));
        found.collect::<Vec<_>>()
    });
    written.chain(lasting).collect()
}

impl Shut {
    fn tells_of_a_write(&self, op: &Op) -> bool {
        match (&op.asked, &op.reply) {
            (Asked::Acquire(_), Reply::Token(_)) => {
                self.covers(op.received_ns.saturating_sub(LATE_NS), op.received_ns)
            }
            (Asked::Renew { .. }, Reply::Number(1)) => self.covers(op.sent_ns, op.received_ns),
            _ => false,
        }
    }
}

/// The replies on each connection, in order.
type Answered<'a> = HashMap<(u32, u32), Vec<&'a Op>>;

fn answered(history: &History) -> Answered<'_> {
    let mut answered = Answered::new();
    for op in &history.ops {
        if !matches!(op.reply, Reply::Lost | Reply::Never) {
            answered.entry((op.actor, op.link)).or_default().push(op);
        }
    }
    answered
}

/// The last renewal was before the gate was shut, so a lease expires at most one lease later.
fn outlasts(
    history: &History,
    answered: &Answered<'_>,
    hold: &Hold,
    shut: &Shut,
) -> Option<Violation> {
    let grant = &history.ops[hold.ops[0]];
    let over_ns = shut.from_ns + ns(hold.lease_ms) + LATE_NS;
    if !shut.concerns(grant) || hold.granted_ns >= shut.to_ns {
        return None;
    }
    let ops = || hold.ops.iter().map(|place| &history.ops[*place]);
    let longer = ops().find(|op| match (&op.asked, &op.reply) {
        (Asked::Look { .. }, Reply::Number(ttl_ms)) => {
            shut.covers(op.sent_ns, op.received_ns) && op.sent_ns + ns(*ttl_ms as u64) > over_ns
        }
        _ => false,
    });
    if let Some(look) = longer {
        return Some(violation(shut, look, "a lease that was not renewed has become longer"));
    }
    let is_release = |op: &Op| matches!(op.asked, Asked::Release { .. });
    if hold.session.is_none() || ops().any(|op| is_release(op) && op.sent_ns < shut.to_ns) {
        return None;
    }
    let ops = answered.get(&(grant.actor, grant.link))?;
    let meanwhile = ops.partition_point(|op| op.received_ns < shut.to_ns);
    let open = ops[..meanwhile].last().filter(|op| op.sent_ns > over_ns)?;
    Some(violation(shut, open, "the connection of a session is open, whose lease is over"))
}

fn violation(shut: &Shut, op: &Op, what: &str) -> Violation {
    let since_ms = ms(op.received_ns.saturating_sub(shut.from_ns));
    let text = format!("{what}, for {since_ms:.0} ms: {op}");
    let (key, from_ns, to_ns) = (op.key.clone(), shut.from_ns, op.received_ns);
    Violation { checker: "gate", text, key, from_ns, to_ns }
}
