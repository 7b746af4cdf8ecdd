//! Invariants of the volatile parts and their indexes, for tests.

use std::collections::{BTreeMap, BTreeSet};

use super::{Known, Locks, Slot, Times, Totals};
use crate::value::small_map::SmallMap;
use crate::{ClientId, Queue};

impl Locks {
    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold, for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut totals = Totals::default();
        let [mut alarms, mut renewals, mut ends] = [const { BTreeSet::new() }; 3];
        let mut with_waiters = BTreeSet::new();
        let mut queues: BTreeMap<i32, usize> = BTreeMap::new();
        let mut marked = BTreeSet::new();
        let mut sessions: BTreeMap<ClientId, SmallMap<Slot>> = BTreeMap::new();
        for (number, known) in self.known.iter().enumerate() {
            let Some(Known { id, volatile, times: Times { alarm, .. }, mark, .. }) =
                known.as_deref()
            else {
                if !self.free.contains(&number) {
                    return Err(format!("place {number} is neither used nor free"));
                }
                continue;
            };
            if self.number(id.db, &id.key) != Some(number) {
                return Err(format!("{id:?} is not found at {number}"));
            }
            if volatile.is_empty() && mark.is_none() {
                return Err(format!("nothing is remembered of {id:?}"));
            }
            volatile.check().map_err(|what| format!("{what}, at {id:?}"))?;
            totals = totals.moved(Totals::default(), Totals::of(volatile));
            alarms.extend(alarm.map(|alarm| (alarm, number)));
            renewals.extend(known.as_deref().and_then(Known::next_renewal).map(|at| (at, number)));
            ends.extend(volatile.sessions.next_end().map(|end| (end, number)));
            marked.extend(mark.map(|_| number));
            let has_blocked = Totals::of(volatile).has_blocked();
            with_waiters.extend(has_blocked.then_some((id.db, number)));
            if !volatile.queue.is_empty() {
                let count = queues.entry(id.db).or_default();
                *count = count.saturating_add(1);
            }
            for client in volatile.sessions.clients() {
                sessions.entry(client).or_default().insert(number, ());
            }
        }
        let queued: BTreeSet<Slot> = self.marked.iter().map(|(_, number)| *number).collect();
        let agree = [
            ("totals", totals == self.totals),
            ("alarms", alarms == self.alarms && ends == self.session_ends),
            ("renewals", renewals == self.renewals),
            ("crowded", with_waiters == self.with_waiters),
            ("queues", queues == self.queues().collect()),
            ("sessions", sessions == self.sessions),
            ("marked", marked == queued && self.marked.len() == queued.len()),
            ("names", self.names.len() == self.known.iter().flatten().count()),
            ("scratch", is_unused(&self.scratch) && self.spare.as_deref().is_none_or(is_unused)),
        ];
        match agree.into_iter().find(|(_, agrees)| !agrees) {
            Some((what, _)) => Err(format!("{what} disagree with what is remembered")),
            None => Ok(()),
        }
    }
}

/// Whether nothing is left of an earlier use.
fn is_unused(known: &Known) -> bool {
    let Times { alarm, renewal, session_end } = known.times;
    let is_indexed =
        [alarm, renewal, session_end].iter().any(Option::is_some) || known.mark.is_some();
    known.volatile.is_empty() && known.volatile.queue == Queue::default() && !is_indexed
}
