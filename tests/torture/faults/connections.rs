//! CLIENT KILL and CLIENT UNBLOCK of random connections. Not while CLIENT PAUSE postpones clients,
//! and not of one that FLUSHALL blocks: that crashes the servers themselves.

use super::{Alone, Blow, Fault, Kind, Shard, id_of};
use crate::actor::Site;
use crate::history::{FULL_PROMISE, Mark, Promise};
use rlock_testkit::{Client, Version};

pub const KIND: Kind = Kind {
    name: "disconnect",
    start: || Box::new(Connections::start()),
    promise: Promise { may_close: true, may_unblock: true, errors: &["UNBLOCKED"], ..FULL_PROMISE },
    every_ms: 20,
    in_processes: false,
    left_out: &[],
};

struct Connections {
    alone: Alone,
    client: Client,
    /// Redis 7 sends both replies for `CLIENT UNBLOCK … ERROR` in the loop iteration of a grant.
    may_unblock_with_error: bool,
}

impl Connections {
    fn start() -> Connections {
        let alone = Alone::with(&[]);
        let may_unblock_with_error = !matches!(alone.0.version(), Version::Redis(7, _));
        Connections { client: alone.0.client(), alone, may_unblock_with_error }
    }
}

impl Fault for Connections {
    fn site(&self) -> Site {
        Site { lease_ms: 1500, ..self.alone.site() }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        let list = self.client.text("CLIENT LIST TYPE normal");
        let actors = list.lines().filter(|line| line.contains(" name=actor-"));
        let ids: Vec<i64> = actors.filter_map(id_of).collect();
        let Some(id) = blow.rng.choice(ids) else { return };
        match blow.rng.u8(..4) {
            0 | 1 => {
                let line = format!("CLIENT KILL ID {id}");
                blow.marked(Mark::Closed(id), |_| self.client.ask(&line));
            }
            2 if self.may_unblock_with_error => {
                self.client.ask(&format!("CLIENT UNBLOCK {id} ERROR"));
            }
            _ => drop(self.client.ask(&format!("CLIENT UNBLOCK {id}"))),
        }
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.alone.shards()
    }
}
