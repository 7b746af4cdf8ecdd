//! Which owner waits for which: finds cycles before the last owner blocks.
//!
//! A blocked owner waits for the holders in its way and for the blocked owners ahead of it. A
//! reader does not wait for readers, except for waiters with a limit, which nobody behind them may
//! overtake. A waiter with a limit waits for the READ holders only if all of them must release;
//! otherwise, any one of them could let it in. Tickets wait for nobody, and nobody waits for a
//! ticket: their owners are not blocked. A group waits at the lock where it stands, and a lock that
//! is reserved for it counts as held.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use crate::text::quoted;
use crate::volatile::queue::{Arrival, Place};
use crate::{Acquire, Lock, Mode, Now, Owner, Volatile, WaiterId};

/// How many locks, holders and waiters one search visits before it gives up: it runs inside a
/// command.
pub const STEPS_MAX: usize = 1000;

/// The waits of one database, as the search asks for them.
pub trait WaitGraph {
    /// The wait of one blocked connection.
    type Wait;
    /// The waits of this owner's blocked connections, but no more than `most`.
    fn of(&mut self, owner: &Owner, most: usize) -> Vec<Self::Wait>;
    /// The owners that this wait waits for: [`Lock::blockers`], with a [`Seen`] of its own for each
    /// lock. Each lock that is opened for this counts as a step.
    fn blockers(&mut self, wait: &Self::Wait, steps: &mut Steps) -> Vec<Owner>;
}

/// How many more locks, holders and waiters a search may visit.
#[derive(Debug)]
pub struct Steps(usize);

impl Default for Steps {
    fn default() -> Self {
        Self(STEPS_MAX)
    }
}

impl Steps {
    /// How many there are.
    pub const fn remaining(&self) -> usize {
        self.0
    }

    /// Counts one step; false if the budget is used up.
    pub fn take(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

/// What a search has visited of one lock, so that it visits nobody twice.
#[derive(Debug, Default)]
pub struct Seen {
    /// If the holders were visited: as a reader or as a writer meets them.
    holders: Option<Mode>,
    /// How far the line was visited as a reader meets it, and as a writer meets it.
    line: [Option<Place>; 2],
    /// Owners that met themselves here, and were left out: each with the role and the mode in which
    /// it did, and the foremost place.
    selves: BTreeMap<(Owner, Met, Mode), Place>,
}

/// The role in which an owner met itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    Holder,
    Waiter,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Search<W> {
    /// Nobody waits for the caller.
    NoCycle,
    /// The cycle, beginning with the caller: each owner, with the wait by which it waits for the
    /// next one.
    Cycle(Vec<(Owner, W)>),
    /// The search would have visited more than [`STEPS_MAX`] locks, holders and waiters.
    GaveUp,
}

/// A blocked connection, or a caller that is about to be blocked.
#[derive(Clone, Copy, Debug)]
pub enum Stand<'a> {
    /// The blocked connection with this number.
    Parked(WaiterId),
    /// A caller with this request.
    Asking(Acquire<'a>),
    /// A group that has yet to reach the lock.
    Coming(Acquire<'a>, Arrival),
}

impl Stand<'_> {
    /// What it waits for: mode and limit.
    pub(crate) fn wants(&self, volatile: Option<&Volatile>) -> Option<(Mode, Option<NonZeroU32>)> {
        match self {
            Self::Asking(claim) | Self::Coming(claim, _) => Some((claim.mode, claim.limit)),
            Self::Parked(waiter) => {
                volatile?.queue.blocked(*waiter).map(|entry| (entry.mode, entry.limit))
            }
        }
    }
}

/// One owner of a path: the wait by which it waits, the owners it waits for, and those that remain
/// to be visited.
struct Visit<W> {
    owner: Owner,
    wait: Option<W>,
    blockers: Vec<Owner>,
    others: Vec<W>,
}

/// Searches for a cycle through `owner`, whose request `wait` would wait for the owners in `first`.
pub fn search<W: WaitGraph>(
    waits: &mut W,
    owner: &Owner,
    wait: W::Wait,
    first: Vec<Owner>,
    steps: &mut Steps,
) -> Search<W::Wait> {
    let mut seen: BTreeSet<Owner> = BTreeSet::new();
    let start =
        Visit { owner: owner.clone(), wait: Some(wait), blockers: first, others: Vec::new() };
    let mut path = vec![start];
    while let Some(step) = path.last_mut() {
        let Some(blocker) = step.blockers.pop() else {
            match step.others.pop() {
                Some(_) if !steps.take() => return Search::GaveUp,
                Some(other) => {
                    step.blockers = waits.blockers(&other, steps);
                    step.wait = Some(other);
                }
                None => {
                    path.pop();
                }
            }
            continue;
        };
        if blocker == *owner {
            let waits = path.into_iter().filter_map(|step| Some((step.owner, step.wait?)));
            return Search::Cycle(waits.collect());
        }
        let others = waits.of(&blocker, steps.remaining().saturating_add(1));
        // Most blockers wait for nothing: no cycle contains them.
        if !others.is_empty() && seen.insert(blocker.clone()) {
            path.push(Visit { owner: blocker, wait: None, blockers: Vec::new(), others });
        }
    }
    if steps.remaining() == 0 { Search::GaveUp } else { Search::NoCycle }
}

/// The server cuts lines of its log: how many bytes of a line it prints.
const LOG_BYTES_MAX: usize = 900;

/// The cycle in one line for the server's log: each owner, with the key at which it waits for the
/// next one. `unsaid` earlier refusals were not logged.
pub fn log_line(cycle: &[(Owner, &[u8])], unsaid: u64) -> String {
    let mut line =
        format!("deadlock: refused a wait that would close a cycle of {} owners: ", cycle.len());
    for (at, (owner, key)) in cycle.iter().enumerate() {
        let next = cycle.get(at.saturating_add(1)).or(cycle.first());
        let next = next.map(|(owner, _)| quoted(owner.as_bytes())).unwrap_or_default();
        let one = format!("{} waits at {} for {next}", quoted(owner.as_bytes()), quoted(key));
        if line.len().saturating_add(one.len()) > LOG_BYTES_MAX {
            let others = cycle.len().saturating_sub(at);
            line.push_str(&format!("and {others} more"));
            break;
        }
        line.push_str(&one);
        line.push_str(if at.saturating_add(1) < cycle.len() { ", " } else { "" });
    }
    if unsaid > 0 {
        line.push_str(&format!("; {unsaid} more refused since the last such line"));
    }
    line
}

/// What decides who must wait for whom: a place in the queue, and the mode.
struct Stance<'a> {
    claim: Acquire<'a>,
    place: Option<Place>,
}

impl Acquire<'_> {
    /// The mode in which it waits: WRITE if every other reader must release first. With a higher
    /// limit, any reader may release, so it waits for none of them in particular.
    fn waits_as(&self) -> Mode {
        if self.limit == Some(NonZeroU32::MIN) { Mode::Write } else { self.mode }
    }

