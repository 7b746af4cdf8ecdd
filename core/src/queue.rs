//! Who waits for a lock, in order of arrival. Known to this server only: never saved, never
//! replicated.
//!
//! Blocked connections and tickets stand in one line. A ticket whose turn has come stands before
//! the line until its owner asks again or the ticket ends: the lock is kept for it. No operation's
//! cost grows with the number of those who wait beyond O(log n).

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::ops::Bound;

use crate::{Acquire, EpochMs, LeaseMs, Mode, Now, Owner};

/// A blocked connection's wait, told apart from every other wait of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(NonZeroU64);

impl WaiterId {
    /// The number; never 0, so that one who has none costs no more memory.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<u64> for WaiterId {
    /// 0 is nobody's number, and taken for 1.
    fn from(number: u64) -> Self {
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }
}

/// A connection, by the server's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(NonZeroU64);

impl ClientId {
    /// The number; never 0, so that one who has none costs no more memory.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<u64> for ClientId {
    /// 0 is nobody's number, and taken for 1.
    fn from(number: u64) -> Self {
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }
}

/// How one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection is parked and will be answered.
    Blocked(WaiterId),
    /// Nobody is parked: the owner asks again.
    Ticket,
}

/// One who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who.
    pub owner: Owner,
    /// What for.
    pub mode: Mode,
    /// For how long from the grant on.
    pub lease: LeaseMs,
    /// May put WRITE on top of the owner's READ.
    pub upgrade: bool,
    /// The depth to be at, as [`Acquire::depth`].
    pub depth: Option<u16>,
    /// The connection that the hold is to be tied to.
    pub session: Option<ClientId>,
    /// Parked, or asking again.
    pub kind: Kind,
    /// When the wait is over; `None` is never.
    pub ends_at: Option<EpochMs>,
    /// When the wait began.
    pub since: Now,
    /// As in [`Queue::by_look`].
    look_at: Option<EpochMs>,
}

impl Entry {
    pub(crate) fn new(ask: &Acquire<'_>, kind: Kind, ends_at: Option<EpochMs>, since: Now) -> Self {
        Self {
            owner: Owner::from(ask.owner),
            mode: ask.mode,
            lease: ask.lease,
            upgrade: ask.upgrade,
            depth: ask.depth,
            session: ask.session,
            kind,
            ends_at,
            since,
            look_at: None,
        }
    }
}

/// Where in the queue one stands: kept as long as one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(i64);

impl Place {
    /// Before every other one.
    pub(crate) const FIRST: Self = Self(i64::MIN);

    /// An upgrader's: before everybody who came to the end.
    pub(crate) const fn is_in_front(self) -> bool {
        self.0 < 0
    }
}

/// Everyone who waits for one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Tickets whose turn it is: one for WRITE, or any number for READ. They come before the line.
    turns: BTreeMap<Place, Entry>,
    line: BTreeMap<Place, Entry>,
    /// By a hash of the owner: half the memory of a second copy of the name.
    by_owner: BTreeSet<(u64, Place)>,
    /// When to look whether a wait is over: at its end, or earlier where the end was put off since.
    /// A ticket that asks again and again is moved once in its window, not with each question.
    by_look: BTreeSet<(EpochMs, Place)>,
    by_waiter: BTreeMap<WaiterId, Place>,
}

impl Queue {
    /// Number of those who wait, tickets among them.
    pub fn len(&self) -> usize {
        self.turns.len().saturating_add(self.line.len())
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.line.is_empty()
    }

    /// Number of tickets among those who wait.
    pub fn ticket_count(&self) -> usize {
        self.len().saturating_sub(self.by_waiter.len())
    }

    /// Number of blocked connections among those who wait.
    pub fn blocked_count(&self) -> usize {
        self.by_waiter.len()
    }

    /// Everyone in the order in which they are served, and whether it is their turn.
    pub fn iter(&self) -> impl Iterator<Item = (&Entry, bool)> {
        let turns = self.turns.values().map(|entry| (entry, true));
        turns.chain(self.line.values().map(|entry| (entry, false)))
    }

