//! The loop of a simulated server: timers, timeouts, connections to close, and its sleep.

use rlock_core::{Lock, WaiterId};
use rlock_engine::{Deferred, acks, blocked, timers};

use crate::fault::Fault;
use crate::history::Item;
use crate::host::{Edge, Running};
use crate::keyspace::{Key, Slot};
use crate::notes::Note;
use crate::seen::Kind;
use crate::server::Server;
use crate::waiting::Waiting;

/// A connection that must be closed is closed after two more loop iterations.
const CLOSING_TURNS: u8 = 2;

impl Server {
    /// Whether nothing remains to be done in the next loop iteration.
    pub fn is_at_rest(&self) -> bool {
        let Self { timers, state, now, .. } = self;
        state.is_at_rest()
            && timers.closing == 0
            && !timers.alarm.is_some_and(|at| at.is_over_at(*now))
    }

    /// One loop iteration of the server: timers that are due, and at most `portion` tasks.
    pub fn turn(&mut self, portion: usize) {
        self.portion = portion;
        self.forget_answered();
        if self.timers.closing > 0 {
            self.timers.closing -= 1;
            if self.timers.closing == 0 {
                self.close();
            }
        }
        if self.timers.alarm.is_some_and(|at| at.is_over_at(self.now)) {
            self.timers.alarm = None;
            self.engine(|edge| timers::soon(edge));
        }
        for call in self.due_calls() {
            self.ticks = 0;
            let was_shut = self.state.is_retrying();
            self.engine(|edge| rlock_engine::run_deferred(edge, call));
            if self.state.is_retrying() && !was_shut {
                self.note(Note::Saw(Kind::Postponed));
            }
        }
        self.sleep();
    }

    /// The server's clock was set.
    pub fn clock_was_set(&mut self) {
        self.clock_stepped = true;
        self.engine(|edge| timers::clock_was_set(edge));
    }

    /// Deferred work that was scheduled before this iteration, and is due.
    fn due_calls(&mut self) -> Vec<Deferred> {
        let now_ms = self.now_ms();
        let (due, later) = self.timers.calls.iter().partition(|(at_ms, _)| *at_ms <= now_ms);
        self.timers.calls = later;
        let due: Vec<(u64, Deferred)> = due;
        due.into_iter().map(|(_, call)| call).collect()
    }

    fn sleep(&mut self) {
        if self.timers.is_watching {
            let running = Running { is_sleeping: true, ..Running::default() };
            self.in_one_unit(|server| acks::before_sleep(&Edge::new(server, running)));
            // This fault invented replicas, which the next request must not count.
            if matches!(self.fault, Fault::ToldAtOnce | Fault::SessionUnacknowledged) {
                self.replica_left();
            }
        }
        self.slept_at = self.offset;
    }

    pub(crate) fn settle_closing(&mut self) {
        // No command of the simulated server itself waits for a key.
        while self.state.manager.closing.next_lost().is_some() {}
        if self.state.manager.closing.has_to_close() && self.timers.closing == 0 {
            self.timers.closing = CLOSING_TURNS;
        }
    }

    fn close(&mut self) {
        while let Some(client) = self.state.manager.closing.next_to_close() {
            if self.fault != Fault::ClosingForgotten {
                self.free(client);
            }
            self.state.manager.closing.closed(client);
        }
    }

    /// The server unblocks connections that have got their reply.
    fn forget_answered(&mut self) {
        let answered = |waiting: &mut Waiting| waiting.is_answered;
        let mut done = Vec::new();
        for (client, conn) in &mut self.conns {
            done.extend(conn.waiting.take_if(answered).map(|waiting| (*client, waiting)));
        }
        for (client, mut waiting) in done {
            waiting.aside.take().into_iter().for_each(|said| self.say(client, said));
            if waiting.is_lost {
                self.forget_wait(waiting);
            } else {
                self.over(waiting.waiter, false);
            }
        }
    }

    pub(crate) fn over(&mut self, waiter: WaiterId, is_lost: bool) {
        let is_lost = is_lost && self.fault != Fault::UndoForgotten;
        self.engine(|edge| blocked::over(edge, waiter, is_lost));
    }

    /// A replica connected, and is to be asked for its offset.
    pub(crate) fn replica_came(&mut self) {
        self.engine(|edge| acks::replica_came(edge));
    }

    /// A replica disconnected.
    pub(crate) fn replica_left(&mut self) {
        self.engine(|edge| acks::replica_left(edge));
    }

    /// Whether only sessions wait for acknowledgments.
    pub(crate) fn only_sessions_wait(&self) -> bool {
        let waits = |waiting: &Waiting| !waiting.pending.is_empty();
        let is_pending = |(db, key, slot): (i32, &Key, &Slot)| {
            let mut holds = slot.lock().into_iter().flat_map(Lock::holds);
            holds.any(|(.., hold)| self.state.manager.is_pending(db, key, hold.token))
        };
        !self.all_waiting().any(waits) && !self.keys.iter().any(is_pending)
    }

    /// Sends `REPLCONF GETACK` in the replication stream.
    pub(crate) fn ask_replicas(&mut self) {
        self.units.next();
        let item = Item::getack(self.history.point(), self.units.current());
        self.send(item);
        self.units.next();
    }

    /// Appends a command to the replication stream.
    pub(crate) fn send(&mut self, item: Item) {
        self.offset += 1;
        self.stream.push(item);
    }
}
