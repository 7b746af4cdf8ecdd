//! What replicas must acknowledge, in the order in which it was written, and who gets a reply then.

use std::collections::{BTreeMap, VecDeque};

use super::{LockId, Manager};
use crate::{Ack, Acked, Confirmation, EpochMs, Now, Owner, Refusal, Token};

/// What waits for replicas. Items that need the same number of replicas are acknowledged in the
/// order in which they were written.
#[derive(Default)]
pub(super) struct Acks {
    /// Written in this loop iteration: the offset is not known yet.
    unnoted: Vec<(LockId, u8, Ack)>,
    /// By the number of replicas that must have it; each with the offset of the replication stream
    /// after it.
    noted: BTreeMap<u8, VecDeque<(u64, LockId, Ack)>>,
}

impl Acks {
    pub(super) fn ask(&mut self, id: LockId, asked: Vec<(u8, Ack)>) {
        self.unnoted.extend(asked.into_iter().map(|(acks, what)| (id.clone(), acks, what)));
    }

    /// Whole databases changed: replicas must have that, too.
    pub(super) fn ask_again(&mut self) {
        for (acks, queue) in std::mem::take(&mut self.noted) {
            self.unnoted.extend(queue.into_iter().map(|(_, id, what)| (id, acks, what)));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes what enough replicas have acknowledged; `replicas` are their offsets, highest first.
    /// Each comes with their number.
    fn take_reached(&mut self, replicas: &[u64]) -> Vec<(u8, LockId, Ack)> {
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

impl Manager {
    /// Checks that this many replicas are connected and have acknowledged anything.
    ///
    /// # Errors
    /// There are fewer replicas.
    pub fn may_confirm(asked: u8, online: usize) -> Result<(), Refusal> {
        if online >= usize::from(asked) {
            Ok(())
        } else {
            Err(Refusal::NoReplicas { asked, online })
        }
    }

    /// Whether the hold with this token is pending.
    pub fn is_pending(&self, db: i32, key: &[u8], token: Token) -> bool {
        let memory = self.locks.get(db, key);
        memory.is_some_and(|memory| memory.confirmation(token) == Confirmation::Pending)
    }

    /// Whether a reply or a session waits for acknowledgements. If so, report them before each
    /// sleep of the server's loop ([`Manager::acked`]).
    pub fn awaits_acks(&self) -> bool {
        let Acks { unnoted, noted } = &self.acks;
        !unnoted.is_empty() || !noted.is_empty()
    }

    /// Everything decided so far is in the replication stream before this offset. True if the
    /// replicas must be asked for acknowledgements.
    pub fn stream_is(&mut self, offset: u64) -> bool {
        let unnoted = std::mem::take(&mut self.acks.unnoted);
        let is_new = !unnoted.is_empty();
        for (id, acks, what) in unnoted {
            self.acks.noted.entry(acks).or_default().push_back((offset, id, what));
        }
        self.forget_late();
        is_new
    }

    /// Drops what nobody waits for any more, instead of keeping it until a silent replica
    /// disconnects.
    fn forget_late(&mut self) {
        let (waits, locks) = (&self.waits, &self.locks);
        let is_over = |(_, id, what): &(u64, LockId, Ack)| match what {
            Ack::Wait(waiter) => waits.get(*waiter).is_none_or(|parked| !parked.waits()),
            what => locks.get(id.db, &id.key).is_none_or(|memory| !memory.awaits(*what)),
        };
        for queue in self.acks.noted.values_mut() {
            while queue.front().is_some_and(is_over) {
                queue.pop_front();
            }
        }
        self.acks.noted.retain(|_, queue| !queue.is_empty());
    }

    /// Takes how far each replica has acknowledged the replication stream, in any order. Returns
    /// the owners of tickets whose turn it is; the replies are in [`Manager::take_answers`].
    pub fn acked(&mut self, replicas: &mut [u64], now: Now) -> Vec<(LockId, Owner)> {
        replicas.sort_unstable_by(|one, other| other.cmp(one));
        let mut turns = Vec::new();
        for (acks, id, what) in self.acks.take_reached(replicas) {
            // A change of the key awaits its sweep. Replicas must have that change, too.
            if self.is_unseen(&id) {
                self.acks.ask(id, vec![(acks, what)]);
                continue;
            }
            if self.locks.get(id.db, &id.key).is_none() {
                continue;
            }
            let (acked, asked) = self
                .locks
                .change_acks(&id, |memory| (memory.acked(what, now), memory.take_asked()));
            if !asked.is_empty() {
                self.acks.ask(id.clone(), asked);
            }
            match acked {
                Acked::Tells(wake) => self.outbox.push(wake),
                Acked::Turn(owner) => turns.push((id, owner)),
                Acked::Nothing => {}
            }
        }
        turns
    }

    /// When a grace of so many milliseconds ends; `None` if it has ended.
    pub(super) fn grace_of(&self, grace_ms: u64, now: Now) -> Option<EpochMs> {
        if grace_ms == 0 {
            return None;
        }
        let until = Now::from_ms(self.began_at?.get()).after_ms(grace_ms);
        Some(until).filter(|until| !until.is_over_at(now))
    }
}
