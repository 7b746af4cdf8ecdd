//! What the waiters of a queue are found by.

use std::collections::{BTreeMap, BTreeSet};

use super::place::Place;
use super::{Entry, Kind, ways};
use crate::value::count::less;
use crate::{ClientId, WaiterId};

/// The places of the waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// By a hash of the owner and the kind of wait ([`ways::key_of`]). A hash takes half the memory
    /// of another copy of the name.
    pub(super) by_owner: BTreeSet<(u64, Place)>,
    /// All but the tickets.
    pub(super) by_waiter: BTreeMap<WaiterId, Place>,
    /// Those who wait for this lock alone.
    pub(super) by_client: BTreeSet<(ClientId, Place)>,
    /// How many of the waiters in `by_waiter` get their reply as a message.
    pub(super) told: usize,
    /// How many of them are groups.
    pub(super) groups: usize,
}

impl Index {
    pub(super) fn insert(&mut self, place: Place, entry: &Entry) {
        self.by_owner.insert((ways::key_of(entry), place));
        if let Some(waiter) = entry.kind.number() {
            self.by_waiter.insert(waiter, place);
        }
        match entry.kind {
            Kind::Told(_) => self.told = self.told.saturating_add(1),
            Kind::Group(_) => self.groups = self.groups.saturating_add(1),
            Kind::Blocked(_) | Kind::Ticket => {}
        }
        self.by_client.extend(Self::connection(entry).map(|client| (client, place)));
    }

    pub(super) fn remove(&mut self, place: Place, entry: &Entry) {
        self.by_owner.remove(&(ways::key_of(entry), place));
        if let Some(waiter) = entry.kind.number() {
            self.by_waiter.remove(&waiter);
        }
        match entry.kind {
            Kind::Told(_) => self.told = less(self.told, 1),
            Kind::Group(_) => self.groups = less(self.groups, 1),
            Kind::Blocked(_) | Kind::Ticket => {}
        }
        Self::connection(entry).map(|client| self.by_client.remove(&(client, place)));
    }

    fn connection(entry: &Entry) -> Option<ClientId> {
        entry.client.filter(|_| entry.kind.waiter().is_some())
    }
}
