//! Which holds there were, and when each one is certain: from the reply that granted it until its
//! release was sent, its lease expired (counted from the request, so the server's count ends
//! later), or something ended it.

use std::collections::{BTreeMap, HashMap};

use crate::clock::ns;
use crate::history::{Ask, Asked, Event, History, Mark, Mode, Op, Reply, Wait};

/// The server counts whole milliseconds, and its clock is not ours.
pub const CLOCKS_NS: u64 = ns(3);

/// By then a connection that lost its session or its client is closed, on a busy machine too.
pub const CLOSED_WITHIN_NS: u64 = ns(2000);

#[derive(Debug, Clone)]
pub struct Hold {
    pub key: String,
    pub owner: String,
    pub mode: Mode,
    pub token: i64,
    /// The hold did not exist before.
    pub asked_ns: u64,
    /// When its owner got the reply.
    pub granted_ns: u64,
    /// It is certain from here,
    pub from_ns: u64,
    /// until here (if it never was, no later than `from_ns`).
    pub until_ns: u64,
    /// Until when it would be certain if its owner had not asked to release it.
    pub lasts_ns: u64,
    /// When something may have ended it.
    cut_ns: u64,
    /// When its owner asked to release it, if there was no reply.
    let_go_ns: Option<u64>,
    /// The connection that it is tied to.
    pub session: Option<i64>,
    /// The options of its request.
    pub lease_ms: u64,
    /// When it can no longer exist.
    pub over_ns: u64,
    /// Whether it counts: a replica had it when its owner continued, or it needs none.
    pub counts: bool,
    /// The operations on it, by their place in the history; the first is the granted one.
    pub ops: Vec<usize>,
    /// For a ticket: its earlier requests.
    pub polls: Vec<usize>,
}

/// All holds that appear in a reply, each with the operations on it.
pub fn holds(history: &History) -> Vec<Hold> {
    let ends = Ends::of(history);
    let mut groups: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (place, op) in history.ops.iter().enumerate() {
        groups.entry((&op.key, &op.owner)).or_default().push(place);
    }
    let mut found = Vec::new();
    for places in groups.into_values() {
        for mode in [Mode::Write, Mode::Read] {
            let (holds, unknown_ns, polls) = (Vec::new(), None, Vec::new());
            let mut owner = OneOwner { history, ends: &ends, holds, unknown_ns, polls };
            places.iter().for_each(|place| owner.follow(*place, mode));
            found.append(&mut owner.holds);
        }
    }
    doom(&mut found);
    found.sort_by_key(|hold| hold.token);
    found
}

/// The server soon closes the connection of a session whose hold was taken away: what that
/// connection is granted meanwhile, with SESSION, ends with it.
fn doom(holds: &mut [Hold]) {
    let mut doomed: HashMap<i64, Vec<u64>> = HashMap::new();
    for hold in holds.iter().filter(|hold| hold.cut_ns < hold.over_ns) {
        let connections = hold.session.iter();
        connections.for_each(|id| doomed.entry(*id).or_default().push(hold.cut_ns));
    }
    for hold in holds.iter_mut() {
        let Some(times) = hold.session.and_then(|id| doomed.get(&id)) else { continue };
        let is_near = |cut_ns: &u64| cut_ns.abs_diff(hold.asked_ns) < CLOSED_WITHIN_NS;
        if let Some(cut_ns) = times.iter().filter(|cut_ns| is_near(cut_ns)).min() {
            hold.lasts_ns = hold.lasts_ns.min(*cut_ns);
            hold.until_ns = hold.until_ns.min(*cut_ns);
        }
    }
}

/// What one owner did with one key in one mode.
struct OneOwner<'a> {
    history: &'a History,
    ends: &'a Ends,
    holds: Vec<Hold>,
    /// Since when the owner may have a hold that no reply has reported.
    unknown_ns: Option<u64>,
    /// The ticket's requests so far.
    polls: Vec<usize>,
}

