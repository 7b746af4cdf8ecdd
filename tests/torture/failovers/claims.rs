//! The holds that clients had replies for when the primary died, and therefore what the server that
//! took over must show.

use std::collections::BTreeMap;
use std::fmt;

use super::skew::Clock;
use crate::history::Mode;
use rlock_testkit::LockView;

/// How a client has a reply confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// The reply comes after the acknowledgments: `ACKS`.
    Acked,
    /// After one acknowledgment, where one is too few: the control group of `apart`.
    OneAck,
    /// It sends a `WAIT` behind each command.
    Waited,
    /// It does not: the control group.
    Plain,
    /// Like `Plain`, with a string as the lock: `SET NX PX`, and a script that compares and
    /// deletes.
    SetNx,
    /// Redisson's `RLock` and `RFencedLock`, and redsync's mutex, with their defaults.
    Redisson,
    Fenced,
    Redsync,
}

pub const SORTS: [Sort; 8] = [
    Sort::Acked,
    Sort::OneAck,
    Sort::Waited,
    Sort::Plain,
    Sort::SetNx,
    Sort::Redisson,
    Sort::Fenced,
    Sort::Redsync,
];

impl Sort {
    /// Whether it has replies confirmed.
    pub fn makes_sure(self) -> bool {
        matches!(self, Sort::Acked | Sort::OneAck | Sort::Waited)
    }

    /// Whether its claims must be kept.
    pub fn is_promised(self) -> bool {
        matches!(self, Sort::Acked | Sort::Waited)
    }

    /// Whether it must lose claims, or the run shows nothing.
    pub fn is_control(self) -> bool {
        matches!(self, Sort::OneAck | Sort::Plain)
    }
}

/// The kind of the last reply about a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Grant,
    HandOver,
    /// Any of these, to a caller that closed its connection as soon as it had read the token.
    Closed,
    ReEntry,
    Renewal,
    Session,
    /// A message, for a request with TELL.
    Told,
    Upgrade,
    /// The same kinds, for one lock of a request for several.
    Group,
    GroupHandOver,
    GroupRenewal,
    GroupTold,
}

impl Kind {
    /// Whether the request named several locks.
    pub fn is_of_several(self) -> bool {
        use Kind::{Group, GroupHandOver, GroupRenewal, GroupTold};
        matches!(self, Group | GroupHandOver | GroupRenewal | GroupTold)
    }
}

pub const KINDS: [Kind; 12] = [
    Kind::Grant,
    Kind::HandOver,
    Kind::Closed,
    Kind::ReEntry,
    Kind::Renewal,
    Kind::Session,
    Kind::Told,
    Kind::Upgrade,
    Kind::Group,
    Kind::GroupHandOver,
    Kind::GroupRenewal,
    Kind::GroupTold,
];

/// A hold as the replies to its owner reported it. Times are unix milliseconds of its owner's
/// clock, which is this machine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub sort: Sort,
    pub kind: Kind,
    pub key: String,
    pub owner: String,
    pub mode: Mode,
    pub token: i64,
    pub depth: i64,
    /// The deadline is no earlier, by the clock of the primary.
    pub until_ms: i64,
    /// When the lease ends for its owner.
    pub owner_until_ms: i64,
    pub sent_ms: i64,
    pub told_ms: i64,
}

impl Claim {
    /// Whether the primary, by this clock, has not yet ended it for certain.
    pub fn lasts(&self, clock: &Clock, at_ms: i64) -> bool {
        self.until_ms > clock.latest_ms(self.sent_ms, at_ms)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claim { sort, kind, key, owner, mode, token, depth, .. } = self;
        let Claim { until_ms, sent_ms, told_ms, .. } = self;
        let mode = mode.word();
        write!(
            f,
            "{sort:?} {kind:?}: {owner} holds {mode} of {key}, token {token}, depth {depth}, \
             until {until_ms} (asked {sent_ms}, told {told_ms})"
        )
    }
}

