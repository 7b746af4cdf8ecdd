//! First come, first served: a waiter that was seen in the queue before another one asked is
//! granted first. The contract has two exceptions, which are left out: upgrades, which go to the
//! front, and a reader's ticket, behind which readers enter during its turn.

use std::collections::HashMap;

use super::{Hold, Violation};
use crate::clock::ns;
use crate::history::{Asked, History, Mode, Op, Reply, Wait};

pub fn check(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let mut seen: HashMap<(&str, &str), Vec<&Op>> = HashMap::new();
    for op in &history.ops {
        if let (Asked::Info, Reply::Waiters(owners)) = (&op.asked, &op.reply) {
            for owner in owners {
                seen.entry((&op.key, owner)).or_default().push(op);
            }
        }
    }
    let mut by_key: HashMap<&str, Vec<Granted<'_>>> = HashMap::new();
    for hold in holds.iter().filter(|hold| hold.counts) {
        if let Some(granted) = Granted::of(history, &seen, hold) {
            by_key.entry(&hold.key).or_default().push(granted);
        }
    }
    by_key.into_values().flat_map(check_key).collect()
}

struct Granted<'a> {
    hold: &'a Hold,
    /// It did not ask before this time.
    came_ns: u64,
    /// At this time it was in the queue, where it stayed.
    queued_ns: Option<u64>,
}

impl<'a> Granted<'a> {
    fn of(
        history: &History,
        seen: &HashMap<(&str, &str), Vec<&Op>>,
        hold: &'a Hold,
    ) -> Option<Granted<'a>> {
        let grant = &history.ops[hold.ops[0]];
        let Asked::Acquire(ask) = grant.asked else { return None };
        if ask.upgrade {
            return None;
        }
        let stay = Stay::until(history, hold);
        let sightings = seen.get(&(hold.key.as_str(), hold.owner.as_str()));
        let sightings = sightings.map(Vec::as_slice).unwrap_or_default();
        let after = sightings.partition_point(|info| info.sent_ns < stay.came_ns);
        let first = sightings.get(after).map(|info| info.received_ns);
        let queued_ns = first.filter(|seen_ns| {
            *seen_ns < grant.received_ns
                && stay.is_unbroken
                && !(matches!(ask.wait, Wait::Queue(_)) && hold.mode == Mode::Read)
                // Its turn may have come while it did not listen.
                && !matches!(ask.wait, Wait::Tell { again: true, .. })
                && !history.lost_queues(*seen_ns, grant.received_ns)
        });
        Some(Granted { hold, came_ns: stay.came_ns, queued_ns })
    }
}

/// A wait. A ticket's wait may have several requests.
struct Stay {
    came_ns: u64,
    /// Whether it always asked again before its ticket could end.
    is_unbroken: bool,
}

impl Stay {
    fn until(history: &History, hold: &Hold) -> Stay {
        let grant = &history.ops[hold.ops[0]];
        let mut stay = Stay { came_ns: hold.asked_ns, is_unbroken: hold.asked_ns == grant.sent_ns };
        let mut next_ns = grant.received_ns;
        for op in hold.polls.iter().rev().map(|place| &history.ops[*place]) {
            let Asked::Acquire(ask) = op.asked else { break };
            let Wait::Queue(queue_ms) = ask.wait else { break };
            stay.came_ns = op.sent_ns;
            stay.is_unbroken &= next_ns < op.sent_ns + ns(queue_ms);
            next_ns = op.received_ns;
        }
        stay
    }
}

fn check_key(mut granted: Vec<Granted<'_>>) -> Vec<Violation> {
    let mut found = Vec::new();
    // From the last grant to the first: which later ones had queued before this one asked?
    granted.sort_by_key(|granted| std::cmp::Reverse(granted.hold.token));
    let mut passed: Option<(u64, &Hold)> = None;
    for Granted { hold, came_ns, queued_ns } in granted {
        if let Some((seen_ns, other)) = passed
            && seen_ns < came_ns
        {
            let text = format!(
                "{} came after {} had queued, and was granted before: {} < {}",
                hold.owner, other.owner, hold.token, other.token
            );
            let (from_ns, to_ns) = (other.asked_ns, other.granted_ns);
            let key = hold.key.clone();
            found.push(Violation { checker: "order", text, key, from_ns, to_ns });
        }
        if let Some(seen_ns) = queued_ns
            && passed.is_none_or(|(earliest_ns, _)| seen_ns < earliest_ns)
        {
            passed = Some((seen_ns, hold));
        }
    }
    found
}
