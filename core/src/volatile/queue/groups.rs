//! Groups: waits for several locks. A group stands in the line of one lock at a time, in the order
//! of arrival; at each lock that it has reached, it has its turn, or a hold of its owner covers
//! what it wants.

use std::collections::BTreeSet;

use super::place::{Arrival, Place};
use super::{Entry, Queue};
use crate::{ClientId, LeaseMs, Token, WaiterId};

/// Where a group is at one of its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupStand {
    /// It stands in line.
    Line,
    /// The lock is reserved for it.
    Turn,
    /// Its owner already holds what it wants.
    Covered,
}

impl Queue {
    /// Where this group is; `None` if it is not here.
    pub(crate) fn group_stand(&self, waiter: WaiterId) -> Option<GroupStand> {
        match self.place_of(waiter) {
            Some(place) if self.has_turn(place) => Some(GroupStand::Turn),
            Some(_) => Some(GroupStand::Line),
            None => self.covered.get(&waiter).map(|_| GroupStand::Covered),
        }
    }

    /// Whether a hold covers what a group wants.
    pub(crate) fn has_covered(&self) -> bool {
        !self.covered.is_empty()
    }

    /// For each turn, in order: the blocked group that has it, or `None` if another waiter does.
    pub(crate) fn group_turns(&self) -> impl Iterator<Item = Option<&Entry>> {
        let has_group = self.group_count() > 0;
        let turns = self.iter().take_while(move |(_, has_turn)| has_group && *has_turn);
        turns.map(|(entry, _)| Some(entry).filter(|entry| entry.kind.group().is_some()))
    }

    /// A group continues to wait in the same place, for this connection and with this lease.
    pub(crate) fn replace_group(
        &mut self,
        waiter: WaiterId,
        client: Option<ClientId>,
        lease: LeaseMs,
    ) {
        let entry = match self.place_of(waiter) {
            Some(place) => self.entries.get_mut(&place),
            None => self.covered.get_mut(&waiter).map(|(_, entry)| entry),
        };
        if let Some(entry) = entry {
            (entry.client, entry.lease) = (client, lease);
        }
    }

