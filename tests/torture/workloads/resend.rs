//! Every command is sent twice, as client libraries do after a missed reply: with DEPTH it counts
//! once.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

pub fn step(actor: &mut Actor) {
    let key = format!("resend:{}", actor.rng.u8(..2));
    let ask = Ask { wait: Wait::Block(10_000), depth: Some(1), ..actor.ask() };
    let first = actor.acquire_twice(&key, ask);
    if !matches!(first, [Reply::Token(_), Reply::Token(_)]) {
        return;
    }
    if actor.rng.bool() {
        actor.acquire_twice(&key, Ask { depth: Some(2), ..ask });
        if actor.is_unsure() {
            return;
        }
        actor.release_twice(&key, Mode::Write, 1);
    }
    if !actor.is_unsure() {
        actor.release_twice(&key, Mode::Write, 0);
    }
}
