//! Readers and writers of one lock; writers that keep reading (downgrade), readers that become
//! writers (upgrade), and those that would wait for themselves.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

const KEY: &str = "readers";

pub fn step(actor: &mut Actor) {
    match actor.rng.u8(..8) {
        0..4 => enter(actor, Mode::Read, false),
        4 | 5 => enter(actor, Mode::Write, false),
        6 => {
            enter(actor, Mode::Write, false);
            enter(actor, Mode::Read, false);
            leave(actor, Mode::Write);
        }
        _ => {
            enter(actor, Mode::Read, false);
            enter(actor, Mode::Write, true);
        }
    }
    if actor.rng.u8(..3) == 0 {
        let ms = actor.rng.u64(..3);
        actor.stop.within(ms);
    }
    leave(actor, Mode::Write);
    leave(actor, Mode::Read);
}

fn enter(actor: &mut Actor, mode: Mode, upgrade: bool) {
    let wait = if actor.rng.u8(..5) == 0 { Wait::No } else { Wait::Block(5000) };
    let ask = Ask { mode, wait, upgrade, ..actor.ask() };
    if !actor.is_unsure() && actor.acquire(KEY, ask) == Reply::Deadlock {
        leave(actor, Mode::Read);
    }
}

fn leave(actor: &mut Actor, mode: Mode) {
    if !actor.is_unsure() && actor.token(KEY, mode).is_some() {
        actor.release_to(KEY, mode, Some(0));
    }
}
