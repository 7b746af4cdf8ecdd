//! A new lock every few milliseconds, for a handful of operations of four actors in any order: many
//! short histories that begin with a free lock.

use crate::actor::Actor;
use crate::clock::{ms, now_ns};
use crate::history::{Ask, Mode, Reply, Wait};

/// All actors of all processes use the same lock without communicating.
const SLICE_MS: f64 = 8.0;
/// At most this many requests of each of them, and two to release.
const OPS: u32 = 5;

pub fn step(actor: &mut Actor) {
    let slice = (ms(now_ns()) / SLICE_MS) as u64;
    let key = format!("window:{slice}");
    // In two of three windows, some readers set a limit for readers, all the same one.
    let limit = Some((slice % 3) as u32).filter(|limit| *limit > 0);
    for _ in 0..OPS {
        if actor.is_unsure() {
            return;
        }
        any(actor, &key, limit);
    }
    for mode in [Mode::Write, Mode::Read] {
        if actor.token(&key, mode).is_some() {
            actor.release_to(&key, mode, Some(0));
        }
    }
    // Wait for the next lock, so that this one is not used again.
    let next_ms = (slice + 1) as f64 * SLICE_MS - ms(now_ns());
    actor.stop.within(next_ms.max(0.0).ceil() as u64);
}

fn any(actor: &mut Actor, key: &str, limit: Option<u32>) {
    // With a limit, more can be seen if many read.
    let writers = if limit.is_some() { 1 } else { 2 };
    let mode = if actor.rng.u8(..4) < writers { Mode::Write } else { Mode::Read };
    match actor.token(key, mode) {
        Some(_) if actor.rng.u8(..3) > 0 => drop(actor.release(key, mode)),
        _ => {
            let wait = if actor.rng.bool() { Wait::Block(3) } else { Wait::No };
            let limit = limit.filter(|_| mode == Mode::Read && actor.rng.u8(..4) > 0);
            let ask = Ask { mode, wait, limit, ..actor.ask() };
            if actor.acquire(key, ask) == Reply::Deadlock {
                actor.release(key, Mode::Read);
            }
        }
    }
}
