//! Where the groups of one lock are.

use std::collections::{BTreeMap, BTreeSet};

use super::place::Place;
use super::{Entry, Kind};
use crate::{Token, WaiterId};

/// The groups of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupPlaces {
    pub(super) places: BTreeMap<WaiterId, Place>,
    /// Groups that need no turn, because this hold of their owner covers the lock; each with the
    /// entry that it would have in line.
    pub(super) covered: BTreeMap<WaiterId, (Token, Box<Entry>)>,
    pub(super) by_token: BTreeSet<(Token, WaiterId)>,
    /// Groups that came to stand here, or whose turn was given, lost or became unnecessary, since
    /// the last call of `take`.
    pub(super) touched: Vec<WaiterId>,
}

impl GroupPlaces {
    /// A copy without the groups that stand in line.
    pub(super) fn without_places(&self) -> Self {
        let (covered, by_token) = (self.covered.clone(), self.by_token.clone());
        Self { places: BTreeMap::new(), covered, by_token, touched: Vec::new() }
    }

    pub(super) fn stands(&mut self, entry: &Entry, place: Place) {
        if let Some(waiter) = entry.kind.group() {
            self.places.insert(waiter, place);
        }
    }

    pub(super) fn stands_no_more(&mut self, entry: &Entry) {
        if let Some(waiter) = entry.kind.group() {
            self.places.remove(&waiter);
        }
    }

    /// The place of a group.
    pub(super) fn place(&self, waiter: WaiterId) -> Option<Place> {
        self.places.get(&waiter).copied()
    }

    /// This group got its turn, or is about to lose it.
    pub(super) fn touch(&mut self, kind: Kind) {
        if let Some(waiter) = kind.group() {
            self.touched.push(waiter);
        }
    }
}
