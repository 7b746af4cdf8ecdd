//! The data is saved and loaded under load: DEBUG RELOAD (RDB, saved and loaded in one step) and
//! BGREWRITEAOF in both formats, followed by a kill, so that the file counts.

use super::{Alone, Blow, Fault, Kind, ON_DISK, Shard};
use crate::actor::Site;
use crate::aftermath::is_rewritten;
use crate::history::{FULL_PROMISE, Mark, Promise};
use rlock_testkit::until;

pub const RELOAD: Kind = Kind {
    name: "reload",
    start: || Box::new(Reloads(Alone::with(&[]))),
    promise: FULL_PROMISE,
    every_ms: 100,
    in_processes: false,
    left_out: &[],
};

pub const REWRITE: Kind = Kind {
    name: "rewrite-rdb",
    start: || Box::new(Rewrites::of("yes")),
    promise: Promise { may_close: true, errors: &["LOADING"], ..FULL_PROMISE },
    ..RELOAD
};

pub const REWRITE_PLAIN: Kind =
    Kind { name: "rewrite-aof", start: || Box::new(Rewrites::of("no")), ..REWRITE };

struct Reloads(Alone);

impl Fault for Reloads {
    fn site(&self) -> Site {
        self.0.site()
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        blow.marked(Mark::Outage, |_| self.0.0.client().ask("DEBUG RELOAD"));
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.0.shards()
    }
}

struct Rewrites(Alone);

impl Rewrites {
    fn of(preamble: &'static str) -> Rewrites {
        Rewrites(Alone::with(&[&ON_DISK[..], &["aof-use-rdb-preamble", preamble]].concat()))
    }
}

impl Fault for Rewrites {
    fn site(&self) -> Site {
        Site { lease_ms: 5000, ..self.0.site() }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        let mut client = self.0.0.client();
        client.ask("BGREWRITEAOF");
        until(20_000, || is_rewritten(&mut client));
        blow.rest(50);
        blow.marked(Mark::Restart, |_| {
            self.0.0.kill_9();
            self.0.0.start_again();
        });
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.0.shards()
    }
}