impl OneOwner<'_> {
    fn follow(&mut self, place: usize, mode: Mode) {
        let op = &self.history.ops[place];
        match (&op.asked, &op.reply) {
            (Asked::Acquire(ask), Reply::Token(token)) if ask.mode == mode => {
                self.granted(place, *token);
            }
            (Asked::Acquire(ask), reply) if ask.mode == mode => {
                self.mention(place);
                if let (Wait::Queue(_), Reply::Nil) = (ask.wait, reply) {
                    self.polls.push(place);
                }
                if *reply == Reply::NotHeld {
                    self.end(op);
                }
                if matches!(reply, Reply::Lost | Reply::Never | Reply::Error(_)) {
                    self.unknown_ns.get_or_insert(op.sent_ns);
                    self.extend_possibly(op, ask.lease_ms);
                }
            }
            (Asked::Renew { mode: renewed, lease_ms, token, .. }, reply) if *renewed == mode => {
                self.mention(place);
                let is_last = self.holds.last().is_some_and(|hold| hold.token == *token);
                match reply {
                    Reply::Number(1) if is_last => self.extend(op, *lease_ms),
                    // An error may be that of the acknowledgments, and the deadline stays.
                    Reply::Lost | Reply::Error(_) => self.extend_possibly(op, *lease_ms),
                    Reply::NotHeld if is_last => self.end(op),
                    _ => {}
                }
            }
            (Asked::Look { mode: looked, token }, reply) if *looked == mode => {
                self.mention(place);
                let is_last = self.holds.last().is_some_and(|hold| hold.token == *token);
                match reply {
                    Reply::Number(ttl_ms) if is_last => self.extend(op, *ttl_ms as u64),
                    Reply::NotHeld if is_last => self.end(op),
                    _ => {}
                }
            }
            (Asked::Release { mode: released, .. }, reply) if *released == mode => {
                self.mention(place);
                match reply {
                    Reply::Number(0) | Reply::NotHeld => self.end(op),
                    Reply::Number(_) => {}
                    _ => {
                        self.may_end(op);
                        if let Some(hold) = self.holds.last_mut() {
                            hold.let_go_ns.get_or_insert(op.sent_ns);
                        }
                    }
                }
            }
            (Asked::Cancel, _) => self.polls.clear(),
            _ => {}
        }
        // A client that gets an error closes the connection.
        let is_trouble = matches!(op.reply, Reply::Lost | Reply::Error(_));
        if is_trouble || op.asked == Asked::HangUp {
            self.may_end_with(op.connection, op.sent_ns);
        }
    }

    fn granted(&mut self, place: usize, token: i64) {
        let op = &self.history.ops[place];
        let Asked::Acquire(ask) = &op.asked else { return };
        if self.holds.last().is_some_and(|hold| hold.token == token) {
            self.mention(place);
            self.extend(op, ask.lease_ms);
            return;
        }
        // The previous hold ended at an unknown time.
        self.may_end(op);
        if let Some(before) = self.holds.last_mut() {
            before.ops.push(place);
            before.over_ns = before.over_ns.min(op.received_ns);
        }
        let counts = self.history.promise.holds_at_once || op.secured_ns.is_some();
        let from_ns = op.secured_ns.unwrap_or(op.received_ns);
        let mut lease_ns = lease_end_ns(op, ask.lease_ms);
        if ask.session {
            lease_ns = lease_ns.max(self.ends.session_loss_ns(op));
        }
        let cut_ns = self.ends.cut_ns(op, ask.session);
        let lasts_ns = if counts { lease_ns.min(cut_ns) } else { 0 };
        let (key, owner) = (op.key.clone(), op.owner.clone());
        self.holds.push(Hold {
            key,
            owner,
            mode: ask.mode,
            token,
            asked_ns: self.unknown_ns.take().unwrap_or(op.sent_ns),
            granted_ns: op.received_ns,
            from_ns,
            until_ns: lasts_ns,
            lasts_ns,
            cut_ns,
            let_go_ns: None,
            session: ask.session.then_some(op.connection),
            lease_ms: ask.lease_ms,
            over_ns: if ask.session {
                self.ends.session_over_ns(op, ask.lease_ms)
            } else {
                possible_end_ns(op, ask.lease_ms)
            },
            counts,
            ops: vec![place],
            polls: std::mem::take(&mut self.polls),
        });
    }

    fn mention(&mut self, place: usize) {
        if let Some(hold) = self.holds.last_mut() {
            hold.ops.push(place);
        }
    }

    /// It was re-entered or renewed, so it existed.
    fn extend(&mut self, op: &Op, lease_ms: u64) {
        let counts = self.history.promise.holds_at_once || op.secured_ns.is_some();
        self.extend_possibly(op, lease_ms);
        let is_undone = self.history.promise.holds_at_once && self.ends.was_cut_before(op);
        let Some(hold) = self.holds.last_mut() else { return };
        // A primary that was cut off had released the hold, and its successor does not know of the
        // release: the hold is in effect again, after a gap.
        if hold.let_go_ns.take().is_some() && is_undone {
            let again = Hold { from_ns: op.received_ns, ..hold.clone() };
            self.holds.push(again);
        }
        let Some(hold) = self.holds.last_mut() else { return };
        // It existed all the time since its grant, because an ended hold does not come back.
        if counts {
            let lease_ns = lease_end_ns(op, lease_ms);
            hold.lasts_ns = hold.lasts_ns.max(lease_ns.min(hold.cut_ns));
            hold.until_ns = hold.lasts_ns;
        }
    }

    fn extend_possibly(&mut self, op: &Op, lease_ms: u64) {
        if let Some(hold) = self.holds.last_mut() {
            hold.over_ns = hold.over_ns.max(possible_end_ns(op, lease_ms));
        }
    }

    fn end(&mut self, op: &Op) {
        self.may_end(op);
        if let Some(hold) = self.holds.last_mut() {
            hold.over_ns = hold.over_ns.min(op.received_ns);
        }
    }

    fn may_end(&mut self, op: &Op) {
        if let Some(hold) = self.holds.last_mut() {
            hold.until_ns = hold.until_ns.min(op.sent_ns);
        }
    }

    /// A session's hold ends with its connection, and so does what is known of it.
    fn may_end_with(&mut self, connection: i64, at_ns: u64) {
        let Some(hold) = self.holds.last_mut() else { return };
        let grant = &self.history.ops[hold.ops[0]];
        let Asked::Acquire(ask) = grant.asked else { return };
        if ask.session && grant.connection == connection {
            hold.lasts_ns = hold.lasts_ns.min(at_ns);
            hold.until_ns = hold.until_ns.min(at_ns);
            hold.over_ns = hold.over_ns.min(at_ns.max(grant.received_ns) + ns(ask.lease_ms));
        }
    }
}

