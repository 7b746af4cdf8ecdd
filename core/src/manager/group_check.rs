//! Invariants of groups, for tests.

use super::groups::bit;
use super::{LockId, Manager};
use crate::GroupStand;

impl Manager {
    /// Checks the groups.
    ///
    /// # Errors
    /// What is wrong, for tests.
    pub(super) fn check_groups_of_all(&self) -> Result<(), String> {
        let (mut waiting, mut turns, mut places) = (0_usize, 0_usize, 0_usize);
        for (waiter, group) in self.groups.all.iter().filter(|(_, group)| group.waits()) {
            waiting = waiting.saturating_add(1);
            for (number, key) in group.keys.iter().enumerate() {
                let stand = self.group_stand(group.db, &key.key, *waiter);
                places = places.saturating_add(
                    matches!(stand, Some(GroupStand::Line | GroupStand::Turn)).into(),
                );
                let has_turn = stand == Some(GroupStand::Turn);
                turns = turns.saturating_add(has_turn.into());
                let is_right = match stand {
                    Some(GroupStand::Turn | GroupStand::Covered) => number < group.reached,
                    Some(GroupStand::Line) => number == group.reached && group.stands,
                    None => number >= group.reached && !(number == group.reached && group.stands),
                };
                // It may differ while the group is about to go back, or the queue to be served.
                let volatile = self.locks.get(group.db, &key.key);
                let is_unserved = volatile.is_some_and(|volatile| volatile.is_unserved);
                let is_right = is_right || is_unserved || self.groups.is_going_back(*waiter);
                if !is_right || has_turn != (group.turns & bit(number) != 0) {
                    return Err(format!("{waiter:?} is {stand:?} at {number} of {group:?}"));
                }
            }
            let is_busy = self.groups.in_grace.contains(waiter)
                || self.groups.is_moving(*waiter)
                || group.next_key().is_some_and(|key| {
                    let volatile = self.locks.get(group.db, &key.key);
                    volatile.is_some_and(|volatile| volatile.is_unserved)
                });
            if !group.stands && !is_busy {
                return Err(format!("{waiter:?} neither stands nor moves: {group:?}"));
            }
        }
        for (waiter, group) in &self.groups.leaving {
            let stands = |id: &LockId| {
                let stand = self.group_stand(id.db, &id.key, *waiter);
                matches!(stand, Some(GroupStand::Line | GroupStand::Turn))
            };
            places = places.saturating_add(group.places().filter(stands).count());
        }
        let known = self.locks.totals().groups;
        if (waiting, turns) != (self.groups.waiting_count(), self.groups.turns) || places != known {
            return Err(format!("{waiting} groups, {turns} turns, {places} places of {known}"));
        }
        Ok(())
    }
}
