//! Twelve clients that want one of three permits, with a lease or for as long as their connection
//! lasts; some hang up while they hold one, and sometimes one wants all of them.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

const KEY: &str = "permits";
const PERMITS: u32 = 3;

pub fn step(actor: &mut Actor) {
    let wait = match actor.rng.u8(..6) {
        0 => Wait::No,
        1 => Wait::Block(actor.rng.u64(1..20)),
        _ => Wait::Block(10_000),
    };
    let ask = Ask { wait, ..actor.ask() };
    let permit = Ask { mode: Mode::Read, limit: Some(PERMITS), ..ask };
    let ask = match actor.rng.u8(..16) {
        0 => ask,
        1 => {
            let after_ms = actor.rng.u64(..3);
            let session = Ask { session: true, lease_ms: 1000, ..permit };
            return actor.ask_and_hang_up(KEY, session, after_ms);
        }
        2..6 => Ask { session: true, lease_ms: 1000, ..permit },
        _ => permit,
    };
    if let Reply::Token(_) = actor.acquire(KEY, ask) {
        if actor.rng.u8(..3) == 0 {
            let ms = actor.rng.u64(..3);
            actor.stop.within(ms);
        }
        actor.release(KEY, ask.mode);
    }
}
