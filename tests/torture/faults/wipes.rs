//! Commands other than lock commands remove held locks. The holds end; waiters at the same key are
//! served.

use super::{Alone, Blow, Fault, Kind, Shard};
use crate::actor::Site;
use crate::history::{FULL_PROMISE, Mark, Promise};
use rlock_testkit::{Client, items, text};

const COUNTED: &[(&str, &str)] = &[("counter", "the count goes with the keys")];

pub const FLUSH: Kind = Kind {
    name: "flushall",
    start: || Box::new(Wipes::by(Way::Flush)),
    // A session whose hold is ended is closed.
    promise: Promise { may_close: true, ..FULL_PROMISE },
    every_ms: 30,
    in_processes: false,
    left_out: COUNTED,
};

pub const DEL: Kind =
    Kind { name: "del", start: || Box::new(Wipes::by(Way::Del)), left_out: &[], ..FLUSH };

pub const RENAME: Kind =
    Kind { name: "rename", start: || Box::new(Wipes::by(Way::Rename)), left_out: &[], ..FLUSH };

pub const SWAPDB: Kind = Kind { name: "swapdb", start: || Box::new(Wipes::by(Way::Swap)), ..FLUSH };

#[derive(Clone, Copy)]
enum Way {
    Flush,
    Del,
    Rename,
    Swap,
}

struct Wipes {
    alone: Alone,
    client: Client,
    way: Way,
}

impl Wipes {
    fn by(way: Way) -> Wipes {
        let alone = Alone::with(&[]);
        Wipes { client: alone.0.client(), alone, way }
    }

    /// A lock that is held, or was held a moment ago.
    fn any_lock(&mut self, blow: &mut Blow<'_>) -> Option<String> {
        let keys = self.client.ask("SCAN 0 COUNT 1000 TYPE rlock-key");
        let keys = items(&items(&keys)[1]).iter().map(text);
        blow.rng.choice(keys.filter(|key| !key.starts_with("left:")).collect::<Vec<_>>())
    }
}

impl Fault for Wipes {
    fn site(&self) -> Site {
        Site { lease_ms: 2000, ..self.alone.site() }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        match self.way {
            Way::Flush => {
                let how = if blow.rng.bool() { "SYNC" } else { "ASYNC" };
                let line = format!("FLUSHALL {how}");
                blow.marked(Mark::Wiped(None), |_| self.client.ask(&line));
            }
            Way::Swap => {
                // A removed hold must not come back with the next swap.
                blow.marked(Mark::Wiped(None), |_| {
                    self.client.ask("SWAPDB 0 1");
                    self.client.ask("SELECT 1");
                    self.client.ask("FLUSHDB");
                    self.client.ask("SELECT 0");
                });
            }
            Way::Del | Way::Rename => {
                let Some(key) = self.any_lock(blow) else { return };
                let line = match self.way {
                    Way::Rename => format!("RENAME {key} elsewhere"),
                    _ if blow.rng.bool() => format!("DEL {key}"),
                    _ => format!("UNLINK {key}"),
                };
                // A lock that no longer exists cannot be renamed.
                blow.marked(Mark::Wiped(Some(key)), |_| self.client.attempt(&line).ok());
                self.client.ask("DEL elsewhere");
            }
        }
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.alone.shards()
    }
}
