//! A script changes a counter after asking RLOCK.CHECK; some callers' leases may have expired by
//! then.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

const KEY: &str = "counter";

pub fn step(actor: &mut Actor) {
    let is_short = actor.rng.u8(..6) == 0;
    let lease_ms = if is_short { 4 } else { actor.ask().lease_ms };
    let ask = Ask { lease_ms, wait: Wait::Block(10_000), ..actor.ask() };
    let Reply::Token(token) = actor.acquire(KEY, ask) else { return };
    let stays_ms = if is_short { actor.rng.u64(..8) } else { 0 };
    actor.stop.within(stays_ms);
    actor.count(KEY, token);
    if !actor.is_unsure() {
        actor.release(KEY, Mode::Write);
        // From an owner that believes it still holds the lock.
        actor.count(KEY, token);
    }
}
