//! A request that has its seat.

use std::sync::Arc;

use crate::Inner;
use crate::clock::{ms, now};
use crate::driver::Driver;
use crate::machine::{self, Input, Output};
use crate::node::QUICK;
use crate::seat::{Seat, SeatGuard};

/// A request that has its seat, and the next outputs of its machine.
pub(crate) struct Begun<M> {
    // Dropped first: as soon as the driver has dropped the seat, another request must not find this
    // level.
    pub(crate) level: SeatGuard,
    pub(crate) machine: M,
    pub(crate) out: Vec<Output>,
    pub(crate) driver: Driver,
}

impl<M: machine::Machine> Begun<M> {
    pub(crate) fn seat(&self) -> Arc<Seat> {
        self.driver.seat()
    }

    /// Sends the first request on the calling thread. False if that requires a task.
    pub(crate) fn ask_quickly(&mut self, inner: &Inner, key: &[u8]) -> bool {
        let Some(&Output::Send(request, by)) = self.out.first() else { return false };
        if by < now().saturating_add(ms(QUICK)) {
            return false; // if no reply came, the call would return late
        }
        let words = self.driver.words(request);
        let Some(reply) = inner.servers.ask_quickly(key, &words) else { return false };
        let outcome = self.driver.outcome(Some(reply));
        self.out.clear();
        self.machine.step(now(), Input::Ended(outcome), &mut self.out);
        true
    }
}
