//! The sequential specification: one lock that does one thing at a time, and when each reply is
//! right, as behaviour.md says.

use super::requests::{Answer, Request};
use crate::checks::holds::CLOCKS_NS;
use crate::clock::ns;
use crate::history::{Ask, Asked, Mode, Reply};

/// A lock at one moment of one possible course.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Lock<'a> {
    holds: Vec<Held<'a>>,
    /// How many tokens were granted so far, of those that any reply has.
    granted: usize,
    /// The moment of the last change, at the earliest.
    from_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held<'a> {
    owner: &'a str,
    mode: Mode,
    /// `None`: no reply has had it yet.
    token: Option<i64>,
    depth: i64,
    /// When its lease may be over, and when it certainly is.
    lease_ns: (u64, u64),
    /// When its connection may have closed: then its lease does not matter. At the end of time if
    /// it is not tied to one.
    closes_ns: u64,
    wiped_ns: (u64, u64),
}

impl Held<'_> {
    fn may_end_ns(&self) -> u64 {
        self.lease_ns.0.min(self.wiped_ns.0)
    }

    /// Whether it may have ended by then.
    fn may_be_over(&self, at_ns: u64) -> bool {
        self.may_end_ns() <= at_ns
    }

    /// Whether it may exist at the moment of this request, which is not before it was sent.
    fn may_be_seen_by(&self, request: &Request<'_>) -> bool {
        request.op.sent_ns <= self.lease_ns.1.min(self.wiped_ns.1)
    }

    fn excludes(&self, owner: &str, mode: Mode) -> bool {
        self.owner != owner && (self.mode == Mode::Write || mode == Mode::Write)
    }
}

/// Who else there is when a request is refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct Others {
    /// Somebody else waits.
    pub wait: bool,
    /// Somebody else has a ticket, for which even a free lock may be reserved.
    pub have_ticket: bool,
}

impl<'a> Lock<'a> {
    /// The lock after this request, if its moment can be now, at `now_ns` at the latest, with this
    /// reply.
    pub fn after(&self, request: &Request<'a>, now_ns: u64) -> Option<Lock<'a>> {
        let owner = request.op.owner.as_str();
        let is_known = request.answer == Answer::Given;
        let mut next = self.clone();
        let is_right = match (&request.op.asked, &request.op.reply) {
            // The error is the one for a level that is too deep.
            (Asked::Acquire(ask), Reply::NotHeld | Reply::Error(_)) if is_known => {
                next.is_too_deep(request, ask, now_ns)
            }
            (Asked::Acquire(ask), _) => next.acquire(request, ask, now_ns),
            (Asked::Release { mode, down_to, token }, reply) => {
                match next.seen(request, *mode, *token) {
                    Some(place) if !is_known || *reply != Reply::NotHeld => {
                        let left = next.release(place, request, *down_to);
                        !is_known || *reply == Reply::Number(left)
                    }
                    _ if !is_known => false,
                    _ => {
                        let is_no_error = token.is_none() && down_to.is_some();
                        *reply == if is_no_error { Reply::Number(0) } else { Reply::NotHeld }
                            && next.lacks(owner, *mode, *token, now_ns)
                    }
                }
            }
            (Asked::Renew { mode, token, .. } | Asked::Look { mode, token }, Reply::NotHeld) => {
                next.lacks(owner, *mode, Some(*token), now_ns)
            }
            (Asked::Renew { mode, lease_ms, token, .. }, _) => {
                let held = next.seen(request, *mode, Some(*token));
                held.is_some_and(|place| next.extend(place, request, *lease_ms))
            }
            (Asked::Look { mode, token }, Reply::Number(ttl_ms)) => {
                let held = next.seen(request, *mode, Some(*token));
                held.is_some_and(|place| next.show(place, request, *ttl_ms as u64))
            }
            (Asked::Count { token }, Reply::Number(_)) => {
                next.seen(request, Mode::Write, Some(*token)).is_some()
            }
            (Asked::Count { token }, Reply::Nil) => {
                next.lacks(owner, Mode::Write, Some(*token), now_ns)
            }
            _ => false,
        };
        is_right.then_some(next)
    }

    /// Whether this request can be refused now.
    pub fn refuses(&self, request: &Request<'_>, others: Others, now_ns: u64) -> bool {
        let Some(ask) = request.ask() else { return false };
        let owner = request.op.owner.as_str();
        let certain = |mode| self.find(owner, mode).is_some_and(|h| !h.may_be_over(now_ns));
        if certain(ask.mode) || certain(Mode::Write) {
            return false;
        }
        if ask.mode == Mode::Write && !ask.upgrade && certain(Mode::Read) {
            return request.op.reply == Reply::Deadlock;
        }
        let mut seen = self.holds.iter().filter(|held| held.may_be_seen_by(request));
        let is_excluded = seen.clone().any(|held| held.excludes(owner, ask.mode));
        let readers = seen.clone().filter(|h| h.owner != owner && h.mode == Mode::Read).count();
        let is_full = ask.limit.is_some_and(|limit| readers >= limit as usize);
        // While it is neither held nor reserved, the first waiter would have been granted it.
        is_excluded || is_full || others.have_ticket || others.wait && seen.next().is_some()
    }

    /// This request changes the lock. One that changes nothing may as well come after those that it
    /// overlaps, even if it is the first to notice that a hold has ended by itself.
    fn change(&mut self, request: &Request<'_>) {
        self.from_ns = self.from_ns.max(request.op.sent_ns);
    }

    /// Drops holds of which no request is aware that was sent since then.
    pub fn forget(&mut self, since_ns: u64) {
        self.holds.retain(|held| held.lease_ns.1.min(held.wiped_ns.1) >= since_ns);
    }

    /// Whether this owner has more holds here than in the other one.
    pub fn has_more_of(&self, owner: &str, other: &Lock<'_>) -> bool {
        let count = |lock: &Lock<'_>| lock.holds.iter().filter(|h| h.owner == owner).count();
        count(self) > count(other)
    }

    fn find(&self, owner: &str, mode: Mode) -> Option<&Held<'a>> {
        self.holds.iter().find(|held| held.owner == owner && held.mode == mode)
    }

