//! CLIENT PAUSE of writes or of everything: nothing is granted meanwhile, and what is due is done
//! afterwards.

use super::{Alone, Blow, Fault, Kind, Shard};
use crate::actor::Site;
use crate::history::{FULL_PROMISE, Mark};
use rlock_testkit::Client;

pub const WRITES: Kind = Kind {
    name: "pause-write",
    start: || Box::new(Pause::of("WRITE")),
    promise: FULL_PROMISE,
    every_ms: 200,
    in_processes: false,
    left_out: &[],
};

pub const ALL: Kind = Kind { name: "pause-all", start: || Box::new(Pause::of("ALL")), ..WRITES };

struct Pause {
    alone: Alone,
    client: Client,
    what: &'static str,
}

impl Pause {
    fn of(what: &'static str) -> Pause {
        let alone = Alone::with(&[]);
        Pause { client: alone.0.client(), alone, what }
    }
}

impl Fault for Pause {
    fn site(&self) -> Site {
        self.alone.site()
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        let pause_ms = blow.rng.u64(5..200);
        let line = format!("CLIENT PAUSE {pause_ms} {}", self.what);
        blow.marked(Mark::Outage, |_| {
            self.client.ask(&line);
            // This command itself is postponed until the pause ends.
            self.client.ask("DEL nothing");
        });
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.alone.shards()
    }
}
