//! Replies that wait for acknowledgments.

use super::ack_queue::AckQueue;
use super::{LockId, Manager};
use crate::{Ack, Now, Refusal, Token};

impl Manager {
    /// Checks that this many replicas are connected and have acknowledged something.
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
        let volatile = self.locks.get(db, key);
        volatile.is_some_and(|volatile| volatile.pending_acks(token).is_some())
    }

    /// Whether a reply or a session waits for acknowledgments. If so, report acknowledgments
    /// ([`Manager::acked`]) before each sleep of the server's loop.
    pub fn awaits_acks(&self) -> bool {
        let AckQueue { unnoted, noted } = &self.acks;
        !unnoted.is_empty() || !noted.is_empty()
    }

    /// Sets the offset of the replication stream after everything decided so far. True if the
    /// replicas must be asked for acknowledgments.
    pub fn stream_is(&mut self, offset: u64) -> bool {
        let unnoted = std::mem::take(&mut self.acks.unnoted);
        let is_new = !unnoted.is_empty();
        for (id, acks, what) in unnoted {
            self.acks.noted.entry(acks).or_default().push_back((offset, id, what));
        }
        self.forget_late();
        is_new
    }

    /// Drops items that nobody waits for any more, instead of keeping them until a silent replica
    /// disconnects.
    fn forget_late(&mut self) {
        let (waits, tells, locks) = (&self.waits, &self.tells, &self.locks);
        let is_over = |(_, id, what): &(u64, LockId, Ack)| match what {
            Ack::Wait(waiter) => {
                !tells.waits(*waiter) && waits.get(*waiter).is_none_or(|parked| !parked.waits())
            }
            Ack::Deadline(token, ..) => {
                let volatile = locks.get(id.db, &id.key);
                volatile.is_none_or(|volatile| volatile.sessions.acks_of(*token) == 0)
            }
        };
        for queue in self.acks.noted.values_mut() {
            while queue.front().is_some_and(is_over) {
                queue.pop_front();
            }
        }
        self.acks.noted.retain(|_, queue| !queue.is_empty());
    }

    /// Takes the offset that each replica has acknowledged, in any order. The resulting replies are
    /// in [`Manager::take_answers`].
    pub fn acked(&mut self, replicas: &mut [u64], now: Now) {
        replicas.sort_unstable_by(|one, other| other.cmp(one));
        for (acks, id, what) in self.acks.take_reached(replicas) {
            if let Ack::Wait(grant) = what
                && self.groups.all.contains_key(&grant)
            {
                self.several_acked(grant, now);
                continue;
            }
            // A change of the key awaits its sweep. Replicas must acknowledge that change, too.
            if self.is_unseen(id.db, &id.key) {
                self.acks.ask(id, vec![(acks, what)]);
                continue;
            }
            let (acked, asked) = self
                .locks
                .change_acks(&id, |volatile| (volatile.acked(what, now), volatile.take_asked()));
            if let Some(wake) = acked {
                self.observers.mark(id.db, &id.key, true);
                self.outbox.push(wake);
            }
            self.acks.ask(id, asked);
        }
    }
}