    /// The mode in which others see it: that of a writer if it may have to wait for readers,
    /// because everybody behind it then waits for it.
    fn stands_as(&self) -> Mode {
        if self.limit.is_some() { Mode::Write } else { self.mode }
    }
}

impl<'a> Stance<'a> {
    fn of(volatile: &'a Volatile, who: Stand<'a>) -> Option<Self> {
        let queue = &volatile.queue;
        let (claim, place) = match who {
            Stand::Parked(waiter) => (queue.blocked(waiter)?.into(), queue.place_of(waiter)),
            Stand::Coming(claim, arrival) => (claim, queue.first_later(arrival)),
            Stand::Asking(claim) => {
                (claim, queue.ticket_of(claim.owner).map(|place| queue.stands_at(place)))
            }
        };
        // If a wait of its own stands ahead, it becomes a re-entry after that one: it waits for
        // what that one waits for.
        let only = Some(Mode::Write).filter(|mode| *mode == claim.mode);
        let own = queue.blocked_of(claim.owner, only).next().map(|(place, _)| place);
        let own = own.filter(|own| place.is_none_or(|place| *own < place));
        let entry = own.and_then(|own| queue.get(own));
        let (claim, place) = entry.map_or((claim, place), |entry| (entry.into(), own));
        Some(Self { claim, place })
    }
}

impl Seen {
    /// Whether everybody whom this wait waits for has been visited: then the lock need not be
    /// examined.
    pub fn covers(&self, volatile: &Volatile, who: Stand<'_>) -> bool {
        let Some(Stance { claim, place }) = Stance::of(volatile, who) else {
            return true;
        };
        let mode = claim.waits_as();
        let [by_reader, by_writer] = self.line;
        let upto = if mode == Mode::Write { by_writer } else { by_reader };
        // An owner may be in the map as a holder and as a waiter, each in two modes.
        let is_alone = self.selves.len() <= 4
            && self.selves.keys().all(|(other, _, _)| other.as_bytes() == claim.owner);
        is_alone
            && self.holders >= Some(mode)
            && volatile.queue.line_between(upto, place).next().is_none()
    }

