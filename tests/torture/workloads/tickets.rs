//! Clients that do not block: each polls its ticket until it has its turn, or until the message of
//! the turn comes. Some cancel, some just stay away. Blocked clients are in the same queue, and one
//! client reads it.

use std::time::Duration;

use crate::actor::Actor;
use crate::history::{Ask, Mode, Reply, Wait};

const KEY: &str = "tickets";
const QUEUE_MS: u64 = 400;
const POLLS: u32 = 200;

pub fn step(actor: &mut Actor) {
    match actor.number % 8 {
        0 => {
            actor.info(KEY);
            actor.stop.within(2);
        }
        1 | 2 => blocks(actor),
        3..6 => polls(actor, false),
        _ => polls(actor, true),
    }
}

fn blocks(actor: &mut Actor) {
    let ask = Ask { wait: Wait::Block(5000), ..actor.ask() };
    if let Reply::Token(_) = actor.acquire(KEY, ask) {
        actor.release(KEY, Mode::Write);
    }
}

/// With `listens`, it asks again when the message of its turn comes, or after a while anyway.
fn polls(actor: &mut Actor, listens: bool) {
    let mut ears = if listens { actor.ears(KEY) } else { None };
    let mut turns = ears.as_mut().map(|connection| connection.as_pubsub());
    if let Some(turns) = &mut turns {
        let channel = format!("__keyevent@0__:rlock.turn:{}", actor.owner());
        let patience = Some(Duration::from_millis(QUEUE_MS / 4));
        if turns.subscribe(channel).is_err() || turns.set_read_timeout(patience).is_err() {
            return;
        }
    }
    let mode = if actor.rng.u8(..4) == 0 { Mode::Read } else { Mode::Write };
    let ask = Ask { mode, wait: Wait::Queue(QUEUE_MS), ..actor.ask() };
    for _ in 0..POLLS {
        match (actor.acquire(KEY, ask), &mut turns) {
            (Reply::Token(_), _) => {
                actor.release(KEY, mode);
                return;
            }
            (Reply::Nil, _) if actor.rng.u8(..40) == 0 => break,
            (Reply::Nil, _) if actor.rng.u8(..60) == 0 => {
                // Its ticket ends, and nobody asks again under this name.
                actor.hang_up(KEY);
                return;
            }
            (Reply::Nil, Some(turns)) => drop(turns.get_message()),
            (Reply::Nil, None) => actor.stop.within(2),
            _ => return,
        }
    }
    actor.cancel(KEY);
}
