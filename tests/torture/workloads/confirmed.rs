//! Grants and renewals that a replica must acknowledge, with a lease or for as long as the
//! connection lasts: of a lock that one owner can hold, or of three permits.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

const ACKS: u32 = 1;
const PERMITS: u32 = 3;

pub fn lock(actor: &mut Actor) {
    hold("confirmed", Mode::Write, None, actor);
}

pub fn permit(actor: &mut Actor) {
    hold("quota", Mode::Read, Some(PERMITS), actor);
}

fn hold(key: &str, mode: Mode, limit: Option<u32>, actor: &mut Actor) {
    // A lease is certain from the time of the request: most of it remains after a short wait.
    let wait = match actor.rng.u8(..8) {
        0 => Wait::No,
        1..7 => Wait::Block(actor.rng.u64(1..80)),
        _ => Wait::Block(10_000),
    };
    let session = actor.rng.u8(..4) == 0;
    let ask = Ask { mode, wait, session, limit, acks: ACKS, ..actor.ask() };
    if let Reply::Token(_) = actor.acquire(key, ask) {
        let ms = match actor.rng.u8(..16) {
            // So long that two holders at once are seen.
            _ if actor.is_cut() => actor.rng.u64(100..700),
            0..4 => actor.rng.u64(1..4),
            _ => 0,
        };
        actor.stop.within(ms);
        if actor.rng.u8(..4) == 0 {
            actor.renew_acked(key, mode, ACKS);
        }
        actor.release(key, mode);
    }
}
