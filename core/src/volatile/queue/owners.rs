//! The waits of an owner. Each kind of wait has its own range of the index: an owner may have very
//! many waits of another kind, which are then skipped together.

use super::ways::Way;
use super::{Entry, Place, Queue};
use crate::{Mode, Owner};

impl Queue {
    /// How many waiters there are, without this owner's ticket.
    pub(crate) fn others_in_line(&self, owner: &[u8]) -> usize {
        self.len().saturating_sub(self.ticket_of(owner).is_some().into())
    }

    /// The owner's ticket: there is at most one.
    pub(crate) fn ticket_of(&self, owner: &[u8]) -> Option<Place> {
        if self.is_empty() {
            return None;
        }
        self.waits_of(owner, Way::Ticket).next().map(|(place, _)| place)
    }

    /// The first place of this owner.
    pub(crate) fn first_of(&self, owner: &[u8]) -> Option<(Place, &Entry)> {
        if self.is_empty() {
            return None;
        }
        let first = |way| self.waits_of(owner, way).next();
        Way::ALL.into_iter().filter_map(first).min_by_key(|(place, _)| *place)
    }

    /// Whether a blocked connection of this owner waits here, for this lock alone or for several.
    pub(crate) fn is_blocked(&self, owner: &[u8]) -> bool {
        let has = |way| self.waits_of(owner, way).next().is_some();
        Way::ALL.into_iter().filter(|way| !matches!(way, Way::Ticket)).any(has)
    }

    /// The waits of this owner for this lock alone that get a reply, in order; only those of this
    /// mode, if one is given.
    pub(crate) fn blocked_of(
        &self,
        owner: &[u8],
        only: Option<Mode>,
    ) -> impl Iterator<Item = (Place, &Entry)> {
        let waits = |mode| {
            let is_asked = only.is_none_or(|only| only == mode);
            let waits = is_asked.then(|| self.waits_of(owner, Way::Blocked(mode)));
            waits.into_iter().flatten().peekable()
        };
        let (mut reads, mut writes) = (waits(Mode::Read), waits(Mode::Write));
        std::iter::from_fn(move || match (reads.peek(), writes.peek()) {
            (Some((read, _)), Some((write, _))) if write < read => writes.next(),
            (Some(_), _) => reads.next(),
            (None, _) => writes.next(),
        })
    }

    /// The waits of this owner of this kind, in order.
    pub(crate) fn waits_of(&self, owner: &[u8], way: Way) -> impl Iterator<Item = (Place, &Entry)> {
        let key = way.key(Owner::hash_of(owner));
        // Compares each entry with the end of the range, instead of searching for the end.
        self.index
            .by_owner
            .range((key, Place::FIRST)..)
            .take_while(move |(other, _)| *other == key)
            .filter_map(|(_, place)| self.get(*place).map(|entry| (*place, entry)))
            .filter(move |(_, entry)| entry.owner.as_bytes() == owner)
    }
}
