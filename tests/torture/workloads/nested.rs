//! Re-entry up to four levels deep; release level by level or all at once.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

pub fn step(actor: &mut Actor) {
    let key = format!("nested:{}", actor.rng.u8(..2));
    let ask = Ask { wait: Wait::Block(10_000), ..actor.ask() };
    if !matches!(actor.acquire(&key, ask), Reply::Token(_)) {
        return;
    }
    for _ in 0..actor.rng.u8(..4) {
        match actor.rng.u8(..6) {
            0 => drop(actor.renew(&key, Mode::Write)),
            1 => drop(actor.release(&key, Mode::Write)),
            _ => drop(actor.acquire(&key, ask)),
        }
        if actor.is_unsure() || actor.token(&key, Mode::Write).is_none() {
            return;
        }
    }
    let at_once = actor.rng.bool();
    while actor.token(&key, Mode::Write).is_some() && !actor.is_unsure() {
        actor.release_to(&key, Mode::Write, at_once.then_some(0));
    }
}
