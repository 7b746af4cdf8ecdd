//! The server is killed with SIGKILL and restarted. It writes every change to disk before it
//! replies, so no acknowledged hold is lost and no token is issued again. Queues and sessions are
//! only in memory, and are lost.

use super::{Alone, Blow, Fault, Kind, ON_DISK, Shard};
use crate::actor::Site;
use crate::history::{FULL_PROMISE, Mark, Promise};

pub const KIND: Kind = Kind {
    name: "kill",
    start: || Box::new(Kill(Alone::with(&ON_DISK))),
    promise: Promise { may_close: true, errors: &["LOADING"], ..FULL_PROMISE },
    every_ms: 250,
    in_processes: false,
    left_out: &[],
};

struct Kill(Alone);

impl Fault for Kill {
    fn site(&self) -> Site {
        Site { lease_ms: 5000, ..self.0.site() }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        blow.marked(Mark::Restart, |_| {
            self.0.0.kill_9();
            self.0.0.start_again();
        });
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.0.shards()
    }
}
