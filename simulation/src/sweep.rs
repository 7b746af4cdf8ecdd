//! What a simulated server's module does by itself: as `src/sweep.rs`, `src/timers.rs`,
//! `src/gate.rs` and `src/closing.rs` do it.

use rlock_core::manager::{LockId, Mark, Next, Task};
use rlock_core::{Input, Lock, Refusal};

use crate::fault::Fault;
use crate::notes::{By, Note};
use crate::seen::Kind;
use crate::server::Server;

/// Connections are closed two iterations of the loop after they are known.
const CLOSING_TURNS: u8 = 2;

impl Server {
    /// Sets the timers to what the manager wants to be asked next.
    pub(crate) fn settle(&mut self) {
        let Next { soon, when_open, at } = self.manager.next_call();
        if let Some(at) = at.filter(|_| self.fault != Fault::AlarmForgotten) {
            self.timers.alarm = Some(self.timers.alarm.map_or(at, |set| set.min(at)));
        }
        if soon {
            self.timers.is_coming = true;
        } else if when_open {
            self.timers.is_retrying = true;
        }
    }

    pub(crate) fn settle_closing(&mut self) {
        // No command of the simulated server's waits for a key.
        while self.manager.next_lost().is_some() {}
        if self.manager.has_to_close() && self.timers.closing == 0 {
            self.timers.closing = CLOSING_TURNS;
        }
    }

    /// Nothing is left to be done in the next iteration of the loop.
    pub fn is_at_rest(&self) -> bool {
        let Self { timers, now, .. } = self;
        !timers.is_coming
            && timers.closing == 0
            && timers.late.is_empty()
            && !timers.alarm.is_some_and(|at| at.is_over_at(*now))
    }

    /// One iteration of the server's loop: timers that are due, at most `portion` tasks.
    pub fn turn(&mut self, portion: usize) {
        self.forget_answered();
        for waiter in std::mem::take(&mut self.timers.late) {
            self.unpark(waiter);
        }
        self.time_out_net();
        if self.timers.closing > 0 {
            self.timers.closing -= 1;
            if self.timers.closing == 0 {
                self.close();
            }
        }
        if self.timers.alarm.is_some_and(|at| at.is_over_at(self.now)) {
            self.timers.alarm = None;
            self.timers.is_coming = true;
        }
        let retries = std::mem::take(&mut self.timers.is_retrying);
        if std::mem::take(&mut self.timers.is_coming) || retries {
            self.sweep(portion);
        }
        self.look();
        self.settle();
    }

    fn close(&mut self) {
        while let Some(client) = self.manager.next_to_close() {
            if self.fault != Fault::ClosingForgotten {
                self.free(client);
            }
            self.manager.closed(client);
        }
    }

    fn sweep(&mut self, portion: usize) {
        self.publish_removed();
        self.manager.sweep_begins(self.now);
        let mut is_asked = false;
        for _ in 0..portion {
            if !is_asked {
                self.manager.presume_open();
            }
            let Some(task) = self.manager.next_task(self.now) else { break };
            is_asked |= self.carry_out_task(task, is_asked);
            let answers = self.manager.take_answers();
            self.tell_waiters(answers);
        }
        let answers = self.manager.take_answers();
        self.tell_waiters(answers);
        self.settle_closing();
    }

    fn carry_out_task(&mut self, task: Task, is_open: bool) -> bool {
        match task {
            Task::Sweep(LockId { db, key }, due_at, why) => {
                let is_open =
                    is_open || self.fault == Fault::GateLeftOpen || !self.refuses_writes();
                self.manager.gate_is(is_open, self.now);
                if !is_open {
                    self.note(Note::Saw(Kind::Postponed));
                    self.manager.postpone(LockId { db, key }, due_at, why);
                    return true;
                }
                let input = if why == Mark::Changed { Input::Changed } else { Input::Tick };
                if self.carry_out(db, &key, input, &[], &By::Itself).is_err() {
                    let at = self.at(db, &key);
                    self.manager.dismiss(at, &Refusal::WrongType);
                }
            }
            Task::See(id, why) => {
                self.expire_if_due(id.db, &id.key);
                let free = Lock::default();
                let slot = self.visible(id.db, &id.key).cloned();
                let lock = slot.as_ref().and_then(|slot| slot.lock()).unwrap_or(&free);
                self.manager.see(&id, why, lock, self.now);
            }
        }
        true
    }
}
