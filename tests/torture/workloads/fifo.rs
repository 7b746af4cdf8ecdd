//! One lock, seven clients that wait for it forever, and one that reads the queue all the time: a
//! waiter seen there must be granted before those that ask afterwards.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

const KEY: &str = "fifo";

pub fn step(actor: &mut Actor) {
    if actor.number.is_multiple_of(8) {
        actor.info(KEY);
        actor.stop.within(1);
        return;
    }
    let mode = if actor.rng.u8(..4) == 0 { Mode::Read } else { Mode::Write };
    let wait = if actor.rng.u8(..8) == 0 { Wait::No } else { Wait::Block(0) };
    let ask = Ask { mode, wait, ..actor.ask() };
    if let Reply::Token(_) = actor.acquire(KEY, ask) {
        let ms = actor.rng.u64(..3);
        actor.stop.within(ms);
        actor.release(KEY, mode);
    }
}