/// Before this moment the lease has not expired for the server.
fn lease_end_ns(op: &Op, lease_ms: u64) -> u64 {
    (op.sent_ns + ns(lease_ms)).saturating_sub(CLOCKS_NS)
}

/// After this moment it has.
fn possible_end_ns(op: &Op, lease_ms: u64) -> u64 {
    let wait_ms = match (&op.asked, &op.reply) {
        (Asked::Acquire(Ask { wait: Wait::Block(0), .. }), Reply::Lost) => lease_ms,
        (Asked::Acquire(Ask { wait: Wait::Block(ms) | Wait::Queue(ms), .. }), Reply::Lost) => *ms,
        _ => 0,
    };
    op.received_ns + ns(lease_ms + wait_ms) + CLOCKS_NS
}

/// What ended holds other than their owners.
pub struct Ends {
    /// For all keys, and for each key: when it began and ended, in order.
    everywhere: Vec<(u64, u64)>,
    at_key: HashMap<String, Vec<(u64, u64)>>,
    closed: HashMap<i64, (u64, u64)>,
    /// When sessions were forgotten.
    losses: Vec<(u64, u64)>,
    /// When a primary was first cut off.
    first_cut_ns: Option<u64>,
}

impl Ends {
    pub fn of(history: &History) -> Ends {
        let (everywhere, at_key) = (Vec::new(), HashMap::<_, Vec<_>>::new());
        let (closed, losses, first_cut_ns) = (HashMap::new(), Vec::new(), None);
        let mut ends = Ends { everywhere, at_key, closed, losses, first_cut_ns };
        for Event { mark, from_ns, to_ns } in &history.events {
            let time = (*from_ns, *to_ns);
            match mark {
                Mark::Wiped(None) => ends.everywhere.push(time),
                Mark::Wiped(Some(key)) => ends.at_key.entry(key.clone()).or_default().push(time),
                Mark::Closed(id) => drop(ends.closed.insert(*id, time)),
                Mark::Failover | Mark::Restart | Mark::Refusal => ends.losses.push(time),
                Mark::Cut => {
                    let first = ends.first_cut_ns.get_or_insert(*from_ns);
                    *first = (*first).min(*from_ns);
                }
                Mark::Outage | Mark::Shut(_) => {}
            }
        }
        let lists = ends.at_key.values_mut().chain([&mut ends.everywhere, &mut ends.losses]);
        lists.for_each(|list| list.sort_unstable());
        ends
    }

    /// A session's hold ends with its connection. The server may notice that late, but no longer
    /// renews the lease.
    fn session_over_ns(&self, grant: &Op, lease_ms: u64) -> u64 {
        let closed = self.closed.get(&grant.connection);
        closed.map_or(u64::MAX, |(_, to_ns)| to_ns + ns(lease_ms) + CLOCKS_NS)
    }

    /// Whether a primary was cut off before this reply.
    fn was_cut_before(&self, op: &Op) -> bool {
        self.first_cut_ns.is_some_and(|cut_ns| cut_ns <= op.received_ns)
    }

    /// Until when the server renews a session's hold.
    pub fn session_loss_ns(&self, grant: &Op) -> u64 {
        first_after(&self.losses, grant)
    }

    /// The earliest moment at which the hold of `grant` may have ended.
    pub fn cut_ns(&self, grant: &Op, is_session: bool) -> u64 {
        let here = self.at_key.get(&grant.key).map_or(u64::MAX, |list| first_after(list, grant));
        let mut cut_ns = here.min(first_after(&self.everywhere, grant));
        if is_session {
            let closed = self.closed.get(&grant.connection);
            cut_ns = cut_ns.min(closed.map_or(u64::MAX, |(from_ns, _)| *from_ns));
        }
        cut_ns
    }

    /// When a hold that existed during this request was certainly wiped.
    pub fn wiped_by_ns(&self, op: &Op) -> u64 {
        let here = self.at_key.get(&op.key).map(Vec::as_slice).unwrap_or_default();
        let wipes = [here, &self.everywhere].map(|list| {
            let later = list.partition_point(|(from_ns, _)| *from_ns <= op.received_ns);
            list.get(later).map(|(_, to_ns)| *to_ns)
        });
        wipes.into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

/// When the first of these began that had not ended when `grant` was requested.
fn first_after(times: &[(u64, u64)], grant: &Op) -> u64 {
    let at = times.partition_point(|(_, to_ns)| *to_ns < grant.sent_ns);
    times.get(at).map_or(u64::MAX, |(from_ns, _)| *from_ns)
}