    /// Whether there are touched groups that were not taken yet.
    pub(crate) fn has_touched_groups(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The touched groups, and where each is now.
    pub(crate) fn touched_groups(&self) -> Vec<(WaiterId, Option<GroupStand>)> {
        let touched = self.touched.iter();
        touched.map(|waiter| (*waiter, self.group_stand(*waiter))).collect()
    }

    /// Takes them.
    pub(crate) fn take_touched_groups(&mut self) -> Vec<(WaiterId, Option<GroupStand>)> {
        let touched = self.touched_groups();
        self.touched = Vec::new();
        touched
    }

    /// A group joins the queue behind the turns, behind upgrades, and behind everybody in line who
    /// arrived before it.
    pub(crate) fn join(&mut self, entry: Entry) {
        self.touched.extend(entry.kind.group());
        let Some(mut next) = self.first_later(entry.arrival) else { return self.push_back(entry) };
        let mut place = self.place_before(next);
        if place.is_none() {
            self.make_room(next);
            next = self.first_later(entry.arrival).unwrap_or(next);
            place = self.place_before(next);
        }
        // There is always room now: to fill it would take more entries than fit into memory.
        match place {
            Some(place) => self.put(place, entry),
            None => self.push_back(entry),
        }
    }

    /// A place directly before this one; `None` if there is no room.
    fn place_before(&self, next: Place) -> Option<Place> {
        let before = self.entries.range(..next).next_back().map(|(place, _)| *place);
        let Some(before) = before.max(self.turns_end) else { return next.between(None) };
        let place = Place(before.0.saturating_add_unsigned(before.0.abs_diff(next.0) / 2));
        (place > before && place < next).then_some(place)
    }

    /// The first in line, behind upgrades, that arrived later: the line is in the order of arrival.
    pub(crate) fn first_later(&self, arrival: Arrival) -> Option<Place> {
        let mut line = self.line_between(None, None);
        let (head, entry) = line.find(|(_, entry)| !entry.is_in_front)?;
        if entry.arrival > arrival {
            return Some(head);
        }
        let (last, _) = self.entries.last_key_value().filter(|(_, last)| last.arrival > arrival)?;
        let from = |place: i64| self.entries.range(Place(place)..).next();
        let (mut earlier, mut later) = (head.0, last.0);
        while earlier.abs_diff(later) > 1 {
            let middle = earlier.saturating_add_unsigned(earlier.abs_diff(later) / 2);
            match from(middle) {
                Some((_, entry)) if entry.arrival <= arrival => earlier = middle,
                _ => later = middle,
            }
        }
        from(later).map(|(place, _)| *place)
    }

    /// The owner of the group at this place now has a hold that covers what the group wants.
    pub(crate) fn cover_at(&mut self, place: Place, token: Token) {
        if let Some(entry) = self.remove(place) {
            self.cover(entry, token);
        }
    }

    /// A group needs no turn here: this hold covers what it wants.
    pub(crate) fn cover(&mut self, entry: Entry, token: Token) {
        if let Some(waiter) = entry.kind.group() {
            self.touched.push(waiter);
            self.by_token.insert((token, waiter));
            self.covered.insert(waiter, (token, Box::new(entry)));
        }
    }

    /// The holds that cover what groups want.
    pub(crate) fn covering(&self) -> Vec<Token> {
        let mut tokens: Vec<Token> = self.by_token.iter().map(|(token, _)| *token).collect();
        tokens.dedup();
        tokens
    }

    /// Takes the groups that were covered by this hold, which has ended.
    pub(crate) fn take_covered(&mut self, token: Token) -> Vec<Entry> {
        let all = (token, WaiterId::from(1))..=(token, WaiterId::from(u64::MAX));
        let waiters: Vec<WaiterId> = self.by_token.range(all).map(|(_, waiter)| *waiter).collect();
        waiters.into_iter().filter_map(|waiter| self.take_cover(waiter)).collect()
    }

    fn take_cover(&mut self, waiter: WaiterId) -> Option<Entry> {
        let (token, entry) = self.covered.remove(&waiter)?;
        self.by_token.remove(&(token, waiter));
        Some(*entry)
    }

    /// Removes a waiter, in line or covered. False if it is not here.
    pub(crate) fn leave(&mut self, waiter: WaiterId) -> bool {
        let place = self.place_of(waiter);
        let stood = place.and_then(|place| self.remove(place)).is_some();
        stood || self.take_cover(waiter).is_some()
    }

    /// Removes all groups that need no turn here.
    pub(crate) fn leave_covered(&mut self) -> Vec<WaiterId> {
        let waiters: Vec<WaiterId> = self.covered.keys().copied().collect();
        waiters.iter().for_each(|waiter| drop(self.take_cover(*waiter)));
        waiters
    }

    /// Checks the groups of this lock.
    ///
    /// # Errors
    /// What is wrong, for tests.
    pub(super) fn check_groups(&self) -> Result<(), String> {
        let covered = self.covered.iter().map(|(waiter, (token, _))| (*token, *waiter));
        let is_twice = |waiter: &WaiterId| self.index.by_waiter.contains_key(waiter);
        let line = self.line_between(None, None).map(|(_, entry)| entry);
        let arrivals: Vec<Arrival> =
            line.filter(|entry| !entry.is_in_front).map(|entry| entry.arrival).collect();
        let agree = [
            ("tokens", covered.collect::<BTreeSet<_>>() == self.by_token),
            ("cover", !self.covered.keys().any(is_twice)),
            ("arrivals", self.group_count() == 0 || arrivals.is_sorted()),
        ];
        match agree.into_iter().find(|(_, agrees)| !agrees) {
            Some((what, _)) => Err(format!("{what} of groups disagrees: {self:?}")),
            None => Ok(()),
        }
    }
}
