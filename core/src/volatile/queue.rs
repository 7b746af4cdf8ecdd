//! The waiters of a lock, in order of arrival. Only this server has them: they are never saved or
//! replicated.
//!
//! Blocked connections and tickets share one queue. It begins with the tickets that have their
//! turn: the lock is reserved for them until their owners ask again or the tickets end. One
//! position marks where the turns end, so that to give or give up a turn moves no entry except
//! upgrades in front of it. On average, no operation costs more than O(log n) in the number of
//! waiters.

mod check;
pub(crate) mod groups;
mod index;
mod owners;
mod place;
mod places;
mod ways;

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::num::NonZeroU32;
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

use index::Index;
pub use place::Arrival;
pub(crate) use place::Place;
pub(crate) use ways::Way;

use crate::value::count::less;
use crate::volatile::owner_names::OwnerNames;
use crate::volatile::slow::{Ended, Outcome, Slow, What};
use crate::{ClientId, EpochMs, Kind, LeaseMs, Mode, Now, Owner, Token, WaiterId};

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The owner.
    pub owner: Owner,
    /// The mode it wants.
    pub mode: Mode,
    /// The lease, counted from the grant.
    pub lease: LeaseMs,
    /// Whether WRITE may be added to the owner's READ.
    pub upgrade: bool,
    /// READ only while fewer than this many other owners hold READ.
    pub limit: Option<NonZeroU32>,
    /// The depth to reach, as [`crate::Acquire::depth`].
    pub depth: Option<u16>,
    /// As [`crate::Acquire::acks`].
    pub acks: u8,
    /// A blocked connection or a ticket.
    pub kind: Kind,
    /// When the wait ends; `None` means never.
    pub ends_at: Option<EpochMs>,
    /// When the wait began.
    pub since: Now,
    /// Increases from one wait of this server to the next: groups stand in the order of arrival.
    pub(crate) arrival: Arrival,
    /// The blocked connection, which is also the connection to which to tie the hold.
    pub client: Option<ClientId>,
    pub(crate) is_session: bool,
    /// The holders in the way when the wait began, if waits are logged.
    pub(crate) in_the_way: Option<Rc<OwnerNames>>,
    /// Whether it is an upgrade, which stands ahead of everybody who joined at the end.
    pub(crate) is_in_front: bool,
    /// As in [`Queue::by_check`].
    pub(crate) check_at: Option<EpochMs>,
}

/// A boxed entry fits into a size class of the server's allocator.
const _: () = assert!(size_of::<Entry>() <= 128, "a waiter takes more memory");

impl Entry {
    /// A wait for one level, without an end.
    pub(crate) fn new(owner: Owner, mode: Mode, lease: LeaseMs, kind: Kind, since: Now) -> Self {
        Self {
            owner,
            mode,
            lease,
            upgrade: false,
            limit: None,
            depth: Some(1),
            acks: 0,
            kind,
            ends_at: None,
            since,
            arrival: Arrival::new(0),
            client: None,
            is_session: false,
            in_the_way: None,
            is_in_front: false,
            check_at: None,
        }
    }

    /// The same owner continues to wait in the same place, in another way.
    pub(crate) fn continue_as(&mut self, mut other: Self) {
        (other.since, other.arrival) = (self.since, self.arrival);
        other.in_the_way = self.in_the_way.take();
        other.is_in_front = self.is_in_front;
        *self = other;
    }

    /// The end of this wait for the slow log, if it lasted long enough.
    pub(crate) fn ended(&self, slow: Slow, outcome: Outcome, now: Now) -> Option<Ended> {
        let us = now.us().saturating_sub(self.since.us());
        if slow.wait_ms.is_none_or(|least| us < least.saturating_mul(1000)) {
            return None;
        }
        let what = What::Wait(self.in_the_way.as_ref()?.clone());
        let (owner, mode, limit, ms) = (self.owner.clone(), self.mode, self.limit, us / 1000);
        Some(Ended { owner, mode, limit, ms, outcome, what, keys: 1 })
    }

