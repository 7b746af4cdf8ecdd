//! Who waits for a lock, in order of arrival. Known to this server only: never saved, never
//! replicated.
//!
//! Blocked connections and tickets stand in one line. Its first part are tickets whose turn has
//! come: the lock is kept for them until their owners ask again or the tickets end. Where that part
//! ends is one place, so that turns are given and given up without moving anybody. No operation's
//! cost grows with the number of those who wait beyond O(log n).

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::num::NonZeroU32;
use std::ops::Bound::{self, Excluded, Unbounded};

use crate::{Acquire, ClientId, EpochMs, LeaseMs, Mode, Now, Owner, WaiterId};

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
    /// READ only beside fewer than so many other owners' READ.
    pub limit: Option<NonZeroU32>,
    /// The depth to be at, as [`Acquire::depth`].
    pub depth: Option<u16>,
    /// Parked, or asking again.
    pub kind: Kind,
    /// When the wait is over; `None` is never.
    pub ends_at: Option<EpochMs>,
    /// When the wait began.
    pub since: Now,
    /// The connection that is parked, or that the hold is to be tied to: it is the same one.
    pub client: Option<ClientId>,
    is_session: bool,
    /// An upgrader's place: before everybody who came to the end.
    pub(crate) is_in_front: bool,
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
            limit: ask.limit,
            depth: ask.depth,
            kind,
            ends_at,
            since,
            client: ask.session,
            is_session: ask.session.is_some(),
            is_in_front: false,
            look_at: None,
        }
    }

    /// The connection that the hold is to be tied to.
    pub fn session(&self) -> Option<ClientId> {
        self.client.filter(|_| self.is_session)
    }
}

/// Where in the queue one stands: kept as long as one waits, but for an upgrader's ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(i64);

impl Place {
    /// Before every other one.
    pub(crate) const FIRST: Self = Self(i64::MIN);

    /// Between two who came one after the other there is room for upgraders, each of which halves
    /// it.
    const GAP: i64 = 1 << 20;

    /// So many places are counted together, but for upgraders: far fewer than wait, far fewer than
    /// such counts.
    const COUNTED: i64 = Self::GAP << 8;

    const fn after(self) -> Self {
        Self(self.0.saturating_add(Self::GAP))
    }

    /// The first of the places that are counted together with this one.
    const fn counted_from(self) -> Self {
        Self(self.0.saturating_sub(self.0.rem_euclid(Self::COUNTED)))
    }

    /// Before this one and behind `other`; `None` where there is no room.
    fn between(self, other: Option<Self>) -> Option<Self> {
        let far = self.0.saturating_sub(Self::GAP);
        let place = other.map_or(far, |other| other.0.midpoint(self.0).max(far));
        (place < self.0 && other.is_none_or(|other| other.0 < place)).then_some(Self(place))
    }
}

/// Everyone who waits for one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    entries: BTreeMap<Place, Entry>,
    /// Tickets up to this place have their turn: one for WRITE, or any number for READ.
    turns_end: Option<Place>,
    /// By a hash of the owner: half the memory of a second copy of the name.
    by_owner: BTreeSet<(u64, Place)>,
    /// When to look whether a wait is over: at its end, or earlier where the end was put off since.
    /// A ticket that asks again and again is moved once in its window, not with each question.
    by_look: BTreeSet<(EpochMs, Place)>,
    by_waiter: BTreeMap<WaiterId, Place>,
    by_client: BTreeSet<(ClientId, Place)>,
    /// How many wait at [`Place::counted_from`] and behind; empty while few wait.
    counts: BTreeMap<Place, usize>,
}

