//! Long holds: by a session, as long as the connection is answered, or until a lease that nobody
//! renews expires. A waiter behind them is granted when a lease expires, or not at all.

use crate::actor::Actor;
use crate::clock::{ms, now_ns};
use crate::history::{Ask, Mode, Reply, Wait};

/// The shortest lease of a session.
const LEASE_MS: u64 = 1000;
const WAIT_MS: u64 = 10_000;
/// Longer than any fault.
const STAY_MS: u64 = 15_000;

pub fn step(actor: &mut Actor) {
    // Of two neighbors, one is even, so if odd and even ones see different servers, both want the
    // same lock.
    match actor.number / 2 % 8 {
        pair @ 0..4 => stays_connected(actor, &format!("stays:{pair}")),
        _ => stays_to_the_end(actor, "stays:lease"),
    }
}

fn stays_connected(actor: &mut Actor, key: &str) {
    let ask = Ask { session: true, ..asked(actor) };
    if !matches!(actor.acquire(key, ask), Reply::Token(_)) {
        return;
    }
    let stay_ms = if actor.rng.u8(..3) == 0 { STAY_MS } else { actor.rng.u64(..200) };
    let begun_ns = now_ns();
    while !actor.is_unsure() && !actor.stop.is_set() && ms(now_ns() - begun_ns) < stay_ms as f64 {
        if actor.rng.u8(..8) == 0 {
            actor.look(key, Mode::Write);
        } else {
            actor.echo(key);
        }
        actor.stop.within(15);
    }
    if !actor.is_unsure() {
        actor.release(key, Mode::Write);
    }
}

fn stays_to_the_end(actor: &mut Actor, key: &str) {
    if !matches!(actor.acquire(key, asked(actor)), Reply::Token(_)) {
        return;
    }
    let leaves = actor.rng.u8(..3) == 0;
    // However long it waited, this shows its remaining lease.
    while let Reply::Number(_) = actor.look(key, Mode::Write) {
        actor.stop.within(LEASE_MS / 5);
        if leaves || actor.stop.is_set() {
            actor.release(key, Mode::Write);
            return;
        }
    }
}

fn asked(actor: &Actor) -> Ask {
    Ask { lease_ms: LEASE_MS, wait: Wait::Block(WAIT_MS), ..actor.ask() }
}
