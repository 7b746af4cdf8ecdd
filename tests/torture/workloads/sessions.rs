//! Holds that are tied to a connection. The client releases, or closes the connection while it
//! holds or waits. The next waiter gets the lock at once, long before the lease expires.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

pub fn step(actor: &mut Actor) {
    let key = format!("sessions:{}", actor.rng.u8(..2));
    let session = actor.rng.u8(..4) > 0;
    let ask = Ask { wait: Wait::Block(10_000), session, ..actor.ask() };
    if actor.rng.u8(..10) == 0 {
        let after_ms = actor.rng.u64(..3);
        actor.ask_and_hang_up(&key, Ask { session: true, lease_ms: 1000, ..ask }, after_ms);
        return;
    }
    if !matches!(actor.acquire(&key, ask), Reply::Token(_)) {
        return;
    }
    match actor.rng.u8(..4) {
        0 if session => actor.hang_up(&key),
        1 => {
            actor.stop.within(2);
            actor.renew(&key, Mode::Write);
            actor.release(&key, Mode::Write);
        }
        _ => drop(actor.release(&key, Mode::Write)),
    }
}