    /// The hold that the request names, if it can be aware of it.
    fn seen(&self, request: &Request<'_>, mode: Mode, token: Option<i64>) -> Option<usize> {
        self.holds.iter().position(|held| {
            let is_named = token.is_none() || held.token == token;
            let is_own = held.owner == request.op.owner && held.mode == mode;
            is_own && is_named && held.may_be_seen_by(request)
        })
    }

    /// Whether that hold does not exist, or has just ended by itself.
    fn lacks(&mut self, owner: &str, mode: Mode, token: Option<i64>, now_ns: u64) -> bool {
        let is_meant = |held: &Held<'_>| {
            let is_own = held.owner == owner && held.mode == mode;
            is_own && (token.is_none() || held.token == token)
        };
        self.end(is_meant, now_ns)
    }

    /// Ends all such holds, which must have ended by themselves.
    fn end(&mut self, is_meant: impl Fn(&Held<'_>) -> bool, now_ns: u64) -> bool {
        let meant = self.holds.iter().filter(|held| is_meant(held));
        let Some(last_ns) = meant.map(Held::may_end_ns).max() else { return true };
        self.from_ns = self.from_ns.max(last_ns);
        self.holds.retain(|held| !is_meant(held));
        last_ns <= now_ns
    }

    fn acquire(&mut self, request: &Request<'a>, ask: &Ask, now_ns: u64) -> bool {
        let token = request.token();
        let is_same =
            |held: &Held<'_>| token.is_none() || held.token.is_none() || held.token == token;
        let own = self.seen(request, ask.mode, None);
        if let Some(place) = own.filter(|place| is_same(&self.holds[*place])) {
            return self.enter(place, request, ask);
        }
        self.admits(request, ask, now_ns) && self.grant(request, ask)
    }

    /// Enters the hold that the owner has already.
    fn enter(&mut self, place: usize, request: &Request<'a>, ask: &Ask) -> bool {
        let held = &mut self.holds[place];
        if ask.depth.is_some_and(|depth| depth > held.depth + 1) {
            return false;
        }
        held.depth = ask.depth.map_or(held.depth + 1, |depth| depth.max(held.depth));
        let is_new = held.token.is_none() && request.token().is_some();
        held.token = held.token.or(request.token());
        (!is_new || self.count(request)) && self.extend(place, request, ask.lease_ms)
    }

    /// Whether nothing is in the way of a new hold; what may be over by itself is over then.
    fn admits(&mut self, request: &Request<'a>, ask: &Ask, now_ns: u64) -> bool {
        let owner = request.op.owner.as_str();
        if ask.depth.is_some_and(|depth| depth > 1) || !self.lacks(owner, ask.mode, None, now_ns) {
            return false;
        }
        let needs_no_read = ask.mode == Mode::Write && !ask.upgrade;
        if needs_no_read && !self.lacks(owner, Mode::Read, None, now_ns) {
            return false;
        }
        if !self.end(|held| held.excludes(owner, ask.mode), now_ns) {
            return false;
        }
        // Which of those that may be over is over stays open.
        let readers = self.holds.iter().filter(|held| held.mode == Mode::Read);
        let certain = readers.filter(|held| held.owner != owner && !held.may_be_over(now_ns));
        ask.limit.is_none_or(|limit| certain.count() < limit as usize)
    }

    fn grant(&mut self, request: &Request<'a>, ask: &Ask) -> bool {
        if request.token().is_some() && !self.count(request) {
            return false;
        }
        let (closes_ns, closed_ns) = if ask.session { request.closes_ns } else { (u64::MAX, 0) };
        let mut held = Held {
            owner: &request.op.owner,
            mode: ask.mode,
            token: request.token(),
            depth: 1,
            lease_ns: (0, closed_ns),
            closes_ns,
            wiped_ns: request.wiped_ns,
        };
        if ask.session {
            held.lease_ns = (request.unrenewed_ns.min(closes_ns), closed_ns + ns(ask.lease_ms));
        }
        // In the order of owners, so that equal locks are equal.
        let place = self.holds.partition_point(|h| (h.owner, h.mode) < (held.owner, held.mode));
        self.holds.insert(place, held);
        self.extend(place, request, ask.lease_ms)
    }

    /// Whether its token is the next one.
    fn count(&mut self, request: &Request<'_>) -> bool {
        self.granted += 1;
        request.rank == Some(self.granted)
    }

    /// Its lease begins anew, at some moment from now until the reply.
    fn extend(&mut self, place: usize, request: &Request<'_>, lease_ms: u64) -> bool {
        self.change(request);
        let from_ns = self.from_ns;
        let held = &mut self.holds[place];
        let (may_ns, must_ns) = &mut held.lease_ns;
        *must_ns = (*must_ns).max(request.until_ns + ns(lease_ms) + CLOCKS_NS);
        // What has no reply may be undone.
        if request.answer == Answer::Given {
            let lease_ns = (from_ns + ns(lease_ms)).saturating_sub(CLOCKS_NS);
            *may_ns = (*may_ns).max(lease_ns.min(held.closes_ns));
            held.wiped_ns = request.wiped_ns;
        }
        true
    }

    /// It lasts that long, as the server says.
    fn show(&mut self, place: usize, request: &Request<'_>, ttl_ms: u64) -> bool {
        self.change(request);
        let held = &mut self.holds[place];
        let lasts_ns = (request.op.sent_ns + ns(ttl_ms)).saturating_sub(CLOCKS_NS);
        let (may_ns, must_ns) = &mut held.lease_ns;
        *may_ns = (*may_ns).max(lasts_ns.min(held.closes_ns));
        held.wiped_ns = request.wiped_ns;
        lasts_ns <= *must_ns
    }

    /// Returns the depth that is left.
    fn release(&mut self, place: usize, request: &Request<'_>, down_to: Option<i64>) -> i64 {
        let depth = self.holds[place].depth;
        let left = down_to.map_or(depth - 1, |to| depth.min(to));
        if left != depth {
            self.change(request);
        }
        self.holds[place].depth = left;
        if left == 0 {
            self.holds.remove(place);
        }
        left
    }

    /// Whether a level that leaves out one is refused.
    fn is_too_deep(&mut self, request: &Request<'_>, ask: &Ask, now_ns: u64) -> bool {
        let Some(depth) = ask.depth else { return false };
        let owner = request.op.owner.as_str();
        match self.find(owner, ask.mode) {
            Some(held) if held.depth + 1 < depth => true,
            _ => depth > 1 && self.lacks(owner, ask.mode, None, now_ns),
        }
    }
}
