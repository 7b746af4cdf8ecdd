//! Three locks out of four, in any order, waiting forever: the client that would close a cycle gets
//! an error and releases, so that all others continue.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

const LOCKS: usize = 4;

pub fn step(actor: &mut Actor) {
    let mut keys: Vec<String> = (0..LOCKS).map(|number| format!("orders:{number}")).collect();
    actor.rng.shuffle(&mut keys);
    keys.truncate(3);
    let mode = if actor.rng.u8(..4) == 0 { Mode::Read } else { Mode::Write };
    let ask = Ask { mode, wait: Wait::Block(0), ..actor.ask() };
    for key in &keys {
        if !matches!(actor.acquire(key, ask), Reply::Token(_)) {
            break;
        }
    }
    for key in &keys {
        if !actor.is_unsure() && actor.token(key, mode).is_some() {
            actor.release(key, mode);
        }
    }
}
