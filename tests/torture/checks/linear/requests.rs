//! The requests of a history as the judge needs them: what their reply shows, and when the holds
//! that they got may have ended by something other than their owner.

use std::collections::HashMap;

use crate::checks::holds::{CLOCKS_NS, CLOSED_WITHIN_NS, Ends};
use crate::checks::kept::TOO_DEEP;
use crate::clock::ns;
use crate::history::{Ask, Asked, History, Op, Reply, Wait};

/// What a reply shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It must be explained.
    Given,
    /// The request took effect or not.
    Unknown,
    /// The request had no effect on holds, but perhaps it waited.
    NoEffect,
}

/// One request about one lock.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub op: &'a Op,
    pub answer: Answer,
    /// The place of its token in the order of grants, from one.
    pub rank: Option<usize>,
    /// When its reply came; if the answer is unknown, when it can have no more effect.
    pub until_ns: u64,
    /// When the connection may have closed, and when it certainly had.
    pub closes_ns: (u64, u64),
    /// From when on the server did not renew sessions.
    pub unrenewed_ns: u64,
    /// When a hold that existed at the moment of the request may have been wiped, and when it
    /// certainly was.
    pub wiped_ns: (u64, u64),
}

impl Request<'_> {
    pub fn ask(&self) -> Option<&Ask> {
        match &self.op.asked {
            Asked::Acquire(ask) => Some(ask),
            _ => None,
        }
    }

    /// The token that it got.
    pub fn token(&self) -> Option<i64> {
        match (&self.op.asked, &self.op.reply) {
            (Asked::Acquire(_), Reply::Token(token)) => Some(*token),
            _ => None,
        }
    }

    /// Whether it may have been in the queue.
    pub fn waits(&self) -> bool {
        self.ask().is_some_and(|ask| ask.wait != Wait::No)
    }

    /// Whether it was refused because of others, so that it changed nothing.
    pub fn is_refused(&self) -> bool {
        self.answer == Answer::Given
            && self.ask().is_some()
            && matches!(self.op.reply, Reply::Nil | Reply::Deadlock)
    }

    /// Until when it keeps a ticket, if it gets or has one.
    pub fn ticket_until_ns(&self) -> Option<u64> {
        match self.ask()?.wait {
            Wait::Queue(ms) => Some(self.op.received_ns + ns(ms) + CLOCKS_NS),
            _ => None,
        }
    }

    /// Whether its reply shows that its owner has no ticket anymore.
    pub fn ends_ticket(&self) -> bool {
        let is_cancelled = self.op.asked == Asked::Cancel;
        self.token().is_some() || is_cancelled && matches!(self.op.reply, Reply::Number(_))
    }
}

/// What a history says about its requests beside their replies.
pub struct Setting<'a> {
    history: &'a History,
    ends: Ends,
    /// For each connection, as actor and link.
    links: HashMap<(u32, u32), Link>,
}

/// One connection.
#[derive(Default)]
struct Link {
    /// When the last answered request was sent, and when the last reply came.
    answered_ns: (u64, u64),
    /// When the last thing happened that is known, and when it certainly was closed after that.
    last_ns: u64,
    closed_ns: u64,
    /// A reply was lost.
    is_broken: bool,
}

impl<'a> Setting<'a> {
    pub fn of(history: &'a History) -> Setting<'a> {
        let mut links: HashMap<(u32, u32), Link> = HashMap::new();
        for op in &history.ops {
            let link = links.entry((op.actor, op.link)).or_default();
            link.last_ns = link.last_ns.max(op.received_ns);
            match (&op.asked, &op.reply) {
                (Asked::HangUp, _) => {}
                (_, Reply::Lost | Reply::Never | Reply::Error(_)) => link.is_broken = true,
                _ => {
                    let (sent_ns, received_ns) = link.answered_ns;
                    link.answered_ns = (sent_ns.max(op.sent_ns), received_ns.max(op.received_ns));
                }
            }
        }
        for link in links.values_mut() {
            link.closed_ns = after(history, link.last_ns, CLOSED_WITHIN_NS);
        }
        Setting { history, ends: Ends::of(history), links }
    }

    /// `None`: it is not about holds.
    pub fn request(&self, op: &'a Op) -> Option<Request<'a>> {
        let answer = answer(op)?;
        let until_ns = match (answer, &op.asked) {
            (Answer::Unknown, Asked::Acquire(Ask { wait: Wait::Tell { ms, .. }, .. })) => {
                after(self.history, op.received_ns, ns(*ms) + CLOSED_WITHIN_NS)
            }
            (Answer::Unknown, _) => after(self.history, op.received_ns, CLOSED_WITHIN_NS),
            _ => op.received_ns,
        };
        Some(Request {
            op,
            answer,
            rank: None,
            until_ns,
            closes_ns: self.closes_ns(op),
            unrenewed_ns: self.ends.session_loss_ns(op),
            wiped_ns: (self.ends.cut_ns(op, false), self.ends.wiped_by_ns(op)),
        })
    }

    fn closes_ns(&self, op: &Op) -> (u64, u64) {
        let link = &self.links[&(op.actor, op.link)];
        let (sent_ns, received_ns) = link.answered_ns;
        // The server may have closed it at any time after that.
        let may_be_closed = link.is_broken || self.history.promise.may_close;
        let from_ns = if may_be_closed { sent_ns } else { received_ns };
        (from_ns, link.closed_ns)
    }
}

/// Ranks their tokens.
pub fn rank(requests: &mut [Request<'_>]) {
    let mut tokens: Vec<i64> = requests.iter().filter_map(Request::token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    for request in requests {
        let token = request.token();
        request.rank = token.map(|token| tokens.partition_point(|other| *other <= token));
    }
}

/// That long after this moment, not counting outages.
fn after(history: &History, from_ns: u64, ns: u64) -> u64 {
    from_ns + ns + history.outage_ns(from_ns, from_ns + ns)
}

fn answer(op: &Op) -> Option<Answer> {
    match (&op.asked, &op.reply) {
        (Asked::Info | Asked::Echo | Asked::HangUp, _) => None,
        (Asked::Cancel, _) => Some(Answer::NoEffect),
        (_, Reply::Lost | Reply::Never) => Some(Answer::Unknown),
        // It no longer listened, and the server did not say that.
        (Asked::Acquire(Ask { wait: Wait::Tell { again: true, .. }, .. }), Reply::Nil) => {
            Some(Answer::Unknown)
        }
        (Asked::Acquire(_), Reply::Error(error)) if error.starts_with(TOO_DEEP) => {
            Some(Answer::Given)
        }
        // It waited for acknowledgments in vain, and had its effect meanwhile or has it still.
        (asked, Reply::Error(_)) if asked.is_acked() => Some(Answer::Unknown),
        (_, Reply::Error(_)) => Some(Answer::NoEffect),
        _ => Some(Answer::Given),
    }
}
