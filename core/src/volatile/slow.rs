//! Waits and holds that lasted long: recorded when they end, for the slow log.

use std::num::NonZeroU32;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::text::cut;
use crate::volatile::queue::Entry;
use crate::{End, Mode, Now, Owner};

/// How many milliseconds a wait or a hold must last to be logged; `None`: none is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Waits.
    pub wait_ms: Option<u64>,
    /// Holds.
    pub hold_ms: Option<u64>,
}

/// How many holders in the way of a wait are recorded at most.
pub const NAMES_MAX: usize = 100;

/// While so many wait on this server, only [`FEW_NAMES`] are recorded of a wait that does not begin
/// behind the same holders as the one before it in line: a hundred take 30 times what a ticket
/// takes.
const LISTS_MAX: usize = 1000;

const FEW_NAMES: usize = 4;

/// How many holders to record of a wait for which others are in the way than before, while so many
/// wait on this server.
pub(crate) const fn names_max(waits: usize) -> usize {
    if waits < LISTS_MAX { NAMES_MAX } else { FEW_NAMES }
}

/// Names of owners, each cut to [`crate::text::NAME_BYTES_MAX`] bytes; one that is short, the
/// common case, costs no allocation. Each stands behind its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerNames(SmallVec<[u8; 24]>);

impl OwnerNames {
    fn push(&mut self, cut: &[u8]) {
        self.0.push(u8::try_from(cut.len()).unwrap_or(u8::MAX));
        self.0.extend_from_slice(cut);
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    /// These names: shared by all waits that began behind the same holders, also when they are
    /// logged. `before` has those of the last in the same line; `last` those that were written last
    /// on this server, and they are written over where nobody has them any more. Of names that
    /// neither has, `most` are written.
    pub(crate) fn shared<'o, I: Iterator<Item = &'o [u8]>>(
        before: Option<&Rc<Self>>,
        last: &mut Rc<Self>,
        most: usize,
        owners: impl Fn() -> I,
    ) -> Rc<Self> {
        let is = |names: &Self, most| names.iter().eq(owners().take(most).map(cut));
        let is_same =
            |names: &&Rc<Self>| is(names, NAMES_MAX) || most < NAMES_MAX && is(names, most);
        if let Some(names) = before.filter(is_same) {
            return names.clone();
        }
        if !is_same(&&*last) {
            let owners = || owners().take(most);
            if Rc::get_mut(last).is_none() {
                *last = Rc::default();
            }
            if let Some(names) = Rc::get_mut(last) {
                names.clear();
                owners().for_each(|owner| names.push(cut(owner)));
            }
        }
        last.clone()
    }

    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first()?;
            let (name, next) = behind.split_at_checked(usize::from(*len))?;
            rest = next;
            Some(name)
        })
    }
}

/// How a wait or a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A wait: by its grant.
    Granted,
    /// A wait: its time passed.
    TimedOut,
    /// A wait: by `RLOCK.CANCEL`.
    Cancelled,
    /// A wait: by `CLIENT UNBLOCK`.
    Unblocked,
    /// Its connection closed.
    Disconnected,
    /// Too few replicas acknowledged it.
    Unconfirmed,
    /// A wait: by an error.
    Refused,
    /// A hold: released by its owner.
    Released,
    /// A hold: it expired.
    Expired,
    /// A hold: by `RLOCK.FORCE`.
    Forced,
    /// A hold: something else took the key.
    Removed,
}

impl Outcome {
    /// As in `RLOCK.SLOWLOG`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::TimedOut => "timed-out",
            Self::Cancelled => "cancelled",
            Self::Unblocked => "unblocked",
            Self::Disconnected => "disconnected",
            Self::Unconfirmed => "unconfirmed",
            Self::Refused => "refused",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::Removed => "removed",
        }
    }
}

impl From<End> for Outcome {
    fn from(by: End) -> Self {
        match by {
            End::Released => Self::Released,
            End::Expired => Self::Expired,
            End::Forced => Self::Forced,
            End::Disconnected => Self::Disconnected,
            End::Unconfirmed => Self::Unconfirmed,
        }
    }
}

/// A wait or a hold that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The owner.
    pub owner: Owner,
    /// The mode.
    pub mode: Mode,
    /// `LIMIT` of a wait.
    pub limit: Option<NonZeroU32>,
    /// Milliseconds.
    pub ms: u64,
    /// The cause.
    pub outcome: Outcome,
    /// What it was.
    pub what: What,
    /// How many locks a wait was for.
    pub keys: usize,
}

/// A wait, or a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A wait of a blocked connection or of a ticket, and who was in its way when it began.
    Wait(Rc<OwnerNames>),
    /// A hold.
    Hold,
}

impl Slow {
    /// The end of a wait, if it lasted long enough.
    pub(crate) fn wait(self, entry: &Entry, outcome: Outcome, now: Now) -> Option<Ended> {
        let us = now.us().saturating_sub(entry.since.us());
        if self.wait_ms.is_none_or(|least| us < least.saturating_mul(1000)) {
            return None;
        }
        let (names, ms) = (entry.in_the_way.as_ref()?, us / 1000);
        let (owner, mode, limit) = (entry.owner.clone(), entry.mode, entry.limit);
        let what = What::Wait(names.clone());
        Some(Ended { owner, mode, limit, ms, outcome, what, keys: 1 })
    }

    /// The end of a hold, if it lasted long enough.
    pub(crate) fn hold(self, owner: &[u8], mode: Mode, ms: u64, outcome: Outcome) -> Option<Ended> {
        let owner = self.hold_ms.is_some_and(|least| ms >= least).then(|| owner.into())?;
        Some(Ended { owner, mode, limit: None, ms, outcome, what: What::Hold, keys: 1 })
    }
}
