//! Positions in the queue: the end, the front behind the turns, and how room is made there.

use std::ops::Bound::{Excluded, Unbounded};

use super::place::{Arrival, Place};
use super::{Entry, Queue};

impl Queue {
    pub(crate) fn push_back(&mut self, entry: Entry) {
        let last = |queue: &Self| {
            queue.entries.last_key_value().map(|(place, _)| *place).max(queue.turns_end)
        };
        let place = last(self).map_or(Some(Place::START), Place::after).or_else(|| {
            // Trillions have waited here, and the queue was never empty.
            self.make_room(Place(i64::MAX));
            last(self).map(Place::next)
        });
        let place = place.unwrap_or(Place::START);
        debug_assert!(last(self) < Some(place), "a newcomer passes a waiter: law 7");
        self.put(place, entry);
    }

    /// Adds a waiter in front of the line, behind the turns.
    pub(crate) fn push_front(&mut self, mut entry: Entry) {
        entry.is_in_front = true;
        let Some((head, _)) = self.head() else { return self.push_back(entry) };
        let place = head.between(self.turns_end).or_else(|| {
            self.make_room(head);
            let (head, _) = self.head()?;
            head.between(self.turns_end)
        });
        // There is always room now: to fill it would take more entries than fit into memory.
        match place {
            Some(place) => self.put(place, entry),
            None => self.push_back(entry),
        }
    }

    /// Gives up the turns from this place on. They keep their order, and stand behind upgrades,
    /// which are ahead of everybody without a turn.
    pub(crate) fn take_turns_from(&mut self, place: Place) {
        let Some((first, _)) = self.entries.range(place..).next() else { return };
        let first = *first;
        if !self.has_turn(first) {
            return;
        }
        self.groups_lose_turns(first);
        let upgraders: Vec<Place> = self
            .line_between(None, None)
            .take_while(|(_, entry)| entry.is_in_front)
            .map(|(place, _)| place)
            .collect();
        let upgraders: Vec<Entry> =
            upgraders.into_iter().filter_map(|place| self.remove(place)).collect();
        self.turns_end = self.entries.range(..first).next_back().map(|(last, _)| *last);
        upgraders.into_iter().rev().for_each(|upgrader| self.push_front(upgrader));
    }

    /// The turns from this place on are about to be given up. A group that then stands in front of
    /// the line counts as having arrived before it.
    fn groups_lose_turns(&mut self, first: Place) {
        let Some(end) = self.turns_end.filter(|_| self.group_count() > 0) else { return };
        let Self { entries, touched, .. } = self;
        let mut line = entries.range((Excluded(end), Unbounded)).map(|(_, entry)| entry);
        let head = line.find(|entry| !entry.is_in_front);
        let mut least = head.map_or(Arrival::LAST, |head| head.arrival);
        for (_, entry) in entries.range_mut(first..=end).rev() {
            least = least.min(entry.arrival);
            entry.arrival = least;
            touched.extend(entry.kind.group());
        }
    }

    /// Spreads the waiters around a place evenly, so that there is room on both sides of each. They
    /// keep their order and their turns.
    ///
    /// It takes in a larger and larger stretch, until the waiters would have gaps there. The larger
    /// the stretch, the smaller the gaps may be: so a spread is repeated only after many waiters
    /// have joined, and on average, a waiter that joins moves O(log n) others.
    pub(super) fn make_room(&mut self, around: Place) {
        // A turn that has ended no longer marks its place.
        self.turns_end = self
            .turns_end
            .and_then(|end| self.entries.range(..=end).next_back())
            .map(|(last, _)| *last);
        for doublings in 0..Place::DOUBLINGS {
            let far = Place::GAP << doublings;
            let (from, to) = (around.0.saturating_sub(far), around.0.saturating_add(far));
            let width = to.saturating_sub(from);
            let apart = Place::GAP >> 6_u32.saturating_add(doublings / 4);
            let most = width.checked_div(apart).and_then(|most| usize::try_from(most).ok());
            let most = most.unwrap_or(usize::MAX);
            let places = self.entries.range(Place(from)..=Place(to)).map(|(place, _)| *place);
            let places: Vec<Place> = places.take(most).collect();
            if places.len() < most {
                return self.spread(&places, from, width);
            }
        }
    }

    /// Moves the waiters at these places, which are all in this stretch, to places that divide it
    /// evenly.
    fn spread(&mut self, places: &[Place], from: i64, width: i64) {
        let turns = places.iter().filter(|place| self.has_turn(**place)).count();
        let turns_end = self.turns_end;
        let parts = i64::try_from(places.len()).unwrap_or(i64::MAX).saturating_add(1);
        let gap = width.checked_div(parts).unwrap_or(1);
        let moved: Vec<Entry> = places.iter().filter_map(|place| self.remove(*place)).collect();
        let mut place = from;
        self.turns_end = turns_end;
        for (number, entry) in moved.into_iter().enumerate() {
            place = place.saturating_add(gap);
            self.put(Place(place), entry);
            if number < turns {
                self.turns_end = Some(Place(place));
            }
        }
    }

    /// Gives up every turn; the places are kept.
    pub(crate) fn take_turns(&mut self) {
        self.take_turns_from(Place::FIRST);
    }
}
