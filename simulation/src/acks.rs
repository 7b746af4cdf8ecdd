//! Grants whose reply waits for acknowledgements on a simulated server: as `src/acks.rs` does it.

use rlock_core::manager::Manager;
use rlock_core::{Lock, Mode, Refusal, WaiterId, text};

use crate::fault::Fault;
use crate::history::Item;
use crate::keyspace::{Key, Slot};
use crate::notes::{Note, Pending};
use crate::server::{Conn, Server, Waiting};

/// As many replicas as nobody has.
const ALL: usize = 16;

impl Server {
    /// Whether as many replicas are connected as are to acknowledge a request.
    pub(crate) fn may_confirm(&mut self, acks: u8) -> Result<(), Refusal> {
        if acks == 0 {
            return Ok(());
        }
        let may = Manager::may_confirm(acks, self.replicas.len());
        self.note(Note::AskedAcks { acks, is_let_in: may.is_ok() });
        may
    }

    /// What is done before the server's loop sleeps.
    pub(crate) fn look(&mut self) {
        if std::mem::take(&mut self.timers.greets) && self.is_primary && !self.is_paused() {
            self.ask_replicas();
        }
        let slept_at = std::mem::replace(&mut self.slept_at, self.offset);
        if !self.manager.awaits_acks() {
            return;
        }
        let is_early = self.fault == Fault::OffsetNotedEarly;
        if self.manager.stream_is(if is_early { slept_at } else { self.offset }) {
            self.timers.is_asking = true;
        }
        if self.timers.is_asking && !self.is_paused() {
            self.timers.is_asking = false;
            self.ask_replicas();
        }
        let mut acknowledged = self.acknowledged();
        let turns = self.manager.acked(&mut acknowledged, self.now);
        let told = self.manager.take_answers();
        let is_news = !turns.is_empty() || !told.is_empty();
        self.tell_waiters(told);
        for (id, owner) in turns {
            let event = format!("rlock.turn:{}", text::escaped(owner.as_bytes()));
            self.events.push((id.db, id.key.clone(), event));
            self.note(Note::TurnAcked { db: id.db, key: id.key, owner });
        }
        if is_news {
            self.settle();
        }
        self.slept_at = self.offset;
    }

    /// How far the replicas are that are connected and have acknowledged anything.
    fn acknowledged(&self) -> Vec<u64> {
        match self.fault {
            Fault::ToldAtOnce => vec![self.offset; ALL],
            Fault::SessionUnacknowledged if self.has_told_all() => vec![self.offset; ALL],
            _ => self.replicas.clone(),
        }
    }

    /// Only sessions wait for acknowledgements.
    fn has_told_all(&self) -> bool {
        let waits = |conn: &Conn| {
            let waiting = conn.waiting.as_ref();
            waiting.is_some_and(|waiting| waiting.pending.is_some())
        };
        let is_untold = |(db, key, slot): (i32, &Key, &Slot)| {
            let mut holds = slot.lock().into_iter().flat_map(Lock::holds);
            holds.any(|(.., hold)| self.manager.is_pending(db, key, hold.token))
        };
        !self.conns.values().any(waits) && !self.keys.iter().any(is_untold)
    }

    /// `REPLCONF GETACK`, along the replication stream.
    fn ask_replicas(&mut self) {
        self.send(Item::getack(self.history.point()));
    }

    /// One command more of the replication stream.
    pub(crate) fn send(&mut self, item: Item) {
        self.offset += 1;
        self.stream.push(item);
    }

    /// This blocked connection's hold stands, and it is told when replicas have acknowledged it.
    pub(crate) fn pend(&mut self, waiter: WaiterId) {
        let Some(client) = self.client_of(waiter) else { return };
        let (at, now) = (self.history.point(), self.now);
        let Some(Waiting { asked, renewal, pending: None, .. }) =
            self.conns[&client].waiting.as_ref()
        else {
            return;
        };
        let asked = asked.clone();
        let mode = renewal.map_or(Some(asked.mode), |mode| mode);
        // It may have ended in the step in which it began.
        let lock = self.keys.get(asked.db, &asked.key).and_then(Slot::lock);
        let holds = |held: Mode| {
            let mut holds = lock?
                .holds()
                .filter(|(owner, is, _)| *owner == asked.owner.as_bytes() && *is == held);
            holds.next().map(|(.., hold)| (held, hold))
        };
        let modes = [Mode::Write, Mode::Read].into_iter();
        let mut modes = modes.filter(|held| mode.is_none_or(|only| only == *held));
        let Some((held, hold)) = modes.find_map(holds) else { return };
        let (token, renews) = (hold.token, renewal.is_some());
        let deadline = hold.deadline.get();
        let pending = Pending { token, at, granted_at: now, deadline, renews, held, mode };
        if let Some(waiting) = self.waiting_mut(client) {
            waiting.pending = Some(pending);
        }
        self.note(Note::Pending { asked: Box::new(asked), pending });
    }

    /// What was granted to this connection is told to it no more.
    pub(crate) fn unconfirmed(&mut self, waiting: &mut Waiting) {
        if let Some(pending) = waiting.pending.take() {
            let (asked, waiter) = (Box::new(waiting.asked.clone()), waiting.waiter);
            self.note(Note::Unconfirmed { asked, pending, waiter });
        }
    }
}
