//! Groups by owner.

use super::Manager;
use super::group::Group;
use crate::{Owner, WaiterId};

impl Manager {
    /// The waiting groups of this owner.
    pub(super) fn group_waits_of<'a>(
        &'a self,
        db: i32,
        owner: &'a [u8],
    ) -> impl Iterator<Item = (WaiterId, &'a Group)> {
        let hash = Owner::hash_of(owner);
        let all = (db, hash, WaiterId::from(1))..=(db, hash, WaiterId::from(u64::MAX));
        let all = self.groups.by_owner.range(all).map(|(_, _, waiter)| *waiter);
        all.filter_map(|waiter| Some((waiter, self.groups.all.get(&waiter)?)))
            .filter(move |(_, group)| group.waits() && group.entry.owner.as_bytes() == owner)
    }
}
