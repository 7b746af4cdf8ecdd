//! A position in the queue.

/// The number of a wait, which increases from one wait of this server to the next. Six bytes last
/// for years, and do not make an entry larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival([u8; 6]);

impl Arrival {
    /// After every other one.
    pub(crate) const LAST: Self = Self([u8::MAX; 6]);

    /// The number.
    pub(crate) const fn new(number: u64) -> Self {
        let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
        Self([a, b, c, d, e, f])
    }
}

/// A position in the queue. A waiter keeps it, except when a ticket becomes an upgrade, and when
/// [`Queue::make_room`] moves it. So after a waiter was put in front of the line, no place from
/// before is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub(super) i64);

impl Place {
    /// Before every other one.
    pub(crate) const FIRST: Self = Self(i64::MIN);

    /// The first one of a queue.
    pub(super) const START: Self = Self(0);

    /// The gap between two successive waiters leaves room for upgrades. It is at most this wide.
    pub(super) const GAP: i64 = 1 << 20;

    /// An upgrade takes this part of the gap; the next upgrade stands in front of it.
    const PART: u64 = 64;

    /// 256 waiters share a count, or more if some of them are upgrades: far more than one, and far
    /// fewer than a queue may have.
    const COUNTED: i64 = Self::GAP << 8;

    /// How far from a place [`Queue::make_room`] searches at most, in doublings of [`Self::GAP`].
    pub(super) const DOUBLINGS: u32 = 41;

    /// The first of the places that share a count with this one.
    pub(super) const fn counted_from(self) -> Self {
        Self(self.0.saturating_sub(self.0.rem_euclid(Self::COUNTED)))
    }

    /// The place next to this one.
    pub(super) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    pub(super) fn after(self) -> Option<Self> {
        self.0.checked_add(Self::GAP).map(Self)
    }

    /// A place before this one and behind `other`; `None` if there is no room.
    pub(super) fn between(self, other: Option<Self>) -> Option<Self> {
        let part = other.map(|other| self.0.abs_diff(other.0) / Self::PART);
        let part = part.and_then(|part| i64::try_from(part).ok()).unwrap_or(Self::GAP);
        let place = self.0.checked_sub(part.clamp(1, Self::GAP)).map(Self);
        place.filter(|place| other.is_none_or(|other| other < *place))
    }
}