    /// The connection to which to tie the hold.
    pub fn session(&self) -> Option<ClientId> {
        self.client.filter(|_| self.is_session)
    }
}

/// All waiters of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Boxed, because a node of a B-tree has room for eleven entries, and is about half full.
    entries: BTreeMap<Place, Box<Entry>>,
    /// Tickets up to this place have their turn: one for WRITE, or any number for READ.
    turns_end: Option<Place>,
    index: Index,
    /// When to check for the end of a wait: at its end, or earlier if the end was postponed since.
    /// A ticket whose owner asks again is moved at most once per window, and not with each request.
    by_check: BTreeSet<(EpochMs, Place)>,
    /// How many wait at [`Place::counted_from`] and behind it; empty while few wait.
    counts: BTreeMap<Place, usize>,
    /// Groups that need no turn, because this hold of their owner covers the lock; each with the
    /// entry that it would have in line.
    covered: BTreeMap<WaiterId, (Token, Box<Entry>)>,
    by_token: BTreeSet<(Token, WaiterId)>,
    /// Groups that came to stand here, or whose turn was given, lost or became unnecessary, since
    /// the last call of [`Queue::take_touched_groups`].
    touched: Vec<WaiterId>,
}

impl Queue {
    /// A copy of the first `most` entries, and of those that need no turn.
    pub(crate) fn first(&self, most: usize) -> Self {
        let Self { turns_end, covered, by_token, .. } = self;
        let (covered, by_token) = (covered.clone(), by_token.clone());
        let mut first = Self { turns_end: *turns_end, covered, by_token, ..Self::default() };
        for (place, entry) in self.entries.iter().take(most) {
            first.put(*place, (**entry).clone());
        }
        first
    }

    /// Number of waiters, including tickets.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of tickets.
    pub fn ticket_count(&self) -> usize {
        less(self.len(), self.index.by_waiter.len())
    }

    /// Number of blocked connections.
    pub fn blocked_count(&self) -> usize {
        less(self.index.by_waiter.len(), self.index.told.saturating_add(self.index.groups))
    }

    /// Number of waits whose reply will be a message.
    pub fn told_count(&self) -> usize {
        self.index.told
    }

    /// The number of places of groups.
    pub fn group_count(&self) -> usize {
        self.index.groups
    }

    /// Whether somebody here waits for a reply, for this lock or for several.
    pub(crate) fn has_blocked(&self) -> bool {
        !self.index.by_waiter.is_empty()
    }

    /// All waiters in the order in which they are served, and whether each has its turn.
    pub fn iter(&self) -> impl Iterator<Item = (&Entry, bool)> {
        self.entries.iter().map(|(place, entry)| (&**entry, self.has_turn(*place)))
    }

    /// The wait of one blocked connection.
    pub fn blocked(&self, waiter: WaiterId) -> Option<&Entry> {
        self.place_of(waiter).and_then(|place| self.get(place))
    }

    /// A blocked connection's place.
    pub(crate) fn place_of(&self, waiter: WaiterId) -> Option<Place> {
        self.index.by_waiter.get(&waiter).copied()
    }

    /// Whether the waiter at this place has its turn.
    pub(crate) fn has_turn(&self, place: Place) -> bool {
        self.turns_end.is_some_and(|end| place <= end)
    }

    /// The waiters without a turn after one place (from the head if `None`) and before another (to
    /// the end if `None`).
    pub(crate) fn line_between(
        &self,
        behind: Option<Place>,
        before: Option<Place>,
    ) -> impl Iterator<Item = (Place, &Entry)> {
        let from = behind.max(self.turns_end).map_or(Unbounded, Excluded);
        let past = move |place: &Place| before.is_some_and(|before| *place >= before);
        let range = self.entries.range((from, Unbounded));
        range.take_while(move |(place, _)| !past(place)).map(|(place, entry)| (*place, &**entry))
    }