    /// Leaves out an owner that met itself: it does not block itself, but others behind it.
    fn leave_out(&mut self, owner: &[u8], at: Option<Place>, mode: Mode) {
        let met = if at.is_some() { Met::Waiter } else { Met::Holder };
        let at = at.unwrap_or(Place::FIRST);
        let first = self.selves.entry((Owner::from(owner), met, mode)).or_insert(at);
        *first = at.min(*first);
    }
}

impl Mode {
    /// Whether a request with this mode waits for a hold or request with that mode.
    fn meets(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

impl Lock {
    /// Whether nobody at this lock waits for that owner, even after it is parked at the end of a
    /// line: it has neither a hold nor a place here. If that is true of every lock with a line, its
    /// wait cannot close a cycle, and no search is needed.
    pub fn nobody_waits_for(&self, volatile: &Volatile, owner: &[u8], now: Now) -> bool {
        let holds = |mode| self.hold_at(owner, mode, now).is_some();
        !holds(Mode::Write) && !holds(Mode::Read) && volatile.queue.first_of(owner).is_none()
    }

    /// The owners for whom `who` waits at this lock: not its own, and none that `seen` has already.
    pub fn blockers(
        &self,
        volatile: &Volatile,
        who: Stand<'_>,
        now: Now,
        seen: &mut Seen,
        steps: &mut Steps,
    ) -> Vec<Owner> {
        let Some(stance) = Stance::of(volatile, who) else { return Vec::new() };
        let Stance { claim, place } = stance;
        let owner = claim.owner;
        // It may re-enter a mode that it holds regardless of the line: it waits only for the end of
        // the grace period.
        let holds = |mode| self.hold_at(owner, mode, now).is_some();
        if holds(claim.mode) || holds(Mode::Write) {
            return Vec::new();
        }
        let upgrades = |ask: &Acquire<'_>| ask.mode == Mode::Write && ask.upgrade;
        let upgrade = match who {
            Stand::Asking(ask) => Some(ask).filter(upgrades),
            Stand::Parked(_) | Stand::Coming(..) => None,
        };
        let upgrade = upgrade.filter(|_| self.hold_at(owner, Mode::Read, now).is_some());
        // It will stand in front, ahead of tickets and of its own other waits.
        let (claim, place) = upgrade.map_or((claim, place), |ask| (ask, None));
        let (is_first, mode) = (upgrade.is_some(), claim.waits_as());
        let is_before = |at: &Place| !is_first && place.is_none_or(|place| *at < place);
        let mut blockers = Vec::new();
        for ((other, met, held), at) in &seen.selves {
            if other.as_bytes() == owner {
                continue;
            }
            if !steps.take() {
                return blockers;
            }
            if mode.meets(*held) && (*met == Met::Holder || is_before(at)) {
                blockers.push(other.clone());
            }
        }
        // Whoever stands behind the place that it will take (which is not always the last) will
        // wait for it.
        if !matches!(who, Stand::Parked(_)) && (is_first || place.is_some()) {
            let at = place.unwrap_or(Place::FIRST);
            seen.leave_out(owner, Some(at), claim.stands_as());
        }
        if !is_first {
            ahead(volatile, owner, mode, place, seen, steps, &mut blockers);
        }
        if seen.holders < Some(mode) {
            seen.holders = Some(mode);
            let holds = self.holders.standing_at(now).map(|(holder, held, _)| (holder, held));
            let turns = volatile.queue.group_turns();
            let turns = turns.map(|entry| Some((entry?.owner.as_bytes(), entry?.mode)));
            for one in holds.map(Some).chain(turns) {
                if !steps.take() {
                    break;
                }
                // Nobody waits for a ticket.
                let Some((holder, held)) = one else { continue };
                if holder == owner {
                    seen.leave_out(owner, None, held);
                } else if mode.meets(held) {
                    blockers.push(holder.into());
                }
            }
        }
        blockers
    }
}

/// The blocked owners ahead of a place that were not visited yet. A writer waits for all of them, a
/// reader only for those that count as writers.
fn ahead(
    volatile: &Volatile,
    owner: &[u8],
    mode: Mode,
    place: Option<Place>,
    seen: &mut Seen,
    steps: &mut Steps,
    blockers: &mut Vec<Owner>,
) {
    let by = usize::from(mode == Mode::Write);
    let upto = seen.line.get(by).copied().flatten();
    for (at, entry) in volatile.queue.line_between(upto, place) {
        if !steps.take() {
            return;
        }
        seen.line.get_mut(by).into_iter().for_each(|upto| *upto = Some(at));
        if entry.kind.is_ticket() {
            continue;
        }
        let stands_as = Acquire::from(entry).stands_as();
        if entry.owner.as_bytes() == owner {
            seen.leave_out(owner, Some(at), stands_as);
        } else if mode.meets(stands_as) {
            blockers.push(entry.owner.clone());
        }
    }
}
