//! The possible courses of one lock.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::lock::{Lock, Others};
use super::requests::{Answer, Request};
use crate::history::Asked;

/// More than a lock ever needs.
const COURSES_MAX: usize = 5000;

/// The runs of `make torture` take at most 3.3 steps for each request of a lock.
const STEPS_EACH: usize = 50;

/// One possible course so far: the lock now, and which of the requests without a reply so far had
/// their moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Course<'a> {
    lock: Lock<'a>,
    /// In the order of their places.
    done: Vec<usize>,
}

impl Course<'_> {
    fn has_done(&self, place: usize) -> bool {
        self.done.binary_search(&place).is_ok()
    }

    fn mark(&mut self, place: usize) {
        if let Err(at) = self.done.binary_search(&place) {
            self.done.insert(at, place);
        }
    }

    fn unmark(&mut self, place: usize) {
        if let Ok(at) = self.done.binary_search(&place) {
            self.done.remove(at);
        }
    }
}

/// All of them.
pub struct Courses<'a, 'r> {
    requests: &'r [Request<'a>],
    possible: Vec<Course<'a>>,
    /// What was sent and has not ended: by what their reply shows.
    given: BTreeSet<usize>,
    unknown: BTreeSet<usize>,
    waiting: BTreeSet<usize>,
    /// Until when owners have tickets.
    tickets: HashMap<&'a str, u64>,
    /// How many more steps may be taken.
    steps_left: usize,
    pub are_too_many: bool,
}

/// A course on the way to the moment of one request.
struct Step<'a> {
    course: Course<'a>,
    /// The request could have had its moment before, with the same outcome.
    is_late: bool,
}