    /// The number of waiters ahead of this place. Visits a few hundred places, or more if many
    /// upgrades precede it, and one count for each 256 other places.
    pub(crate) fn rank(&self, place: Place) -> usize {
        if self.counts.is_empty() {
            return self.entries.range(..place).count();
        }
        let from = place.counted_from();
        let counted = self.counts.range(..from).map(|(_, count)| *count);
        counted.fold(self.entries.range(from..place).count(), usize::saturating_add)
    }

    /// Number of tickets that have their turn to READ.
    pub(crate) fn read_turn_count(&self) -> usize {
        match (self.turn_mode(), self.turns_end) {
            (Some(Mode::Read), Some(end)) => {
                self.rank(end).saturating_add(self.entries.contains_key(&end).into())
            }
            _ => 0,
        }
    }

    /// The owner's first place in the queue, counted from 1, and whether it has its turn; `None` if
    /// it does not wait.
    pub fn place(&self, owner: &[u8]) -> Option<(usize, bool)> {
        let (place, _) = self.first_of(owner)?;
        Some((self.rank(place).saturating_add(1), self.has_turn(place)))
    }

    /// The mode of the turns that were given; `None` if there are none.
    pub(crate) fn turn_mode(&self) -> Option<Mode> {
        self.first_turn().map(|entry| entry.mode)
    }

    /// The first of the turns that were given.
    pub(crate) fn first_turn(&self) -> Option<&Entry> {
        let (place, entry) = self.entries.first_key_value()?;
        self.has_turn(*place).then_some(entry)
    }

    pub(crate) fn has_several_turns(&self) -> bool {
        self.entries.keys().nth(1).is_some_and(|place| self.has_turn(*place))
    }

    /// The place of this ticket when its owner sends another request: if the ticket has a turn, the
    /// turn is given up, and upgrades are then ahead of it.
    pub(crate) fn stands_at(&self, place: Place) -> Place {
        if !self.has_turn(place) {
            return place;
        }
        let upgraders = self.line_between(None, None).take_while(|(_, entry)| entry.is_in_front);
        upgraders.last().map_or(place, |(last, _)| last.next())
    }

    /// The first waiter without a turn.
    pub(crate) fn head(&self) -> Option<(Place, &Entry)> {
        // Usually, there is no turn; then this is cheaper than a range.
        let head = match self.turns_end {
            None => self.entries.first_key_value(),
            Some(end) => self.entries.range((Excluded(end), Unbounded)).next(),
        };
        head.map(|(place, entry)| (*place, &**entry))
    }

    /// The first turn and the first in line: an upgrade that still holds READ can only be in one of
    /// these places.
    pub(crate) fn foremost(&self) -> impl Iterator<Item = &Entry> {
        self.first_turn().into_iter().chain(self.head().map(|(_, entry)| entry))
    }

    /// Whether a turn is ahead of this place, or of a newcomer if `None`.
    pub(crate) fn has_turn_before(&self, own: Option<Place>) -> bool {
        if self.turns_end.is_none() {
            return false;
        }
        let Some((first, _)) = self.entries.first_key_value() else { return false };
        self.has_turn(*first) && own != Some(*first)
    }

    /// Whether a waiter without a turn is ahead of this place, or of a newcomer if `None`.
    pub(crate) fn has_line_before(&self, own: Option<Place>) -> bool {
        match own {
            Some(own) if self.has_turn(own) => false,
            own => self.head().is_some_and(|(head, _)| Some(head) != own),
        }
    }

    pub(crate) fn get(&self, place: Place) -> Option<&Entry> {
        self.entries.get(&place).map(Box::as_ref)
    }

    /// The last in line.
    pub(crate) fn last(&self) -> Option<&Entry> {
        self.entries.last_key_value().map(|(_, entry)| &**entry)
    }

