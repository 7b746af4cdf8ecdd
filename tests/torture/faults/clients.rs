//! Clients are processes, and one of them is stopped for longer than its leases, or killed. A
//! stopped client believes that it still holds, until it asks. A killed client's holds last until
//! their leases expire, its sessions end at once.

use super::{Alone, Blow, Fault, Kind, Shard};
use crate::actor::Site;
use crate::history::{FULL_PROMISE, Promise};

const STOPS: Kind = Kind {
    name: "client-stop",
    start: || Box::new(Clients { alone: Alone::with(&[]), kills: false }),
    // A waiter may be granted while it is stopped, and keeps others waiting until it continues.
    promise: Promise { granted_within_ms: 2000, ..FULL_PROMISE },
    every_ms: 150,
    in_processes: true,
    left_out: &[],
};

pub const STOP: Kind = STOPS;

pub const KILL: Kind = Kind {
    name: "client-kill",
    start: || Box::new(Clients { alone: Alone::with(&[]), kills: true }),
    promise: Promise { may_close: true, ..STOPS.promise },
    ..STOPS
};

struct Clients {
    alone: Alone,
    kills: bool,
}

impl Fault for Clients {
    fn site(&self) -> Site {
        // Sessions need a lease of at least a second.
        Site { lease_ms: 1000, ..self.alone.site() }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        let processes = blow.crowd.processes();
        let number = blow.rng.usize(..processes.len());
        if self.kills {
            let closed = processes.kill_9(number);
            blow.events.extend(closed);
        } else {
            processes.freeze(number);
            blow.rest(1500);
            blow.crowd.processes().thaw(number);
        }
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.alone.shards()
    }
}
