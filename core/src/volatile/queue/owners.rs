//! Which waits an owner has.

use super::{Entry, Kind, Place, Queue};
use crate::Owner;

impl Queue {
    /// The owner's ticket: there is at most one.
    pub(crate) fn ticket_of(&self, owner: &[u8]) -> Option<Place> {
        if self.is_empty() {
            return None;
        }
        let mut places = self.places_of(owner, Place::FIRST);
        places.find(|(_, entry)| entry.kind == Kind::Ticket).map(|(place, _)| place)
    }

    /// How many tickets the owner has, for this lock alone and for several.
    pub(crate) fn tickets_of(&self, owner: &[u8]) -> usize {
        self.places_of(owner, Place::FIRST).filter(|(_, entry)| entry.kind.is_ticket()).count()
    }

    /// The first place of this owner.
    pub(crate) fn first_of(&self, owner: &[u8]) -> Option<(Place, &Entry)> {
        self.places_of(owner, Place::FIRST).next()
    }

    /// Whether this owner waits here, in any way.
    pub(crate) fn has_place(&self, owner: &[u8]) -> bool {
        self.first_of(owner).is_some()
    }

    /// The first place of a group of this owner from a place on.
    pub(crate) fn groups_of(
        &self,
        owner: &[u8],
        from: Place,
    ) -> impl Iterator<Item = (Place, &Entry)> {
        let is_group = |entry: &Entry| entry.kind.group().is_some();
        self.places_of(owner, from).filter(move |(_, entry)| is_group(entry))
    }

    /// Whether a blocked connection of this owner waits here, for this lock alone or for several.
    pub(crate) fn is_blocked(&self, owner: &[u8]) -> bool {
        self.places_of(owner, Place::FIRST).any(|(_, entry)| entry.kind != Kind::Ticket)
    }

    /// The connections of this owner that are blocked for this lock alone, from a place on, in
    /// order.
    pub(crate) fn blocked_of(
        &self,
        owner: &[u8],
        from: Place,
    ) -> impl Iterator<Item = (Place, &Entry)> {
        self.places_of(owner, from).filter(|(_, entry)| matches!(entry.kind, Kind::Blocked(_)))
    }

    fn places_of(&self, owner: &[u8], from: Place) -> impl Iterator<Item = (Place, &Entry)> {
        let hash = Owner::hash_of(owner);
        // Compares each entry with the end of the range instead of searching for it.
        self.by_owner
            .range((hash, from)..)
            .take_while(move |(other, _)| *other == hash)
            .filter_map(|(_, place)| self.get(*place).map(|entry| (*place, entry)))
            .filter(move |(_, entry)| entry.owner.as_bytes() == owner)
    }
}