    /// The same owner continues to wait at the same place, in another way.
    pub(crate) fn replace(&mut self, place: Place, mut entry: Entry) {
        let Some(old) = self.entries.get_mut(&place) else { return };
        entry.check_at = match (old.check_at, entry.ends_at) {
            (Some(check_at), Some(ends_at)) if check_at <= ends_at => Some(check_at),
            (before, after) => {
                before.map(|check_at| self.by_check.remove(&(check_at, place)));
                after.map(|ends_at| self.by_check.insert((ends_at, place)));
                after
            }
        };
        self.index.remove(place, old);
        self.index.insert(place, &entry);
        old.continue_as(entry);
    }

    /// Up to this many waiters are counted one by one.
    const UNCOUNTED_MAX: usize = 512;

    fn count(&mut self, place: Place) {
        let count = self.counts.entry(place.counted_from()).or_default();
        *count = count.saturating_add(1);
    }

    fn uncount(&mut self, place: Place) {
        if let btree_map::Entry::Occupied(mut count) = self.counts.entry(place.counted_from()) {
            *count.get_mut() = less(*count.get(), 1);
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Inserts at this place, which is free.
    fn put(&mut self, place: Place, mut entry: Entry) {
        debug_assert!(!self.entries.contains_key(&place), "{place:?} is taken");
        entry.check_at = entry.ends_at;
        if let Some(check_at) = entry.check_at {
            self.by_check.insert((check_at, place));
        }
        self.index.insert(place, &entry);
        self.entries.insert(place, Box::new(entry));
        if !self.counts.is_empty() {
            self.count(place);
        } else if self.entries.len() > Self::UNCOUNTED_MAX {
            let places: Vec<Place> = self.entries.keys().copied().collect();
            places.into_iter().for_each(|place| self.count(place));
        }
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Entry> {
        let entry = *self.entries.remove(&place)?;
        if self.entries.is_empty() {
            self.turns_end = None;
            self.counts.clear();
        } else if !self.counts.is_empty() {
            self.uncount(place);
        }
        if let Some(check_at) = entry.check_at {
            self.by_check.remove(&(check_at, place));
        }
        self.index.remove(place, &entry);
        Some(entry)
    }

    pub(crate) fn remove_last(&mut self) -> Option<Entry> {
        let (place, _) = self.entries.last_key_value()?;
        self.remove(*place)
    }

    /// Removes a wait of this connection, if it waits.
    pub(crate) fn remove_client(&mut self, client: ClientId) -> Option<Entry> {
        let (other, place) = self.index.by_client.range((client, Place::FIRST)..).next()?;
        let place = Some(*place).filter(|_| *other == client)?;
        self.remove(place)
    }

    /// Gives the turn to this ticket, the first in line.
    pub(crate) fn give_turn(&mut self, place: Place) {
        self.turns_end = Some(place);
        if let Some(entry) = self.entries.get(&place) {
            self.touched.extend(entry.kind.group());
        }
    }

    /// A waiter that has timed out.
    pub(crate) fn first_ended(&mut self, now: Now) -> Option<Place> {
        while let Some((check_at, place)) = self.by_check.first().copied()
            && check_at.is_over_at(now)
        {
            let Self { entries, by_check, .. } = self;
            let entry = entries.get_mut(&place)?;
            let ends_at = entry.ends_at?;
            // No wait is checked later than it ends, so they are found in the order of their ends.
            if ends_at == check_at {
                return Some(place);
            }
            by_check.remove(&(check_at, place));
            by_check.insert((ends_at, place));
            entry.check_at = Some(ends_at);
        }
        None
    }

    /// When to check for the end of a wait next: never later than the next end.
    pub(crate) fn next_check(&self) -> Option<EpochMs> {
        self.by_check.first().map(|(check_at, _)| *check_at)
    }
}