/// What is missing of a hold in what a server showed no later than `seen_ms`, by its own clock;
/// `None` if nothing is missing, or its time has passed there.
pub fn loss(claim: &Claim, lock: &LockView, seen_ms: i64) -> Option<String> {
    if claim.until_ms <= seen_ms {
        return None;
    }
    let mode = claim.mode.word().to_ascii_lowercase();
    let is_it = |owner: &[u8], of: &str| owner == claim.owner.as_bytes() && of == mode;
    let Some(hold) = lock.holds.iter().find(|hold| is_it(&hold.owner, &hold.mode)) else {
        return Some(format!("the hold is gone; there is {}", lock.line()));
    };
    if hold.token != claim.token {
        return Some(format!("the token is {}", hold.token));
    }
    if hold.depth < claim.depth {
        return Some(format!("the depth is {}", hold.depth));
    }
    // The displayed time is rounded down.
    let deadline_ms = seen_ms + hold.ttl_ms + 1;
    let early_ms = claim.until_ms - deadline_ms;
    (early_ms > 0).then(|| format!("the deadline is {early_ms} ms too early"))
}

/// Like `loss`, for a string: its owner and its remaining milliseconds.
pub fn loss_of_string(claim: &Claim, owner: &str, ttl_ms: i64, seen_ms: i64) -> Option<String> {
    if claim.until_ms <= seen_ms {
        return None;
    }
    if owner != claim.owner {
        return Some(format!("the string is gone; there is '{owner}'"));
    }
    let early_ms = claim.until_ms - (seen_ms + ttl_ms + 1);
    (early_ms > 0).then(|| format!("the deadline is {early_ms} ms too early"))
}

/// Grants of several locks that were lost in part, which must never happen, even without `ACKS`.
/// Claims that had expired by `seen_ms`, when all of them had been looked up, do not count.
pub fn parts(claims: &[Claim], lost: &[usize], seen_ms: i64) -> Vec<String> {
    let mut all: BTreeMap<(&str, i64), [Vec<&str>; 2]> = BTreeMap::new();
    let lasts = |claim: &Claim| claim.kind.is_of_several() && claim.until_ms > seen_ms;
    let of_several = claims.iter().enumerate().filter(|(_, claim)| lasts(claim));
    for (place, claim) in of_several {
        let halves = all.entry((&claim.owner, claim.token)).or_default();
        halves[usize::from(lost.contains(&place))].push(&claim.key);
    }
    let is_part = |[kept, lost]: &[Vec<&str>; 2]| !kept.is_empty() && !lost.is_empty();
    let parts = all.into_iter().filter(|(_, halves)| is_part(halves));
    parts.map(|(grant, halves)| format!("a part of {grant:?} was lost: {halves:?}")).collect()
}

/// Pairs of claims that may not exist at once: the first pair of each key.
pub fn conflicts(claims: &[Claim]) -> Vec<String> {
    let mut by_key: BTreeMap<&str, Vec<&Claim>> = BTreeMap::new();
    for claim in claims {
        by_key.entry(&claim.key).or_default().push(claim);
    }
    let pair = |claims: Vec<&Claim>| {
        let writer = claims.iter().find(|claim| claim.mode == Mode::Write)?;
        let other = claims.iter().find(|claim| claim.owner != writer.owner)?;
        Some(format!("both were told that they hold: {writer}; {other}"))
    };
    by_key.into_values().filter_map(pair).collect()
}

/// A time in which an owner was sure to hold a lock alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Stay {
    pub key: String,
    pub owner: String,
    pub from_ms: f64,
    pub to_ms: f64,
}

/// Stays of different owners at one key that overlap.
pub fn overlaps(stays: &[Stay]) -> Vec<String> {
    let mut sorted: Vec<&Stay> = stays.iter().filter(|stay| stay.from_ms < stay.to_ms).collect();
    sorted.sort_by(|a, b| a.key.cmp(&b.key).then(a.from_ms.total_cmp(&b.from_ms)));
    let mut wrong = Vec::new();
    let mut latest: Option<&Stay> = None;
    for stay in sorted {
        if let Some(before) = latest.filter(|before| before.key == stay.key) {
            let ms = before.to_ms - stay.from_ms;
            if ms > 0.0 && before.owner != stay.owner {
                let (key, one, other) = (&stay.key, &before.owner, &stay.owner);
                wrong.push(format!(
                    "{one} and {other} hold {key} at once, for {ms:.2} ms: {before:?}, {stay:?}"
                ));
            }
            if before.to_ms > stay.to_ms {
                continue;
            }
        }
        latest = Some(stay);
    }
    wrong
}
