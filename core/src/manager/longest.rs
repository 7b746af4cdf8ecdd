//! The longest queues, for operators.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::Manager;
use crate::Now;

/// A queue, as [`Manager::longest_queues`](super::Manager::longest_queues) returns it.
#[derive(Clone, Debug)]
pub struct LongQueue {
    /// Its lock.
    pub key: Rc<[u8]>,
    /// How many wait.
    pub len: usize,
    /// Since when the first waiter has waited.
    pub since: Now,
}

impl Manager {
    /// How many locks of each database have a queue; databases without queues are left out.
    pub fn queues(&self) -> impl Iterator<Item = (i32, usize)> {
        self.locks.queues()
    }

    /// The longest queues of a database, longest first, but at most this many. Which of several
    /// equally long queues are returned depends on their keys. For most queues, only the length is
    /// examined.
    pub fn longest_queues(&self, db: i32, most: usize) -> Vec<LongQueue> {
        let mut longest = BinaryHeap::new();
        for (number, known) in self.locks.known.iter().enumerate() {
            let Some(known) = known.as_ref().filter(|known| known.id.db == db) else { continue };
            let len = known.volatile.queue.len();
            let least = longest.peek().filter(|_| longest.len() >= most);
            if len > least.map_or(0, |Reverse((least, _))| *least) {
                longest.push(Reverse((len, number)));
                if longest.len() > most {
                    longest.pop();
                }
            }
        }
        let shown = longest.into_iter().filter_map(|Reverse((len, number))| {
            let known = self.locks.at(number)?;
            let (head, _) = known.volatile.queue.iter().next()?;
            Some(LongQueue { key: known.id.key.clone(), len, since: head.since })
        });
        let mut shown: Vec<LongQueue> = shown.collect();
        shown.sort_unstable_by(|a, b| b.len.cmp(&a.len).then_with(|| a.key.cmp(&b.key)));
        shown
    }
}