impl Queue {
    /// Number of those who wait, tickets among them.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
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
        self.entries.iter().map(|(place, entry)| (entry, self.is_turn(*place)))
    }

    /// One blocked connection's wait.
    pub fn blocked(&self, waiter: WaiterId) -> Option<&Entry> {
        self.by_waiter.get(&waiter).and_then(|place| self.entries.get(place))
    }

    /// A blocked connection's place.
    pub(crate) fn place_of(&self, waiter: WaiterId) -> Option<Place> {
        self.by_waiter.get(&waiter).copied()
    }

    fn is_turn(&self, place: Place) -> bool {
        self.turns_end.is_some_and(|end| place <= end)
    }

    fn behind_turns(&self) -> (Bound<Place>, Bound<Place>) {
        (self.turns_end.map_or(Unbounded, Excluded), Unbounded)
    }

    /// The line behind one place (from its head, if `None`) and before another (to its end, if
    /// `None`).
    pub(crate) fn line_between(
        &self,
        behind: Option<Place>,
        before: Option<Place>,
    ) -> impl Iterator<Item = (Place, &Entry)> {
        let from = behind.max(self.turns_end).map_or(Unbounded, Excluded);
        let past = move |place: &Place| before.is_some_and(|before| *place >= before);
        let range = self.entries.range((from, Unbounded));
        range.take_while(move |(place, _)| !past(place)).map(|(place, entry)| (*place, entry))
    }

    /// Number of those who are served before this place. Goes through a few hundred places, and one
    /// count for each 256 others.
    pub(crate) fn rank(&self, place: Place) -> usize {
        if self.counts.is_empty() {
            return self.entries.range(..place).count();
        }
        let from = place.counted_from();
        let counted = self.counts.range(..from).map(|(_, count)| *count);
        counted.fold(self.entries.range(from..place).count(), usize::saturating_add)
    }

    /// Number of tickets whose turn to READ has come.
    pub(crate) fn read_turn_count(&self) -> usize {
        match (self.turn_mode(), self.turns_end) {
            (Some(Mode::Read), Some(end)) => {
                self.rank(end).saturating_add(self.entries.contains_key(&end).into())
            }
            _ => 0,
        }
    }

    /// The owner's first place in the order in which all are served, 1 is the first, and whether
    /// its turn has come; `None` if it does not wait.
    pub fn place(&self, owner: &[u8]) -> Option<(usize, bool)> {
        let (place, _) = self.first_of(owner)?;
        Some((self.rank(place).saturating_add(1), self.is_turn(place)))
    }

    /// For what the turns are that were given; `None` where none was.
    pub(crate) fn turn_mode(&self) -> Option<Mode> {
        self.first_turn().map(|entry| entry.mode)
    }

    /// The first of the turns that were given.
    pub(crate) fn first_turn(&self) -> Option<&Entry> {
        let (place, entry) = self.entries.first_key_value()?;
        self.is_turn(*place).then_some(entry)
    }

    /// Where the owner of this ticket stands who asks for something else: a turn is given up, and
    /// upgraders stand before it then.
    pub(crate) fn stands_at(&self, place: Place) -> Place {
        if !self.is_turn(place) {
            return place;
        }
        let upgraders = self.line_between(None, None).take_while(|(_, entry)| entry.is_in_front);
        upgraders.last().map_or(place, |(last, _)| Place(last.0.saturating_add(1)))
    }

    /// First in line.
    pub(crate) fn head(&self) -> Option<(Place, &Entry)> {
        self.entries.range(self.behind_turns()).next().map(|(place, entry)| (*place, entry))
    }

    /// The first turn and the first in line: the only places where an upgrader stands that still
    /// reads.
    pub(crate) fn foremost(&self) -> impl Iterator<Item = &Entry> {
        self.first_turn().into_iter().chain(self.head().map(|(_, entry)| entry))
    }

    /// A turn was given to somebody who comes before this place; before a newcomer, if `None`.
    pub(crate) fn has_turn_before(&self, own: Option<Place>) -> bool {
        let Some((first, _)) = self.entries.first_key_value() else { return false };
        self.is_turn(*first) && own.is_none_or(|own| !self.is_turn(own) || own != *first)
    }

    /// Somebody in the line comes before this place; before a newcomer, if `None`.
    pub(crate) fn has_line_before(&self, own: Option<Place>) -> bool {
        match own {
            Some(own) if self.is_turn(own) => false,
            own => self.head().is_some_and(|(head, _)| Some(head) != own),
        }
    }

    pub(crate) fn has_turn(&self, place: Place) -> bool {
        self.is_turn(place) && self.entries.contains_key(&place)
    }

    /// The owner's ticket: there is at most one.
    pub(crate) fn ticket_of(&self, owner: &[u8]) -> Option<Place> {
        if self.is_empty() {
            return None;
        }
        self.places_of(owner).find(|(_, entry)| entry.kind == Kind::Ticket).map(|(place, _)| place)
    }

    /// The first of the places of this owner.
    pub(crate) fn first_of(&self, owner: &[u8]) -> Option<(Place, &Entry)> {
        self.places_of(owner).next()
    }

    /// This owner waits here, in whatever way.
    pub(crate) fn has_place(&self, owner: &[u8]) -> bool {
        self.places_of(owner).next().is_some()
    }

    /// A blocked connection of this owner waits here.
    pub(crate) fn is_blocked(&self, owner: &[u8]) -> bool {
        self.blocked_of(owner).next().is_some()
    }

    /// The blocked connections of this owner, in order.
    pub(crate) fn blocked_of(&self, owner: &[u8]) -> impl Iterator<Item = (Place, &Entry)> {
        self.places_of(owner).filter(|(_, entry)| entry.kind != Kind::Ticket)
    }

    fn places_of(&self, owner: &[u8]) -> impl Iterator<Item = (Place, &Entry)> {
        let hash = Owner::hash_of(owner);
        // Where the range ends is compared with what is found, not searched for.
        self.by_owner
            .range((hash, Place::FIRST)..)
            .take_while(move |(other, _)| *other == hash)
            .filter_map(|(_, place)| self.get(*place).map(|entry| (*place, entry)))
            .filter(move |(_, entry)| entry.owner.as_bytes() == owner)
    }

    pub(crate) fn get(&self, place: Place) -> Option<&Entry> {
        self.entries.get(&place)
    }

    pub(crate) fn push_back(&mut self, entry: Entry) {
        let last = self.entries.last_key_value().map(|(place, _)| *place).max(self.turns_end);
        self.put(last.map_or(Place(0), Place::after), entry);
    }

    /// Before everybody in line, behind the turns that were given.
    pub(crate) fn push_front(&mut self, mut entry: Entry) {
        entry.is_in_front = true;
        let Some((head, _)) = self.head() else { return self.push_back(entry) };
        match head.between(self.turns_end) {
            Some(place) => self.put(place, entry),
            // There is room for millions of upgraders before one place, and two at most wait there.
            None => self.push_back(entry),
        }
    }

    /// The same owner waits on at the same place of the line, in another way.
    pub(crate) fn replace(&mut self, place: Place, mut entry: Entry) {
        let Some(old) = self.entries.get_mut(&place) else { return };
        entry.since = old.since;
        entry.is_in_front = old.is_in_front;
        entry.look_at = match (old.look_at, entry.ends_at) {
            (Some(look_at), Some(ends_at)) if look_at <= ends_at => Some(look_at),
            (before, after) => {
                before.map(|look_at| self.by_look.remove(&(look_at, place)));
                after.map(|ends_at| self.by_look.insert((ends_at, place)));
                after
            }
        };
        Self::index_blocked(&mut self.by_waiter, &mut self.by_client, place, &entry);
        *old = entry;
    }

    fn index_blocked(
        by_waiter: &mut BTreeMap<WaiterId, Place>,
        by_client: &mut BTreeSet<(ClientId, Place)>,
        place: Place,
        entry: &Entry,
    ) {
        if let Kind::Blocked(waiter) = entry.kind {
            by_waiter.insert(waiter, place);
            if let Some(client) = entry.client {
                by_client.insert((client, place));
            }
        }
    }

    /// So few are counted one by one.
    const UNCOUNTED_MAX: usize = 512;

    fn count(&mut self, place: Place) {
        let count = self.counts.entry(place.counted_from()).or_default();
        *count = count.saturating_add(1);
    }

    fn uncount(&mut self, place: Place) {
        if let btree_map::Entry::Occupied(mut count) = self.counts.entry(place.counted_from()) {
            *count.get_mut() = count.get().saturating_sub(1);
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// At this place, which is nobody's.
    fn put(&mut self, place: Place, mut entry: Entry) {
        self.by_owner.insert((Owner::hash_of(entry.owner.as_bytes()), place));
        entry.look_at = entry.ends_at;
        if let Some(look_at) = entry.look_at {
            self.by_look.insert((look_at, place));
        }
        Self::index_blocked(&mut self.by_waiter, &mut self.by_client, place, &entry);
        self.entries.insert(place, entry);
        if !self.counts.is_empty() {
            self.count(place);
        } else if self.entries.len() > Self::UNCOUNTED_MAX {
            let places: Vec<Place> = self.entries.keys().copied().collect();
            places.into_iter().for_each(|place| self.count(place));
        }
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Entry> {
        let entry = self.entries.remove(&place)?;
        if self.entries.is_empty() {
            self.turns_end = None;
            self.counts.clear();
        } else if !self.counts.is_empty() {
            self.uncount(place);
        }
        self.by_owner.remove(&(Owner::hash_of(entry.owner.as_bytes()), place));
        if let Some(look_at) = entry.look_at {
            self.by_look.remove(&(look_at, place));
        }
        if let Kind::Blocked(waiter) = entry.kind {
            self.by_waiter.remove(&waiter);
            entry.client.map(|client| self.by_client.remove(&(client, place)));
        }
        Some(entry)
    }

    /// Removes the wait of this connection, if it waits.
    pub(crate) fn remove_client(&mut self, client: ClientId) {
        while let Some((other, place)) = self.by_client.range((client, Place::FIRST)..).next()
            && *other == client
        {
            self.remove(*place);
        }
    }

    pub(crate) fn remove_waiter(&mut self, waiter: WaiterId) -> Option<Entry> {
        let place = *self.by_waiter.get(&waiter)?;
        self.remove(place)
    }

    /// It is the turn of this ticket, the first in line.
    pub(crate) fn give_turn(&mut self, place: Place) {
        self.turns_end = Some(place);
    }

    /// The turns from this place on are given up; the places are kept, behind upgraders, who stand
    /// in front of everybody but turns.
    pub(crate) fn take_turns_from(&mut self, place: Place) {
        let Some((first, _)) = self.entries.range(place..).next() else { return };
        let mut first = *first;
        if !self.is_turn(first) {
            return;
        }
        let upgraders: Vec<Place> = self
            .line_between(None, None)
            .take_while(|(_, entry)| entry.is_in_front)
            .map(|(place, _)| place)
            .collect();
        self.turns_end = self.entries.range(..first).next_back().map(|(last, _)| *last);
        for upgrader in upgraders.into_iter().rev() {
            if let Some(place) = first.between(self.turns_end)
                && let Some(entry) = self.remove(upgrader)
            {
                self.put(place, entry);
                first = place;
            }
        }
    }

    /// Every turn is given up; the places are kept.
    pub(crate) fn take_turns(&mut self) {
        self.take_turns_from(Place::FIRST);
    }

    /// One whose wait is over.
    pub(crate) fn first_ended(&mut self, now: Now) -> Option<Place> {
        while let Some((look_at, place)) = self.by_look.first().copied()
            && look_at.is_over_at(now)
        {
            let Self { entries, by_look, .. } = self;
            let entry = entries.get_mut(&place)?;
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
