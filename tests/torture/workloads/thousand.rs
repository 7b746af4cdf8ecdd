//! A thousand workers, one of ten permits for each piece of work: all of them wait, all the time.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

pub const WORKERS: u32 = 1000;
pub const PERMITS: u32 = 10;
pub const KEY: &str = "pool";

/// One of this many only reads the queue, for the checker of order.
const OBSERVERS: u32 = 250;
const LOOKS_EVERY_MS: u64 = 50;
const WORK_MS: std::ops::Range<u64> = 1..10;
const WAIT_MS: u64 = 120_000;

/// A permit that lasts for a lease.
pub fn lease(actor: &mut Actor) {
    work(actor, false);
}

/// A permit that lasts as long as the worker's connection.
pub fn session(actor: &mut Actor) {
    work(actor, true);
}

fn work(actor: &mut Actor, session: bool) {
    if actor.number.is_multiple_of(OBSERVERS) {
        actor.info(KEY);
        actor.stop.within(LOOKS_EVERY_MS);
        return;
    }
    let (mode, wait, limit) = (Mode::Read, Wait::Block(WAIT_MS), Some(PERMITS));
    let ask = Ask { mode, wait, limit, session, ..actor.ask() };
    if let Reply::Token(_) = actor.acquire(KEY, ask) {
        let ms = actor.rng.u64(WORK_MS);
        actor.stop.within(ms);
        actor.release(KEY, mode);
    }
}
