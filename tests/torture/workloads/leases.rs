//! Short leases: some owners release in time, some renew, some stay too long or vanish, and the
//! lock passes on without them.

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

pub fn step(actor: &mut Actor) {
    let key = format!("leases:{}", actor.rng.u8(..2));
    let mode = if actor.rng.u8(..3) == 0 { Mode::Read } else { Mode::Write };
    let lease_ms = actor.rng.u64(5..60);
    let ask = Ask { mode, lease_ms, wait: Wait::Block(2000), ..actor.ask() };
    if !matches!(actor.acquire(&key, ask), Reply::Token(_)) {
        return;
    }
    if actor.rng.bool() {
        // However long it waited, from here on its deadline is known.
        actor.renew_for(&key, mode, lease_ms);
    }
    match actor.rng.u8(..8) {
        0 => actor.hang_up(&key),
        1 => {
            actor.stop.within(lease_ms + 5);
            actor.release(&key, mode);
        }
        2 => {
            actor.stop.within(lease_ms / 2);
            actor.renew_for(&key, mode, lease_ms);
            actor.release(&key, mode);
        }
        _ => {
            let ms = actor.rng.u64(..lease_ms / 2 + 1);
            actor.stop.within(ms);
            actor.release(&key, mode);
        }
    }
}