    /// One blocked connection's wait.
    pub fn blocked(&self, waiter: WaiterId) -> Option<&Entry> {
        self.by_waiter.get(&waiter).and_then(|place| self.line.get(place))
    }

    /// A blocked connection's place.
    pub(crate) fn place_of(&self, waiter: WaiterId) -> Option<Place> {
        self.by_waiter.get(&waiter).copied()
    }

    /// The line behind one place (from its head, if `None`) and before another (to its end, if
    /// `None`).
    pub(crate) fn line_between(
        &self,
        behind: Option<Place>,
        before: Option<Place>,
    ) -> impl Iterator<Item = (Place, &Entry)> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let past = move |place: &Place| before.is_some_and(|before| *place >= before);
        let range = self.line.range((from, Bound::Unbounded));
        range.take_while(move |(place, _)| !past(place)).map(|(place, entry)| (*place, entry))
    }

    /// For what the turns are that were given; `None` where none was.
    pub(crate) fn turn_mode(&self) -> Option<Mode> {
        self.turns.first_key_value().map(|(_, entry)| entry.mode)
    }

    /// The first of the turns that were given.
    pub(crate) fn first_turn(&self) -> Option<&Entry> {
        self.turns.first_key_value().map(|(_, entry)| entry)
    }

    /// First in line.
    pub(crate) fn head(&self) -> Option<(Place, &Entry)> {
        self.line.first_key_value().map(|(place, entry)| (*place, entry))
    }

    /// The first turn and the first in line: the only places where an upgrader stands that still
    /// reads.
    pub(crate) fn foremost(&self) -> impl Iterator<Item = &Entry> {
        self.turns.values().take(1).chain(self.line.values().take(1))
    }

    /// A turn was given to somebody who comes before this place; before a newcomer, if `None`.
    pub(crate) fn has_turn_before(&self, own: Option<Place>) -> bool {
        let mut turns = self.turns.keys();
        match own {
            Some(own) if self.turns.contains_key(&own) => turns.next() != Some(&own),
            _ => turns.next().is_some(),
        }
    }

    /// Somebody in the line comes before this place; before a newcomer, if `None`.
    pub(crate) fn has_line_before(&self, own: Option<Place>) -> bool {
        match own {
            Some(own) if self.turns.contains_key(&own) => false,
            Some(own) => self.line.keys().next() != Some(&own),
            None => !self.line.is_empty(),
        }
    }

    pub(crate) fn has_turn(&self, place: Place) -> bool {
        self.turns.contains_key(&place)
    }

    /// The owner's ticket: there is at most one.
    pub(crate) fn ticket_of(&self, owner: &[u8]) -> Option<Place> {
        if self.is_empty() {
            return None;
        }
        self.places_of(owner).find(|(_, entry)| entry.kind == Kind::Ticket).map(|(place, _)| place)
    }

    /// This owner waits here, in whatever way.
    pub(crate) fn has_place(&self, owner: &[u8]) -> bool {
        self.places_of(owner).next().is_some()
    }

    /// The blocked connections of this owner, in order.
    pub(crate) fn blocked_of(&self, owner: &[u8]) -> impl Iterator<Item = (Place, &Entry)> {
        self.places_of(owner).filter(|(_, entry)| entry.kind != Kind::Ticket)
    }

    fn places_of(&self, owner: &[u8]) -> impl Iterator<Item = (Place, &Entry)> {
        let hash = Owner::hash_of(owner);
        // Where the range ends is compared with what is found, not searched for.
        self.by_owner
            .range((hash, Place(i64::MIN))..)
            .take_while(move |(other, _)| *other == hash)
            .filter_map(|(_, place)| self.get(*place).map(|entry| (*place, entry)))
            .filter(move |(_, entry)| entry.owner.as_bytes() == owner)
    }

    pub(crate) fn get(&self, place: Place) -> Option<&Entry> {
        self.line.get(&place).or_else(|| self.turns.get(&place))
    }

    pub(crate) fn push_back(&mut self, entry: Entry) {
        let last =
            |map: &BTreeMap<Place, Entry>| map.last_key_value().map_or(0, |(place, _)| place.0);
        let place = last(&self.line).max(last(&self.turns)).max(0).saturating_add(1);
        self.put(Place(place), entry);
    }

    /// Before everybody in line, behind the turns that were given.
    pub(crate) fn push_front(&mut self, entry: Entry) {
        let first =
            |map: &BTreeMap<Place, Entry>| map.first_key_value().map_or(0, |(place, _)| place.0);
        let place = first(&self.line).min(first(&self.turns)).min(0).saturating_sub(1);
        self.put(Place(place), entry);
    }

    /// The same owner waits on at the same place of the line, in another way.
    pub(crate) fn replace(&mut self, place: Place, mut entry: Entry) {
        let Some(old) = self.line.get_mut(&place) else { return };
        entry.since = old.since;
        entry.look_at = match (old.look_at, entry.ends_at) {
            (Some(look_at), Some(ends_at)) if look_at <= ends_at => Some(look_at),
            (before, after) => {
                before.map(|look_at| self.by_look.remove(&(look_at, place)));
                after.map(|ends_at| self.by_look.insert((ends_at, place)));
                after
            }
        };
        if let Kind::Blocked(waiter) = entry.kind {
            self.by_waiter.insert(waiter, place);
        }
        *old = entry;
    }

    /// In the line at this place, which is nobody's.
    fn put(&mut self, place: Place, mut entry: Entry) {
        self.by_owner.insert((Owner::hash_of(entry.owner.as_bytes()), place));
        entry.look_at = entry.ends_at;
        if let Some(look_at) = entry.look_at {
            self.by_look.insert((look_at, place));
        }
        if let Kind::Blocked(waiter) = entry.kind {
            self.by_waiter.insert(waiter, place);
        }
        self.line.insert(place, entry);
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Entry> {
        let entry = self.line.remove(&place).or_else(|| self.turns.remove(&place))?;
        self.by_owner.remove(&(Owner::hash_of(entry.owner.as_bytes()), place));
        if let Some(look_at) = entry.look_at {
            self.by_look.remove(&(look_at, place));
        }
        if let Kind::Blocked(waiter) = entry.kind {
            self.by_waiter.remove(&waiter);
        }
        Some(entry)
    }

    pub(crate) fn remove_waiter(&mut self, waiter: WaiterId) -> Option<Entry> {
        let place = *self.by_waiter.get(&waiter)?;
        self.remove(place)
    }

    /// It is this ticket's turn.
    pub(crate) fn give_turn(&mut self, place: Place) {
        if let Some(entry) = self.line.remove(&place) {
            self.turns.insert(place, entry);
        }
    }

    /// The turns from this place on are given up; the places are kept.
    pub(crate) fn take_turns_from(&mut self, place: Place) {
        // One by one: to append them would rebuild the line.
        self.line.extend(self.turns.split_off(&place));
    }

    /// Every turn is given up; the places are kept.
    pub(crate) fn take_turns(&mut self) {
        self.take_turns_from(Place(i64::MIN));
    }

    /// One whose wait is over.
    pub(crate) fn first_ended(&mut self, now: Now) -> Option<Place> {
        while let Some((look_at, place)) = self.by_look.first().copied()
            && look_at.is_over_at(now)
        {
            let Self { line, turns, by_look, .. } = self;
            let entry = line.get_mut(&place).or_else(|| turns.get_mut(&place))?;
            let ends_at = entry.ends_at?;
            // None is looked at later than it ends, so they come in the order of their ends.
            if ends_at == look_at {
                return Some(place);
            }
            by_look.remove(&(look_at, place));
            by_look.insert((ends_at, place));
            entry.look_at = Some(ends_at);
        }
        None
    }

    /// When to look next whether a wait is over: never later than the next end.
    pub(crate) fn next_look(&self) -> Option<EpochMs> {
        self.by_look.first().map(|(look_at, _)| *look_at)
    }
}
