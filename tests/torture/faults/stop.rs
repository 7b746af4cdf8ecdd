//! The server is stopped and continues later: leases expire meanwhile, nothing is lost.

use super::{Alone, Blow, Fault, Kind, Shard};
use crate::actor::Site;
use crate::history::{FULL_PROMISE, Mark};

pub const KIND: Kind = Kind {
    name: "stop",
    start: || Box::new(Stop(Alone::with(&[]))),
    promise: FULL_PROMISE,
    every_ms: 300,
    in_processes: false,
    left_out: &[],
};

struct Stop(Alone);

impl Fault for Stop {
    fn site(&self) -> Site {
        self.0.site()
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        blow.marked(Mark::Outage, |blow| {
            self.0.0.freeze();
            blow.rest(300);
            self.0.0.thaw();
        });
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.0.shards()
    }
}
