//! No fault: shows what the checkers find without one.

use super::{Alone, Blow, Fault, Kind, Shard};
use crate::actor::Site;
use crate::history::FULL_PROMISE;

pub const KIND: Kind = Kind {
    name: "calm",
    start: || Box::new(Calm(Alone::with(&[]))),
    promise: FULL_PROMISE,
    every_ms: 100,
    in_processes: false,
    left_out: &[],
};

struct Calm(Alone);

impl Fault for Calm {
    fn site(&self) -> Site {
        self.0.site()
    }

    fn strike(&mut self, _: &mut Blow<'_>) {}

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.0.shards()
    }
}