impl<'a, 'r> Courses<'a, 'r> {
    pub fn of(requests: &'r [Request<'a>]) -> Courses<'a, 'r> {
        let [given, unknown, waiting] = [(); 3].map(|()| BTreeSet::new());
        let (possible, tickets) = (vec![Course::default()], HashMap::new());
        let steps_left = COURSES_MAX + STEPS_EACH * requests.len();
        let are_too_many = false;
        Courses { requests, possible, given, unknown, waiting, tickets, steps_left, are_too_many }
    }

    /// A request was sent.
    pub fn sent(&mut self, place: usize) {
        let request = &self.requests[place];
        match request.answer {
            Answer::Given => self.given.insert(place),
            Answer::Unknown => self.unknown.insert(place),
            Answer::NoEffect => false,
        };
        if request.waits() {
            self.waiting.insert(place);
        }
        if let Some(until_ns) = request.ticket_until_ns() {
            let ends_ns = self.tickets.entry(&request.op.owner).or_default();
            *ends_ns = until_ns.max(*ends_ns);
        }
        if request.waits() || request.is_refused() {
            let mut possible = std::mem::take(&mut self.possible);
            for course in &mut possible {
                self.settle(course, request.op.sent_ns);
            }
            self.possible = possible;
        }
    }

    /// A reply came, or a request without one can have no more effect. Returns whether a course is
    /// left.
    pub fn ended(&mut self, place: usize) -> bool {
        let request = &self.requests[place];
        if request.answer == Answer::Given {
            let before = std::mem::take(&mut self.possible);
            let after = before.into_iter().flat_map(|course| self.reach(course, place));
            let after: HashSet<Course<'a>> = after.collect();
            self.possible = after.into_iter().collect();
            self.are_too_many |= self.possible.len() > COURSES_MAX;
        }
        self.given.remove(&place);
        self.waiting.remove(&place);
        if self.unknown.remove(&place) {
            self.possible.iter_mut().for_each(|course| course.unmark(place));
        }
        if request.ends_ticket() {
            self.tickets.remove(request.op.owner.as_str());
        }
        self.forget(request.until_ns);
        !self.possible.is_empty() && !self.are_too_many
    }

    /// Drops what no request can be aware of anymore.
    fn forget(&mut self, now_ns: u64) {
        let open = self.given.first().into_iter().chain(self.unknown.first());
        let since_ns = open.map(|place| self.requests[*place].op.sent_ns).min();
        let since_ns = since_ns.unwrap_or(now_ns);
        self.possible.iter_mut().for_each(|course| course.lock.forget(since_ns));
        self.tickets.retain(|_, until_ns| *until_ns >= since_ns);
    }

    /// The courses in which this request, whose reply has come, had its moment.
    fn reach(&mut self, mut course: Course<'a>, place: usize) -> Vec<Course<'a>> {
        if course.has_done(place) {
            course.unmark(place);
            return vec![course];
        }
        let found = self.lead(course.clone(), place, false);
        if found.is_empty() { self.lead(course, place, true) } else { found }
    }

    /// The same. With `unknown`, requests without a reply may take effect first. Those of an owner
    /// whose hold has to end by itself may do so in any case: its lease may have begun anew by
    /// them.
    fn lead(&mut self, mut course: Course<'a>, place: usize, unknown: bool) -> Vec<Course<'a>> {
        let now_ns = self.requests[place].op.received_ns;
        self.settle(&mut course, now_ns);
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let mut steps = vec![Step { course, is_late: false }];
        while let Some(Step { course, is_late }) = steps.pop() {
            if !seen.insert(course.clone()) {
                continue;
            }
            self.steps_left = self.steps_left.saturating_sub(1);
            if seen.len() > COURSES_MAX || self.steps_left == 0 {
                self.are_too_many = true;
                return Vec::new();
            }
            let outcome = self.outcome(&course, place, now_ns);
            if let Some(lock) = outcome.clone().filter(|_| !is_late) {
                let mut next = Course { lock, ..course.clone() };
                self.settle(&mut next, now_ns);
                next.unmark(place);
                found.push(next);
            }
            let unknown = unknown && outcome.is_none();
            for other in self.next(&course, place, unknown, outcome.as_ref()) {
                let Some(lock) = course.lock.after(&self.requests[other], now_ns) else { continue };
                let mut next = Course { lock, ..course.clone() };
                next.mark(other);
                let is_news = self.settle(&mut next, now_ns)
                    || self.is_bound(&course, outcome.as_ref(), place, other);
                let is_late = (is_late || outcome.is_some()) && !is_news;
                steps.push(Step { course: next, is_late });
            }
        }
        found
    }

    /// The lock after this request, if it can have its moment now.
    fn outcome(&self, course: &Course<'a>, place: usize, now_ns: u64) -> Option<Lock<'a>> {
        let request = &self.requests[place];
        if !request.is_refused() {
            return course.lock.after(request, now_ns);
        }
        // `settle` has marked it if it could.
        course.has_done(place).then(|| course.lock.clone())
    }

    /// Which other requests may have their moment before the one at `place`. Left out is what helps
    /// neither it nor, if it is possible already, those that still need an explanation.
    fn next(
        &self,
        course: &Course<'a>,
        place: usize,
        unknown: bool,
        outcome: Option<&Lock<'a>>,
    ) -> Vec<usize> {
        let request = &self.requests[place];
        let is_open = |other: &&usize| **other != place && !course.has_done(**other);
        let open = || self.given.iter().filter(is_open);
        let needs_others = outcome.is_none() && request.ask().is_some()
            || open().any(|other| self.requests[*other].is_refused());
        let is_of_use = |other: &&usize| {
            let of = &self.requests[**other];
            let may_help = match of.op.asked {
                Asked::Release { .. } => true,
                // A grant that nobody knows of lets nobody in.
                Asked::Acquire(_) => of.answer == Answer::Given || request.is_refused(),
                _ => false,
            };
            let is_bound = || self.is_bound(course, outcome, place, **other);
            !of.is_refused() && (needs_others && may_help || is_bound())
        };
        let is_followed = |other: &&usize| {
            unknown || self.ends_hold_of(&self.requests[**other].op.owner, course, outcome)
        };
        let unknown = self.unknown.iter().filter(is_open).filter(is_followed);
        open().chain(unknown).filter(is_of_use).copied().collect()
    }

    /// Whether it matters which of the two is first, even if the one at `place` is possible now:
    /// both have the same owner, or the one at `place` is possible only if a hold of the other's
    /// owner ends by itself.
    fn is_bound(
        &self,
        course: &Course<'a>,
        outcome: Option<&Lock<'a>>,
        place: usize,
        other: usize,
    ) -> bool {
        let owner = self.requests[other].op.owner.as_str();
        self.requests[place].op.owner == owner || self.ends_hold_of(owner, course, outcome)
    }

    /// Whether a hold of this owner has to end by itself for this outcome.
    fn ends_hold_of(&self, owner: &str, course: &Course<'a>, outcome: Option<&Lock<'a>>) -> bool {
        outcome.is_some_and(|after| course.lock.has_more_of(owner, after))
    }

    /// Marks the refused requests that this lock explains. Returns whether there were any.
    fn settle(&self, course: &mut Course<'a>, now_ns: u64) -> bool {
        let refused = self.given.iter().filter(|place| self.requests[**place].is_refused());
        let explained = refused.filter(|place| {
            let request = &self.requests[**place];
            let others = || self.others(course, request);
            !course.has_done(**place) && course.lock.refuses(request, others(), now_ns)
        });
        let explained: Vec<usize> = explained.copied().collect();
        explained.iter().for_each(|place| course.mark(*place));
        !explained.is_empty()
    }

    fn others(&self, course: &Course<'a>, request: &Request<'_>) -> Others {
        let owner = request.op.owner.as_str();
        let mut tickets = self.tickets.iter();
        let have_ticket =
            tickets.any(|(other, until_ns)| *other != owner && *until_ns >= request.op.sent_ns);
        let mut waiting = self.waiting.iter().filter(|place| {
            let other = &self.requests[**place];
            // A granted request waits no longer; a refused one waits until its reply.
            other.op.owner != owner && (other.is_refused() || !course.has_done(**place))
        });
        Others { wait: have_ticket || waiting.next().is_some(), have_ticket }
    }
}
