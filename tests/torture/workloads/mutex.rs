//! Two locks and eight clients: each waits, acquires, works for a moment or not at all, and
//! releases.

use crate::actor::Actor;
use crate::history::{Ask, Reply, Wait};

pub fn step(actor: &mut Actor) {
    let key = format!("mutex:{}", actor.rng.u8(..2));
    let wait = match actor.rng.u8(..8) {
        0 => Wait::No,
        1 => Wait::Block(actor.rng.u64(1..20)),
        _ => Wait::Block(10_000),
    };
    let ask = Ask { wait, ..actor.ask() };
    if let Reply::Token(_) = actor.acquire(&key, ask) {
        if actor.rng.u8(..4) == 0 {
            let ms = actor.rng.u64(..3);
            actor.stop.within(ms);
        }
        actor.release(&key, ask.mode);
    }
}
