//! Linearizability of every lock over the whole run: is there a moment for each request, between
//! its sending and its reply, such that a lock that does one thing at a time (`lock`) gives all
//! these replies?
//!
//! The algorithm is just-in-time linearization, by Wing and Gong ("Testing and verifying concurrent
//! objects", 1993), in the form of Lowe ("Testing for linearizability", 2017), for each lock by
//! itself (Herlihy and Wing: linearizability is local). It goes through the requests and replies in
//! the order of time, and keeps every possible *course* of the lock so far. A request gets its
//! moment no earlier than a reply demands. Three things keep the courses few:
//!
//! - Tokens are witnesses of the order of grants: only the next greater one can be granted.
//! - A reply that changes nothing, such as nil, is explained by the first state that fits.
//! - Of two requests that do not need each other's effect, only one order is followed.
//!
//! So the time is about linear in the number of requests, and it is bounded. A lock with too many
//! courses is not judged, and counted as such: if ten permits are released at one time and others
//! wait, any of these releases may have let in any of those.
//!
//! What has no reply may have taken effect at any time from its request until its connection was
//! certainly closed, or never; a course in which it has is followed only where a reply needs that
//! (otherwise it still can later). A lease, a closed connection and a deleted key end a hold at an
//! unknown moment of a known period. The order in which waiters are served is not part of the
//! specification, and neither is how soon: the checkers `order` and `progress` see these.
//!
//! Nothing is judged where a primary may lose what it has done, since no single lock is promised
//! there.

mod course;
mod lock;
mod requests;

use std::collections::BTreeMap;
use std::fmt;

use course::Courses;
use requests::{Answer, Request, Setting};

use super::Violation;
use crate::history::{History, Op};

/// How much was judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// Locks whose replies are all explained.
    pub locks: usize,
    /// The requests with an explained reply, of these locks.
    pub operations: usize,
    /// Requests of these locks that may have taken effect, or not.
    pub unanswered: usize,
    /// Locks with too many courses.
    pub unjudged: usize,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Extent { locks, operations, unanswered, unjudged } = self;
        write!(
            f,
            "{operations} operations of {locks} locks linearizable over the whole run \
             ({unanswered} without a reply), {unjudged} locks not judged"
        )
    }
}

impl Extent {
    pub fn add(&mut self, other: Extent) {
        self.locks += other.locks;
        self.operations += other.operations;
        self.unanswered += other.unanswered;
        self.unjudged += other.unjudged;
    }
}

/// Judges each lock. The violations are one for each lock that cannot be explained.
pub fn linear(history: &History) -> (Extent, Vec<Violation>) {
    let (mut extent, mut wrong) = (Extent::default(), Vec::new());
    if !history.promise.holds_at_once {
        return (extent, wrong);
    }
    let setting = Setting::of(history);
    let mut by_key: BTreeMap<&str, Vec<Request<'_>>> = BTreeMap::new();
    for op in &history.ops {
        if let Some(request) = setting.request(op) {
            by_key.entry(&op.key).or_default().push(request);
        }
    }
    for (key, mut requests) in by_key {
        requests.sort_by_key(|request| request.op.sent_ns);
        requests::rank(&mut requests);
        match judge(&requests) {
            Verdict::Explained => {
                let count = |answer| requests.iter().filter(|r| r.answer == answer).count();
                let (operations, unanswered) = (count(Answer::Given), count(Answer::Unknown));
                extent.add(Extent { locks: 1, operations, unanswered, unjudged: 0 });
            }
            Verdict::TooManyCourses => extent.unjudged += 1,
            Verdict::Unexplained(op) => wrong.push(violation(key, op)),
        }
    }
    (extent, wrong)
}

enum Verdict<'a> {
    Explained,
    /// No order of the requests explains this reply.
    Unexplained(&'a Op),
    TooManyCourses,
}

fn violation(key: &str, op: &Op) -> Violation {
    let text = format!("no order of the requests explains this reply: {op}");
    let (from_ns, to_ns) = (op.sent_ns, op.received_ns);
    Violation { checker: "linear", text, key: key.to_owned(), from_ns, to_ns }
}

fn judge<'a>(requests: &[Request<'a>]) -> Verdict<'a> {
    let mut moments: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * requests.len());
    for (place, request) in requests.iter().enumerate() {
        moments.push((request.op.sent_ns, false, place));
        moments.push((request.until_ns, true, place));
    }
    // At equal times the request comes first, since their order is unknown.
    moments.sort_unstable();
    let mut courses = Courses::of(requests);
    for (_, is_end, place) in moments {
        if !is_end {
            courses.sent(place);
        } else if !courses.ended(place) {
            return match courses.are_too_many {
                true => Verdict::TooManyCourses,
                false => Verdict::Unexplained(requests[place].op),
            };
        }
    }
    Verdict::Explained
}
