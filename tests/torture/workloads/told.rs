//! One lock, and clients that wait for messages. Some cut their subscription while they wait, and
//! come back or not; some block. One client reads the queue.

use crate::actor::{Actor, Cut};
use crate::history::{Ask, Mode, Reply, Wait};

const KEY: &str = "told";
const WAIT_MS: u64 = 10_000;

pub fn step(actor: &mut Actor) {
    let mode = if actor.rng.u8(..4) == 0 { Mode::Read } else { Mode::Write };
    let ask = Ask { mode, depth: Some(1), ..actor.ask() };
    let reply = match actor.number % 8 {
        0 => {
            actor.info(KEY);
            return actor.stop.within(1);
        }
        1 => actor.acquire(KEY, Ask { wait: Wait::Block(WAIT_MS), ..ask }),
        _ => {
            let cut = match actor.rng.u8(..16) {
                0 | 1 => Cut::Once(actor.rng.u64(..3)),
                2 => Cut::ForGood(actor.rng.u64(..3)),
                _ => Cut::Never,
            };
            let wait = Wait::Tell { ms: WAIT_MS, again: false };
            let reply = actor.acquire_told(KEY, Ask { wait, ..ask }, cut);
            if matches!((cut, &reply), (Cut::ForGood(_), Reply::Nil | Reply::Lost)) {
                // Its request is left behind, and skipped when its turn comes.
                return actor.hang_up(KEY);
            }
            reply
        }
    };
    if let Reply::Token(_) = reply {
        let ms = actor.rng.u64(..3);
        actor.stop.within(ms);
        actor.release(KEY, mode);
    }
}
