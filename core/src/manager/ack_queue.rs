//! What replicas have yet to acknowledge, in the order in which it was written.

use std::collections::{BTreeMap, VecDeque};

use super::LockId;
use crate::Ack;

/// Items that wait for acknowledgments. Items that need the same number of replicas are
/// acknowledged in the order in which they were written.
#[derive(Default)]
pub(super) struct AckQueue {
    /// Items written in this loop iteration, whose offset is not known yet.
    pub(super) unnoted: Vec<(LockId, u8, Ack)>,
    /// Items by the number of replicas that must acknowledge them, each with the offset of the
    /// replication stream after it.
    pub(super) noted: BTreeMap<u8, VecDeque<(u64, LockId, Ack)>>,
}

impl AckQueue {
    pub(super) fn ask(&mut self, id: LockId, asked: Vec<(u8, Ack)>) {
        self.unnoted.extend(asked.into_iter().map(|(acks, what)| (id.clone(), acks, what)));
    }

    /// Whole databases changed: replicas must acknowledge that change as well.
    pub(super) fn ask_again(&mut self) {
        for (acks, queue) in std::mem::take(&mut self.noted) {
            self.unnoted.extend(queue.into_iter().map(|(_, id, what)| (id, acks, what)));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the items that enough replicas have acknowledged; `replicas` are the replicas'
    /// offsets, highest first. Each item comes with the number of its replicas.
    pub(super) fn take_reached(&mut self, replicas: &[u64]) -> Vec<(u8, LockId, Ack)> {
        let mut reached = Vec::new();
        for (acks, queue) in &mut self.noted {
            let farthest = usize::from(*acks).checked_sub(1).and_then(|place| replicas.get(place));
            let Some(farthest) = farthest else { continue };
            while queue.front().is_some_and(|(offset, _, _)| offset <= farthest) {
                reached.extend(queue.pop_front().map(|(_, id, what)| (*acks, id, what)));
            }
        }
        self.noted.retain(|_, queue| !queue.is_empty());
        reached
    }
}
